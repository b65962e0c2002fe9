"""Which sources of a ledger are no longer what they were: asked of the stores that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.graphs import GRAPH_SCHEME
from ledgerbeam.io import Options, is_local, stat
from ledgerbeam.io.storage import CONCURRENCY
from ledgerbeam.ledger import LedgerStore, SourceRow, pack_id, source_id
from ledgerbeam.pipelines.report import counting

__all__ = ["ChangedSource", "changed_sources"]

PAGE_SOURCES = 1000


@dataclass(frozen=True)
class ChangedSource:
    """A source that the next run finds changed.

    Attributes:
        url: Of the source; of a pack that of its first member.
        problem: ``changed``: another size or version lies there; ``missing``: nothing does.
    """

    url: str
    problem: Literal["changed", "missing"]


def changed_sources(store: LedgerStore, options: Options) -> Iterator[ChangedSource]:
    """Looks at every source that the last listing had: one system call or request each, 16 requests at a time.

    Raises:
        StorageError: If a store cannot be asked.
        UsageError: If the sources are passes of a graph.
    """
    rows = (row for row in store.sources() if row.state != "gone")
    with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-stat") as pool, counting("sources") as advance:
        while page := list(islice(rows, PAGE_SOURCES)):
            remote = not all(is_local(row.url) for row in page)
            found = pool.map(lambda row: _look(row, options), page) if remote else (_look(row, options) for row in page)
            yield from _problems(page, list(found))
            advance(len(page), 0)


def _problems(rows: Sequence[SourceRow], ids: Sequence[bytes | None]) -> Iterator[ChangedSource]:
    for row, now in zip(rows, ids, strict=True):
        if now != row.source_id:
            yield ChangedSource(row.url, "missing" if now is None else "changed")


def _look(row: SourceRow, options: Options) -> bytes | None:
    """Returns the id that the source has as it is now, or None if a part of it is missing."""
    if row.url.startswith(GRAPH_SCHEME):
        raise UsageError(
            f"{row.url}: a pass of a graph, whose data only the code that builds it knows; run the job again: what has "
            "changed is a new source then"
        )
    try:
        ids = [source_id(now.url, now.size, now.version) for now in (stat(url, options) for url in _urls(row))]
    except SourceNotFoundError:
        return None
    return pack_id(ids) if row.member_urls else ids[0]


def _urls(row: SourceRow) -> tuple[str, ...]:
    return row.member_urls or (row.url,)
