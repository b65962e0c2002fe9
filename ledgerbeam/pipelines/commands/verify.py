"""``ledgerbeam verify``: do the indexes fit their sources?"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from ledgerbeam.errors import IndexMismatchError, LedgerbeamError
from ledgerbeam.io import FileInfo, Format, IndexFile, IndexLocation, Tar, build_index, canonical_url, recognize, stat
from ledgerbeam.pipelines.console import print_json
from ledgerbeam.pipelines.jobs.spec import source_listing

__all__ = ["main", "verify_source"]

DEEP_CHUNK_RECORDS = 10_000


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Checks every source; prints a line for each that does not pass. Returns 0, or 1 if any did not pass."""
    location = IndexLocation(root=args.index_root and canonical_url(args.index_root), rule=args.index_rule)
    checked = records = 0
    problems: list[dict[str, str]] = []

    def check(url: str) -> int | str:
        try:
            return verify_source(url, location, args)
        except LedgerbeamError as error:
            return str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sources = (url for page in source_listing(args).pages() for url in page.urls)
        while chunk := list(islice(sources, 1000)):
            for url, outcome in zip(chunk, pool.map(check, chunk), strict=True):
                checked += 1
                if isinstance(outcome, str):
                    problems.append({"source": url, "problem": outcome})
                    if not args.json:
                        print(outcome)
                else:
                    records += outcome
    if args.json:
        print_json({"sources": checked, "records": records, "problems": problems, "ok": not problems})
    else:
        print(f"{checked:,} sources, {records:,} records, {len(problems):,} problems")
    return 1 if problems else 0


def verify_source(url: str, location: IndexLocation, args: argparse.Namespace) -> int:
    """Checks one source's index and returns its number of records.

    Raises:
        IndexNotFoundError: If it has no index.
        IndexMismatchError: If the index does not fit; with ``--deep``, if a fresh scan gives other offsets.
        SourceError: With ``--deep``, if a record does not decode.
    """
    kind = recognize(url, [Tar(args.group)]).by_position()
    source = stat(url, args.storage_options)
    index = kind.index_file(source.url, location, args.storage_options)
    kind.check_index(index, source, deep=args.deep)
    if args.deep:
        _verify_content(kind, index, source, args)
    return index.count


def _verify_content(kind: Format, index: IndexFile, source: FileInfo, args: argparse.Namespace) -> None:
    if kind.is_indexable:
        _verify_offsets(kind, index, source, args)
    reader = kind.open(source.url, index, args.storage_options, check=False)
    for start in range(0, index.count, DEEP_CHUNK_RECORDS):
        reader.read_span(start, min(start + DEEP_CHUNK_RECORDS, index.count))


def _verify_offsets(kind: Format, index: IndexFile, source: FileInfo, args: argparse.Namespace) -> None:
    found = index.load()
    expected = build_index(source.url, args.storage_options, configured=[kind])
    # The sentinel may lie anywhere in the padding that ends a tar; check_index has judged it.
    if not np.array_equal(expected[:-1], found[:-1]):
        shared = min(len(expected), len(found)) - 1
        differs = np.flatnonzero(expected[:shared] != found[:shared])
        first = int(differs[0]) if len(differs) else shared
        raise IndexMismatchError(
            f"{index.url}: does not fit {source.url}: record {first} of {len(found) - 1:,} lies elsewhere in a fresh "
            f"scan of {len(expected) - 1:,} records; index it again with: ledgerbeam index --force {source.url}"
        )
