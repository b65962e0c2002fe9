"""Calls: the functions of `ledgerbeam` that run jobs, each with a command of the same name."""

MODULES = {  # module of each call
    "map": "map",
    "annotate": "columns",
    "select": "columns",
    "decontaminate": "columns",
    "convert": "convert",
    "materialize": "convert",
    "tokenize": "megatron",
    "index": "index",
    "verify": "index",
    "sort": "exchanges",
    "shuffle": "exchanges",
    "repartition": "exchanges",
    "group": "exchanges",
    "join": "exchanges",
    "split": "exchanges",
    "dedup": "dedup",
    "publish": "publish",
    "merge": "megatron",
    "pack": "packs",
}
