"""``ledgerbeam repartition``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.exchange_arguments import add_exchange

SUMMARY = "write all records in their order, in shards of another size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_exchange(parser)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Write records in other shards. Returns the exit status."""
    from ledgerbeam.pipelines.calls.repartition import repartition as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
