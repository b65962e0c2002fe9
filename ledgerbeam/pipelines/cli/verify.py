"""``ledgerbeam index verify``, in short ``verify``: do indexes fit their sources? Of outputs: `ledger.verify`."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import (
    add_columns,
    add_index_place,
    add_json,
    add_sources,
    take_defaults_of_call,
)

SUMMARY = "check that indexes fit their sources; in short: verify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    sources = add_sources(parser)
    add_columns(sources)
    add_index_place(sources)
    parser.add_argument("--deep", action="store_true", help="scan the sources again and decode every record")
    add_json(parser)
    parser.epilog = "'ledgerbeam ledger verify' checks the outputs of a job."


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Check every source; prints a line for each that does not pass. Returns 0, or 1 if any did not pass."""
    from ledgerbeam.pipelines.calls.verify import verify as call
    from ledgerbeam.pipelines.cli.job import call_with
    from ledgerbeam.pipelines.console.reporter import print_json
    from ledgerbeam.pipelines.console.run_progress import count

    result = call_with(call, args)
    if args.json:
        print_json(result.summary)
    else:
        checked, problems = count(result.sources, "source"), count(len(result.failures), "problem")
        print(f"{checked}, {count(result.records.read, 'record')}, {problems}")
    return 0 if result.complete else 1
