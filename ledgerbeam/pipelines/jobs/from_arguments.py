"""From the arguments of a command to the job that they ask for."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ledgerbeam.errors import UsageError
from ledgerbeam.io import canonical_url, common_base
from ledgerbeam.io.formats import conversion
from ledgerbeam.io.megatron import optimal_dtype
from ledgerbeam.io.megatron.layout import dataset_prefix, dtype_code
from ledgerbeam.io.megatron.tokenizer import BYTES, read_tokenizer
from ledgerbeam.io.shar import cuts as shar_cuts
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import function_identity
from ledgerbeam.pipelines.jobs.spec import JobSpec, source_listing

__all__ = ["PARTS_SUFFIX", "job_spec"]

PARTS_SUFFIX = ".parts"
"""What follows a dataset's prefix in the name of the folder of its parts."""

_PUBLISHED = {"webdataset": "wids", "energon": "energon", "lit": "lit"}
"""The words of ``--to`` that write tar, and as what its shards are published."""

_CONVERSIONS = {"jsonl": "to_json", "tar": "to_sample", "shar": "to_cut", "megatron": "to_document"}
"""What makes records of a format; of that of another package JSON values, which its `encode` takes."""


def job_spec(args: argparse.Namespace) -> JobSpec:
    """Returns the job of a command that runs one, its ledger not yet resolved.

    Raises:
        FunctionError: If a function cannot be imported.
        StorageError: If the tokenizer cannot be read.
        UsageError: If the arguments cannot mean anything together.
    """
    if args.command == "index":
        common = _common(args)
        return JobSpec("index", **common, base=common_base(common["patterns"]))
    makers = {
        "map": _map_spec,
        "convert": _convert_spec,
        "tokenize": _tokenize_spec,
        "materialize": _materialize_spec,
    }
    return makers[args.command](args)


def _common(args: argparse.Namespace) -> dict[str, Any]:
    listing = source_listing(args)
    return {
        "patterns": listing.patterns,
        "sources_from": listing.sources_from,
        "storage_options": args.storage_options,
        "index_root": args.index_root and canonical_url(args.index_root).rstrip("/"),
        "index_rule": args.index_rule,
        "group": args.group,
        "task_bytes": args.task_bytes,
        "workers": args.workers,
        "flush_interval": args.flush_interval,
    }


def _shards(args: argparse.Namespace) -> dict[str, Any]:
    common = {**_common(args), **_read_as(args)}
    base = canonical_url(args.base) if args.base else common_base(common["patterns"])
    return {
        **common,
        "base": base and base.rstrip("/") + "/",
        "pack_bytes": args.pack,
        "build_index": not args.no_index,
    }


