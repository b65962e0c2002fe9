"""``ledgerbeam materialize``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import parse_count
from ledgerbeam.pipelines.cli.arguments import (
    add_conversion,
    add_job,
    add_limit,
    add_storage,
    take_defaults_of_call,
)

SUMMARY = "write the items of an iterator graph in its order"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    parser.add_argument("graph", metavar="module:function", help="returns the graph; or module:object that is one")
    parser.add_argument(
        "--epochs",
        type=parse_count,
        metavar="N",
        help="number of passes, each in its own order (default: 1)",
    )
    add_storage(parser)
    add_conversion(parser)
    work = add_job(
        parser,
        task_bytes="16M",
        task_help="size of a task by the mean size of the records that the graph reads",
    )
    add_limit(work)
    work.add_argument(
        "--task-records",
        type=parse_count,
        metavar="N",
        help="places of a task, the most items of a shard (default: set by --task-bytes)",
    )


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Write the items of a graph. Returns the exit status."""
    from ledgerbeam.pipelines.calls.materialize import materialize as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
