"""``ledgerbeam convert``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import (
    add_conversion,
    add_read_as,
    add_shards,
    add_sources,
    take_defaults_of_call,
)

SUMMARY = "write every record in another format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    sources = add_sources(parser)
    add_read_as(sources)
    output = add_conversion(parser)
    add_shards(parser, sources, output)
    output.add_argument(
        "--pack-by",
        choices=["order", "folder"],
        help="pack the sources of each folder apart, such as those of routes, or all in their order (default: order)",
    )


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Convert records. Returns the exit status."""
    from ledgerbeam.pipelines.calls.convert import convert as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
