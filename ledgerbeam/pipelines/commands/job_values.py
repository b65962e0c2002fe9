"""From options that commands share to the values of the jobs that they ask for."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ledgerbeam.errors import UsageError
from ledgerbeam.io import canonical_url, common_base
from ledgerbeam.io.megatron.layout import dataset_prefix, dtype_code
from ledgerbeam.io.shar.cuts import parse_fields
from ledgerbeam.pipelines.commands.arguments import TARS_WITH_METADATA
from ledgerbeam.pipelines.jobs.columns import COLUMN_FORMATS, ColumnLayout, read_schema
from ledgerbeam.pipelines.jobs.compression import parse_compression
from ledgerbeam.pipelines.jobs.megatron_parts import PARTS_SUFFIX, MergedParts
from ledgerbeam.pipelines.jobs.sources import ListedFiles

__all__ = ["conversion", "dataset", "dtype_name", "file_sources", "folder", "layout", "run_values", "target"]


def folder(url: str) -> str:
    """Return the canonical URL of a folder."""
    return canonical_url(url).rstrip("/")


def run_values(args: argparse.Namespace) -> dict[str, Any]:
    """Return how a job runs, by the names of `JobSpec`; nothing of it shapes the outputs."""
    return {
        "storage_options": args.storage_options,
        "workers": args.workers,
        "flush_interval": args.flush_interval,
        "log_level": args.log_level,
        "task_limit": getattr(args, "limit_tasks", None),
    }


def file_sources(args: argparse.Namespace) -> ListedFiles:
    """Return the files that a job reads.

    Raises:
        UsageError: If the options cannot mean anything together.
    """
    if bool(args.patterns) == bool(args.sources_from):
        raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
    read_as, pack = getattr(args, "read_as", None), getattr(args, "pack", None)
    patterns = tuple(map(canonical_url, args.patterns))
    group = args.group
    if read_as is not None:  # folders of Shar datasets
        if pack or group != "auto" or getattr(args, "columns", ()):
            raise UsageError(
                "--from shar reads whole shards, with payloads in pairs: leave --pack, --group and --columns out"
            )
        patterns, group = tuple(f"{pattern.rstrip('/')}/*" for pattern in patterns), "pairs"
    given = getattr(args, "base", None)
    base = canonical_url(given) if given else common_base(patterns)
    return ListedFiles(
        patterns=patterns,
        sources_from=canonical_url(args.sources_from) if args.sources_from else None,
        base=base and base.rstrip("/") + "/",
        index_root=args.index_root and folder(args.index_root),
        index_rule=args.index_rule,
        build_index=not getattr(args, "no_index", False),
        group=group,
        task_bytes=args.task_bytes,
        pack_bytes=pack,
        read_as=read_as,
        columns=getattr(args, "columns", ()),
    )


def target(word: str) -> tuple[str, str | None]:
    """Return the format that ``--to`` asks for, and what is published of it: the job is the same either way."""
    return ("tar", word) if word in TARS_WITH_METADATA else (word, None)


def layout(args: argparse.Namespace) -> ColumnLayout | None:
    """Return how files of columns are written; None for other formats.

    Raises:
        UsageError: If an option is of another format, or the file of a schema has none.
    """
    given = {"schema": args.schema, "row_group_bytes": args.row_group_bytes, "page_bytes": args.page_bytes}
    of_columns = args.to in COLUMN_FORMATS
    for name, value in given.items():
        if value is not None and not (of_columns and (name != "page_bytes" or args.to == "parquet")):
            where = "parquet" if name == "page_bytes" else " and ".join(COLUMN_FORMATS)
            raise UsageError(f"--{name.replace('_', '-')} is for --to {where}, found --to {args.to}")
    if not of_columns:
        return None
    sizes = {name: size for name, size in given.items() if name != "schema" and size is not None}
    made = ColumnLayout(**sizes)
    return made if args.schema is None else made.decided(read_schema(args.schema, args.storage_options))


def conversion(args: argparse.Namespace) -> dict[str, Any]:
    """Return how any record is written as ``--to`` asks, by the names of the jobs that convert.

    Raises:
        UsageError: If an option is of another format.
    """
    to, published = target(args.to)
    compression = parse_compression(args.compress, args.frame, args.to)
    values: dict[str, Any] = {"to": to, "published": published, "layout": layout(args), "compression": compression}
    if to == "megatron":
        values["dataset"], values["output"] = dataset(args, dtype_name(args.dtype or "int32"), ("",))
    elif args.dtype or args.drop_parts:
        raise UsageError(f"--dtype and --drop-parts are for --to megatron, found --to {args.to}")
    else:
        values["output"] = folder(args.output)
    if to == "shar":
        values["fields"] = tuple(parse_fields(args.fields or "").items())
    elif args.fields is not None:
        raise UsageError(f"--fields is for --to shar, found --to {args.to}")
    return values


def dataset(args: argparse.Namespace, dtype: str, suffixes: tuple[str, ...]) -> tuple[MergedParts, str]:
    """Return the Megatron dataset that ``--output`` names, and the folder of its parts."""
    if args.output.endswith("/"):
        raise UsageError(f"--output {args.output}: expected the prefix of two files, found a folder")
    prefix = dataset_prefix(args.output)
    return MergedParts(prefix, suffixes, dtype, args.drop_parts), prefix + PARTS_SUFFIX


def dtype_name(name: str) -> str:
    """Return the name of a dtype of Megatron as numpy writes it."""
    dtype_code(name)
    return np.dtype(name).name
