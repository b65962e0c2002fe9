"""``ledgerbeam show``: facts about a source, or some of its records."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.options import ColumnOptions, IndexOptions, StoreOptions
from ledgerbeam.pipelines.cli.arguments import add_json, add_options

SUMMARY = "print facts about a source, or some of its records"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(only_prints=True)
    parser.add_argument("source", metavar="SOURCE", help="one source URL")
    parser.add_argument(
        "records",
        metavar="N",
        nargs="*",
        type=int,
        default=None,  # otherwise argparse requires a value if other arguments are missing
        help="record numbers; negative numbers count from the end",
    )
    for options in (StoreOptions, ColumnOptions, IndexOptions):
        add_options(parser, options)
    add_json(parser, "print JSON")


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Print facts about the source, or the given records, one per line. Returns 0."""
    from ledgerbeam.io.index.location import IndexLocation
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.pipelines.report.records import Shown, print_facts_of, print_records

    location = IndexLocation(root=args.index_root and canonical_url(args.index_root), rule=args.index_rule)
    shown = Shown(canonical_url(args.source), location, args.storage_options, args.group, args.columns)
    if args.records:
        print_records(shown, args.records, as_json=args.json)
    else:
        print_facts_of(shown, as_json=args.json)
    return 0
