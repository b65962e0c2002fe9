"""``ledgerbeam index``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import (
    add_index_place,
    add_job,
    add_read_as,
    add_sources,
    take_defaults_of_call,
)

SUMMARY = "write the index of every source"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    sources = add_sources(parser)
    add_read_as(sources)
    add_index_place(sources)
    sources.add_argument(
        "--force",
        action="store_true",
        help="index again what the ledger holds as indexed, and replace any file that has the name of an index",
    )
    add_job(parser, task_bytes="256M", task_help="size of the byte ranges that a large JSONL file is scanned in")
    parser.epilog = f"'ledgerbeam index verify' checks existing indexes. {parser.epilog}"


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Index sources. Returns the exit status."""
    from ledgerbeam.pipelines.calls.index import index as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
