"""``ledgerbeam split``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import parse_shares
from ledgerbeam.pipelines.cli.arguments import (
    add_compression,
    add_existing,
    add_layout,
    add_shards,
    add_sources,
    take_defaults_of_call,
)
from ledgerbeam.pipelines.cli.exchange_arguments import add_by, add_plain_format

SUMMARY = "write records in parts, all those of a key in one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    sources = add_sources(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="URL", help="folder to write below, a folder for each part")
    add_plain_format(output)
    add_layout(output)
    add_compression(output)
    add_existing(output)
    keys = add_by(parser)
    keys.add_argument(
        "--parts",
        required=True,
        type=lambda text: dict(parse_shares(text)),
        metavar="NAME=SHARE,...",
        help="names and shares of the parts, such as train=98,val=2; or a number of equal parts",
    )
    add_shards(parser, sources, output)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Split records. Returns the exit status."""
    from ledgerbeam.pipelines.calls.split import split as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
