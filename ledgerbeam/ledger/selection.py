"""Which sources of a listing still have work left: looked up in bulk, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_

from ledgerbeam.ledger.model.counting import is_done
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS, LedgerStore
from ledgerbeam.ledger.model.task import Source, Task

PACKS_A_PAGE, MEMBERS_A_PAGE = 1000, 100_000


@dataclass(frozen=True, slots=True)
class PendingSource:
    """A source that has work left, with what the ledger knows of its tasks.

    Attributes:
        source: The source.
        applied: Deltas of its recorded tasks by node; see `LedgerStore.applied`.
        attempts: Worker deaths by node; see `LedgerStore.attempts`.
        replaces: Whether what lies at its URL has changed since this job entered it before.
    """

    source: Source
    applied: Mapping[bytes, int] = field(default_factory=dict)
    attempts: Mapping[bytes, int] = field(default_factory=dict)
    replaces: bool = False

    @classmethod
    def of(cls, element: PendingSource | Source) -> PendingSource:
        """Return an open source as it is, and a plain one as a source of which nothing is done."""
        return element if isinstance(element, PendingSource) else cls(element)

    def has_done(self, task: Task) -> bool:
        """Return whether `task` and all that grew from it is finished."""
        return bool(self.applied) and is_done(task.lineage, self.source.id, self.applied)

    def has_quarantined(self, task: Task) -> bool:
        """Return whether `task` is not to be started any more, since its workers died too often."""
        return bool(self.attempts) and self.attempts.get(task.node, 0) >= MAX_ATTEMPTS


def with_progress(sources: Sequence[Source], store: LedgerStore) -> list[PendingSource]:
    """Return registered sources with what `store` knows of them, in order.

    A source that another process has completed since it was found open is left out: its entries are gone with it, so
    it would look as if nothing of it were done.
    """
    known = store.progress([source.id for source in sources])
    return [
        PendingSource(source, *progress)
        for source, progress in zip(sources, known, strict=True)
        if progress is not None
    ]


def open_sources(
    ids: Sequence[bytes],
    urls: Sequence[str],
    sizes: Sequence[int],
    versions: Sequence[str],
    store: LedgerStore,
) -> list[Source]:
    """Return the sources of a page that the ledger does not hold as complete, registered as open, in order.

    No Python object is made of a finished source but its id.

    Args:
        ids: The result of `identity.source_ids` for the columns that follow.
        urls: Canonical URLs.
        sizes: Sizes in bytes.
        versions: ETags, generations or modification times.
        store: The job's ledger.
    """
    complete = store.completed_mask(ids)
    if all(complete):
        return []
    sources = [Source(*row) for row in compress(zip(urls, sizes, versions, strict=True), map(not_, complete))]
    store.register(sources)
    return sources


def open_packs(packs: Iterable[Source], store: LedgerStore) -> Iterator[tuple[list[Source], list[bytes]]]:
    """Yield the composite sources that the ledger does not hold as complete, registered as open.

    Yields:
        Pairs of open composite sources, in order, and the ids of all packs among which they were found.
    """
    for page in _pages(packs):
        ids = [pack.id for pack in page]
        sources = list(compress(page, map(not_, store.completed_mask(ids))))
        store.register(sources)
        yield sources, ids


def _pages(packs: Iterable[Source]) -> Iterator[list[Source]]:
    """Gather packs into pages, of which the members fit into memory."""
    page: list[Source] = []
    members = 0
    for pack in packs:
        page.append(pack)
        members += len(pack.members)
        if len(page) == PACKS_A_PAGE or members >= MEMBERS_A_PAGE:
            yield page
            page, members = [], 0
    if page:
        yield page
