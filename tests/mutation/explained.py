"""Mutants that no test can or should notice, each with the reason.

A key is what `make mutants` prints of a survivor: the module, the function, the text and what takes its place. An
entry that fits no mutant is an error, so that none outlives the code that it speaks of.
"""

from __future__ import annotations

_STRICT = "lists of one length are zipped"
_NONE = "no options are as good as an empty mapping of them"

EXPLAINED: dict[tuple[str, str, str, str], str] = {
    ("ledgerbeam/pipelines/owner.py", "", "1_000", "1001"): "how many names are held to tell a few of them",
    ("ledgerbeam/pipelines/owner.py", "OutputOwner._read_marks", "True", "False"): _STRICT,
    ("ledgerbeam/pipelines/recorded.py", "_refuse_changed", "True", "False"): _STRICT,
    ("ledgerbeam/pipelines/recorded.py", "_differing", "True", "False"): _STRICT,
    (
        "ledgerbeam/pipelines/recorded.py",
        "_differing",
        "found != page.sizes",
        "True",
    ): "a page of which nothing differs is passed over sooner",
    ("ledgerbeam/pipelines/recorded.py", "_size", "return -1", "return None"): "any other size of an index is gone",
    ("ledgerbeam/pipelines/recorded.py", "_size", "1", "2"): "any other size of an index is gone",
    ("ledgerbeam/pipelines/recorded.py", "_named", "1", "2"): "any size below zero is none",
    (
        "ledgerbeam/pipelines/recorded.py",
        "_differing_from_listing",
        "1",
        "2",
    ): "the greatest key is then looked for by its name, and found as it was recorded",
    ("ledgerbeam/transforms/beam_yaml.py", "SkipCompleted", "storage_options or {}", "storage_options"): _NONE,
    ("ledgerbeam/transforms/beam_yaml.py", "WriteTasks", "storage_options or {}", "storage_options"): _NONE,
    ("ledgerbeam/transforms/function.py", "", "0.5", "2.0"): "how long is spent on a check that finds what it can",
    (
        "ledgerbeam/transforms/function.py",
        "MapRecords.__call__",
        "elapsed < PURITY_CHECK_SECONDS",
        "elapsed <= PURITY_CHECK_SECONDS",
    ): "no clock tells these apart",
    (
        "ledgerbeam/transforms/function.py",
        "MapRecords._map",
        "self._function is None",
        "True",
    ): "the function is imported again, which gives the same one, later",
    (
        "ledgerbeam/transforms/function.py",
        "MapRecords._map",
        "type(value) is not dict",
        "True",
    ): "a dict passes the check that it is spared",
    (
        "ledgerbeam/transforms/index.py",
        "_BuildIndexes._publish",
        "require_listed(listed, options) if parts or is_local(listed.url) else listed",
        "require_listed(listed, options)",
    ): "an object is looked at once more, after a read that was of the listed version alone",
    ("ledgerbeam/transforms/match.py", "MatchSources.expand", "False", "True"): "a single element is not spread",
    (
        "ledgerbeam/transforms/plan.py",
        "_Plan.process",
        "left and isinstance(planned, StreamedTasks)",
        "left",
    ): "only of a stream are there any left; for the type checker",
    ("ledgerbeam/transforms/process.py", "_Batch._checked", "True", "False"): _STRICT,
    ("ledgerbeam/transforms/read.py", "", "16", "17"): "how many readers are held open is a matter of speed",
    ("ledgerbeam/transforms/read.py", "TaskReader._read_pack", "True", "False"): _STRICT,
    (
        "ledgerbeam/transforms/read.py",
        "TaskReader._reader",
        "held[1].close()",
        "pass",
    ): "nothing else holds the reader, which closes its file as it is dropped",
    ("ledgerbeam/transforms/read.py", "_Read._read_stream", "True", "False"): _STRICT,
    (
        "ledgerbeam/transforms/source_format.py",
        "SourceFormat.load_shard_index",
        "1",
        "0",
    ): "every shard has files; for the type checker",
    (
        "ledgerbeam/transforms/source_format.py",
        "SourceFormat.load_shard_index",
        "1",
        "2",
    ): "every shard has files; for the type checker",
    ("ledgerbeam/transforms/tokenize.py", "TokenizeRecords.__call__", "True", "False"): _STRICT,
    ("ledgerbeam/transforms/write.py", "output_name", "0", "1"): "every suffix is longer",
    ("ledgerbeam/transforms/write.py", "_Write._write", "True", "False"): _STRICT,
}
