"""Reading whole tables in pages: no transaction outlives a page, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

from ledgerbeam.ledger.lmdb_environment import Environment

PAGE_ROWS = 10_000
"""Rows of a page."""


def row_pages(environment: Environment, table: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield all rows of a table in key order, in pages.

    Each page is consistent in itself. A row that is written or deleted meanwhile may be seen or not.
    """
    start = b""
    while True:
        with environment.read() as txn:
            page = txn.page(table, start, PAGE_ROWS)
        if not page:
            return
        yield page
        start = page[-1][0] + b"\0"  # the least key behind the last
        environment.trim()


def key_pages(environment: Environment, table: str, rows: int = PAGE_ROWS) -> Iterator[list[bytes]]:
    """Yield all keys of a table in order, in pages of `rows`; see `row_pages`."""
    start = b""
    while True:
        with environment.read() as txn:
            page = txn.page_of_keys(table, start, rows)
        if not page:
            return
        yield page
        start = page[-1] + b"\0"
        environment.trim()
