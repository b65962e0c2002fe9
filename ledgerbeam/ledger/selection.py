"""Which sources of a listing still owe work: looked up in bulk, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice

from ledgerbeam.ledger.packing import pack_sources
from ledgerbeam.ledger.store import LedgerStore
from ledgerbeam.ledger.task import Source

__all__ = ["open_packs", "open_sources"]

PACKS_A_PAGE = 1000


def open_sources(
    ids: Sequence[bytes],
    urls: Sequence[str],
    sizes: Sequence[int],
    versions: Sequence[str],
    store: LedgerStore,
) -> list[Source]:
    """Returns the sources of a page that the ledger does not hold as complete, registered as open, in order.

    No Python object is made of a finished source but its id.

    Args:
        ids: What `identity.source_ids` gives for the columns that follow.
        urls: Canonical URLs.
        sizes: Sizes in bytes.
        versions: ETags, generations or modification times.
        store: The job's ledger.
    """
    owing = ~store.completed_mask(ids)
    if not owing.any():
        return []
    sources = [Source(*row) for row in compress(zip(urls, sizes, versions, strict=True), owing)]
    store.register(sources)
    return sources


def open_packs(
    members: Iterable[Source], target_bytes: int, store: LedgerStore
) -> Iterator[tuple[list[Source], list[bytes]]]:
    """Packs a listing and yields the packs that the ledger does not hold as complete, registered as open.

    Yields:
        Pairs of open composite sources, in order, and the ids of all packs among which they were found.
    """
    packs = pack_sources(members, target_bytes)
    while chunk := list(islice(packs, PACKS_A_PAGE)):
        ids = [pack.id for pack in chunk]
        sources = list(compress(chunk, ~store.completed_mask(ids)))
        store.register(sources)
        yield sources, ids
