"""Options that the commands of exchanges share."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import MAPPED, OutputFormats, parse_count, parse_size
from ledgerbeam.pipelines.cli.arguments import (
    Options,
    add_columns,
    add_compression,
    add_existing,
    add_index_place,
    add_job,
    add_layout,
    add_sources,
    take_defaults_of_call,
)


def add_by(parser: argparse.ArgumentParser, *, ordered: bool = False) -> argparse._ArgumentGroup:
    """Add ``--by``, and if keys are ordered, how; returns the group of options of keys."""
    keys = parser.add_argument_group("keys")
    keys.add_argument(
        "--by",
        required=True,
        metavar="KEY",
        help="name of a field, a.b for a value inside of another, several with commas; or module:function of a record "
        "that returns the key. A missing field is null",
    )
    if ordered:
        keys.add_argument("--descending", action="store_true", help="the greatest key first")
        keys.add_argument(
            "--nulls", choices=["first", "last"], help="where records stand whose key is null (default: last)"
        )
    return keys


def add_plain_format(output: Options) -> None:
    """Add ``--to``: some formats, and those of other packages."""
    output.add_argument(
        "--to",
        required=True,
        metavar="FORMAT",
        choices=OutputFormats(MAPPED),
        help="format, indexed in the same pass: %(choices)s",
    )


def add_exchange(
    parser: argparse.ArgumentParser, *, sources: Options | None = None, moves_records: bool = True
) -> argparse._ArgumentGroup:
    """Add what all exchanges take; returns the group of options of the output.

    Args:
        parser: Of the command.
        sources: The group of options of sources, if that is there.
        moves_records: Whether the records go along; else they are written where they are.
    """
    take_defaults_of_call(parser)
    files = add_sources(parser) if sources is None else sources
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="URL", help="folder to write below")
    add_plain_format(output)
    add_layout(output)
    add_compression(output)
    add_existing(output)
    if moves_records:
        output.add_argument(
            "--shard-bytes",
            type=parse_size,
            metavar="BYTES",
            help="size of a shard before it is compressed, about (default: 64M)",
        )
    files.add_argument("--no-index", action="store_true", help="refuse sources without an index instead of indexing")
    add_columns(files)
    add_index_place(files)
    files.add_argument(
        "--pack",
        type=parse_size,
        metavar="BYTES",
        help=f"pack small sources, so that a {'run file' if moves_records else 'shard'} has about this size",
    )
    work = add_job(
        parser,
        task_bytes="64M",
        task_help="size of a task of the first stage, which makes one run file"
        if moves_records
        else "size of a task: of the last stage it makes one shard",
        one_job=False,
    )
    work.add_argument(
        "--bucket-bytes",
        type=parse_size,
        metavar="BYTES",
        help="size of a bucket, which is done again if a record in it changes (default: that of a shard)"
        if moves_records
        else "size of the sources of which hashes make a bucket (default: 1G)",
    )
    work.add_argument(
        "--max-slices",
        type=parse_count,
        metavar="N",
        help="the most slices of run files that a stage reads; beyond it the exchange takes more rounds. It counts "
        "when the job begins (default: 10000000)",
    )
    work.add_argument(
        "--keep-runs",
        action="store_true",
        help="leave the run files when all is done: of sources that are added later only those are scattered then",
    )
    return output
