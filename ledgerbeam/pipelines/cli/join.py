"""``ledgerbeam join``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import parse_columns
from ledgerbeam.pipelines.cli.arguments import add_storage, take_defaults_of_call
from ledgerbeam.pipelines.cli.exchange_arguments import add_by, add_exchange

SUMMARY = "join the records of two sides by key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    sources = parser.add_argument_group("sources")
    sources.add_argument(
        "left", metavar="LEFT", help="source URLs of the left side, with *, ?, [...], ** and {a,b} or {000..127} braces"
    )
    sources.add_argument("right", metavar="RIGHT", help="those of the right side")
    add_storage(sources)
    output = add_exchange(parser, sources=sources)
    sources.add_argument(
        "--right-columns",
        type=parse_columns,
        metavar="NAME,...",
        help="those of the files of the right side (default: all)",
    )
    keys = add_by(parser)
    keys.add_argument(
        "--right-by", metavar="KEY", help="the key of records of the right side (default: that of the left side)"
    )
    output.add_argument(
        "--how",
        choices=["inner", "left", "semi", "anti"],
        help="pairs that have the same key (inner), and also records of the left side without a match (left); or, as "
        "they are, records of the left side with a match (semi), or without (anti) (default: inner)",
    )
    output.add_argument(
        "--suffix",
        metavar="TEXT",
        help="behind the name of a field of the right side that the left side has as well; else such a field is an "
        "error",
    )
    output.add_argument(
        "--as",
        dest="as_",
        metavar="NAME",
        help="field that all of a record of the right side comes to, in place of its fields; of a sample the member",
    )


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Join records. Returns the exit status."""
    from ledgerbeam.pipelines.calls.join import join as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
