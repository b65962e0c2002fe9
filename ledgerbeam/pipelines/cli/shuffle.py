"""``ledgerbeam shuffle``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import parse_seed
from ledgerbeam.pipelines.cli.exchange_arguments import add_exchange

SUMMARY = "write all records in an order that a seed decides"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    output = add_exchange(parser)
    output.add_argument("--seed", type=parse_seed, metavar="N", help="another one makes another order (default: 0)")


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Shuffle records. Returns the exit status."""
    from ledgerbeam.pipelines.calls.shuffle import shuffle as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
