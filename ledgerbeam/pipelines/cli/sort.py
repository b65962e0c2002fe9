"""``ledgerbeam sort``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.exchange_arguments import add_by, add_exchange

SUMMARY = "write all records in the order of a key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_exchange(parser)
    add_by(parser, ordered=True)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Sort records. Returns the exit status."""
    from ledgerbeam.pipelines.calls.sort import sort as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