def _read_as(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what differs where folders of Shar datasets are read, not files."""
    if getattr(args, "read_as", None) is None:
        return {}
    if args.pack or args.group != "auto":
        raise UsageError("--from shar reads whole shards, with payloads in pairs: leave --pack and --group out")
    folders = tuple(f"{canonical_url(folder).rstrip('/')}/*" for folder in args.patterns)
    return {"read_as": args.read_as, "patterns": folders, "group": "pairs"}


def _map_spec(args: argparse.Namespace) -> JobSpec:
    if args.nan != "refuse" and args.to != "jsonl":
        raise UsageError(f"--nan {args.nan} is for --to jsonl, found --to {args.to}")
    return JobSpec(
        "map",
        **_shards(args),
        function=args.function,
        function_source=function_identity(args.function)["function_source"],
        output=canonical_url(args.output).rstrip("/"),
        **_target(args.to),
        settings={"nan": args.nan},
        check_purity=not args.no_purity_check,
    )


def _convert_spec(args: argparse.Namespace) -> JobSpec:
    return JobSpec("convert", **_shards(args), **_converted(args))


def _converted(args: argparse.Namespace) -> dict[str, Any]:
    """Returns how any record is written as ``--to`` asks."""
    settings: dict[str, Any] = {"conversion": conversion.VERSION}
    target = _target(args.to)
    if args.to == "megatron":
        settings |= {"suffixes": [""], "dtype": _dtype_name(args.dtype or "int32")}
        places = _dataset(args)
    elif args.dtype or args.drop_parts:
        raise UsageError(f"--dtype and --drop-parts are for --to megatron, found --to {args.to}")
    else:
        places = {"output": canonical_url(args.output).rstrip("/")}
    if args.to == "shar":
        fields = shar_cuts.parse_fields(args.fields or "")
        text = ",".join(f"{name}={extension}" for name, extension in fields.items())
        settings |= {"fields": text, "cuts": shar_cuts.VERSION}
    elif args.fields is not None:
        raise UsageError(f"--fields is for --to shar, found --to {args.to}")
    return {
        **places,
        "function": f"{conversion.__name__}:{_CONVERSIONS.get(target['to'], 'to_json')}",
        **target,
        "settings": settings,
        "check_purity": False,
    }


def _target(word: str) -> dict[str, Any]:
    """Returns the format that ``--to`` asks for, and what is published of it: the job is the same either way."""
    published = _PUBLISHED.get(word)
    return {"to": word if published is None else "tar", "published": published}


def _materialize_spec(args: argparse.Namespace) -> JobSpec:
    converted = _converted(args)
    converted["settings"] |= {
        "graph": args.graph,
        "graph_source": function_identity(args.graph)["function_source"],
        "task_records": args.task_records,
    }
    return JobSpec(
        "materialize",
        **converted,
        base=GraphSource(args.graph).base,
        storage_options=args.storage_options,
        epochs=args.epochs,
        task_bytes=args.task_bytes,
        workers=args.workers,
        flush_interval=args.flush_interval,
    )


def _tokenize_spec(args: argparse.Namespace) -> JobSpec:
    url = args.tokenizer if args.tokenizer == BYTES else canonical_url(args.tokenizer)
    tokenizer, checksum = read_tokenizer(url, args.storage_options)
    if args.eod and not args.append_eod:
        raise UsageError("--eod names a token that --no-append-eod leaves out: give one of the two")
    eod = tokenizer.eod(args.eod) if args.append_eod else None
    vocabulary = max(tokenizer.vocabulary, 0 if eod is None else eod + 1)
    keys = args.keys or ["text"]
    split = args.split_sentences
    settings = {
        "tokenizer": checksum or BYTES,
        "keys": keys,
        "suffixes": _suffixes(keys, "sentence" if split else "document"),
        "eod": eod,
        "split": split,
        "split_source": split and function_identity(split)["function_source"],
        "dtype": _token_dtype(args.dtype, vocabulary, url),
    }
    return JobSpec("tokenize", **_shards(args), **_dataset(args), to="megatron", tokenizer=url, settings=settings)


def _dataset(args: argparse.Namespace) -> dict[str, Any]:
    """Returns where a dataset goes, and its parts."""
    if args.output.endswith("/"):
        raise UsageError(f"--output {args.output}: expected the prefix of two files, found a folder")
    prefix = dataset_prefix(args.output)
    return {"merged": prefix, "output": prefix + PARTS_SUFFIX}


def _suffixes(keys: list[str], level: str) -> list[str]:
    """Returns what follows the prefix in the name of each key's dataset: nothing if there is one, else Megatron's."""
    if len(keys) == 1:
        return [""]
    for key in keys:
        if keys.count(key) > 1 or "/" in key or not key:
            raise UsageError(f"--key {key}: expected names of texts, each once and without '/', as they name datasets")
    return [f"_{key}_{level}" for key in keys]


def _dtype_name(name: str) -> str:
    dtype_code(name)
    return np.dtype(name).name


def _token_dtype(name: str | None, vocabulary: int, url: str) -> str:
    if name is None:
        return optimal_dtype(vocabulary).name
    dtype = np.dtype(_dtype_name(name))
    if dtype.kind not in "iu" or np.iinfo(dtype).max < vocabulary - 1:
        raise UsageError(f"--dtype {name}: cannot hold the tokens of {url}, from 0 to {vocabulary - 1:,}")
    return dtype.name
