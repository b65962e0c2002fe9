"""``ledgerbeam index verify``, in short ``verify``: do indexes fit their sources? Of outputs: `ledger.verify`."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.commands.arguments import add_columns, add_index_place, add_json, add_sources

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "check that indexes fit their sources; in short: verify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    sources = add_sources(parser)
    add_columns(sources)
    add_index_place(sources)
    parser.add_argument("--deep", action="store_true", help="scan the sources again and decode every record")
    add_json(parser)
    parser.epilog = "'ledgerbeam ledger verify' checks the outputs of a job."


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Check every source; prints a line for each that does not pass. Returns 0, or 1 if any did not pass."""
    from ledgerbeam.io import IndexLocation, SourceListing, canonical_url
    from ledgerbeam.io.listing.left_out import LeftOut
    from ledgerbeam.pipelines.console import count, print_json
    from ledgerbeam.pipelines.report.index_check import IndexCheck

    patterns = tuple(map(canonical_url, args.patterns))
    sources_from = canonical_url(args.sources_from) if args.sources_from else None
    location = IndexLocation(root=args.index_root and canonical_url(args.index_root), rule=args.index_rule)
    check = IndexCheck(location, args.group, args.storage_options, args.deep, args.columns)
    checked = records = 0
    problems: list[dict[str, str]] = []
    left_out = LeftOut()
    for url, outcome in check.run(SourceListing(patterns, sources_from, args.storage_options).pages(left_out)):
        checked += 1
        if isinstance(outcome, int):
            records += outcome
            continue
        problems.append({"source": url, "problem": outcome})
        if not args.json:
            print(outcome)
    if args.json:
        counted = {"sources": checked, "records": records, "passed_over": left_out.passed_over}
        print_json({**counted, "problems": problems, "ok": not problems})
    else:
        for line in left_out.lines():
            print(line)
        print(f"{count(checked, 'source')}, {count(records, 'record')}, {count(len(problems), 'problem')}")
    return 1 if problems else 0
