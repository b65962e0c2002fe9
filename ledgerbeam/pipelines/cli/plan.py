"""``ledgerbeam plan``: what a run of a flow would do, and why."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import add_json
from ledgerbeam.pipelines.cli.run import add_flow

SUMMARY = "say what a run of a flow would do, and why; write nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(only_prints=True)
    add_flow(parser)
    add_json(parser)
    parser.set_defaults(dry_run=True)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Plan a flow. Returns 0."""
    from ledgerbeam.pipelines.console.reporter import print_json
    from ledgerbeam.pipelines.flows.plan import plan

    found = plan(args.flow, *args.steps)
    if args.json:
        print_json(found.as_json())
    else:
        print("\n".join(found.lines()))
    return 0
