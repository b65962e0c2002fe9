"""``ledgerbeam group``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import add_audit, add_sources, take_defaults_of_call
from ledgerbeam.pipelines.cli.exchange_arguments import add_by, add_exchange

SUMMARY = "call a function with each key and its records"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    parser.add_argument(
        "function",
        metavar="module:function",
        help="takes a key and an iterator of its records; returns a record, None, a list, Drop or Route; or a class, "
        "built once a process",
    )
    add_exchange(parser, sources=add_sources(parser))
    add_by(parser)
    add_audit(parser)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Call a function with groups. Returns the exit status."""
    from ledgerbeam.pipelines.calls.group import group as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
