"""Look-up of the sources of a listing that have work left, page by page; and requests for audits of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import NamedTuple

from ledgerbeam.ledger.model.counting import is_done
from ledgerbeam.ledger.model.rows import Output
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS, LedgerStore
from ledgerbeam.ledger.model.task import Source, Task

PACKS_A_PAGE, MEMBERS_A_PAGE = 1000, 100_000


@dataclass(frozen=True, slots=True)
class PendingSource:
    """A source that has work left, with the recorded state of its tasks."""

    source: Source
    # Deltas of its recorded tasks by node; see `LedgerStore.applied`.
    applied: Mapping[bytes, int] = field(default_factory=dict)
    attempts: Mapping[bytes, int] = field(default_factory=dict)  # worker deaths by node; see `LedgerStore.attempts`
    replaces: bool = False  # whether the content at its URL has changed since this job registered the URL before

    @classmethod
    def of(cls, element: PendingSource | Source) -> PendingSource:
        """Return `element` as a pending source. A plain `Source` becomes one without finished tasks."""
        return element if isinstance(element, PendingSource) else cls(element)

    def has_done(self, task: Task) -> bool:
        """Return whether `task` and all tasks that it fanned out into are finished."""
        return bool(self.applied) and is_done(task.lineage, self.source.id, self.applied)

    def has_quarantined(self, task: Task) -> bool:
        """Return whether `task` must not be started again because its workers died too often."""
        return bool(self.attempts) and self.attempts.get(task.node, 0) >= MAX_ATTEMPTS


def with_progress(sources: Sequence[Source], store: LedgerStore) -> list[PendingSource]:
    """Return registered sources with their state in `store`, in order.

    A source that another process has completed meanwhile is left out: its entries were deleted, so it would look like a
    source without finished tasks.
    """
    known = store.progress([source.id for source in sources])
    return [
        PendingSource(source, *progress)
        for source, progress in zip(sources, known, strict=True)
        if progress is not None
    ]


def open_sources(
    ids: Sequence[bytes], urls: Sequence[str], sizes: Sequence[int], versions: Sequence[str], store: LedgerStore
) -> list[Source]:
    """Register the sources of a page that are not complete, and return them in order.

    The page is given as columns of equal length, so that complete sources need no `Source` objects.
    """
    complete = store.completed_mask(ids)
    if all(complete):
        return []
    sources = [Source(*row) for row in compress(zip(urls, sizes, versions, strict=True), map(not_, complete))]
    store.register(sources)
    return sources


def open_packs(packs: Iterable[Source], store: LedgerStore) -> Iterator[tuple[list[Source], list[bytes]]]:
    """Register the packs that are not complete, page by page.

    Yield these packs of each page, in order, and the ids of all packs of the page.
    """
    for page in _pages(packs):
        ids = [pack.id for pack in page]
        sources = list(compress(page, map(not_, store.completed_mask(ids))))
        store.register(sources)
        yield sources, ids


def _pages(packs: Iterable[Source]) -> Iterator[list[Source]]:
    """Gather packs into pages whose members fit into memory."""
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


@dataclass(frozen=True)
class AuditRequest:
    """A request to audit one finished task of a source."""

    source: PendingSource
    is_complete: bool
    outputs: tuple[Output, ...]
    audited: frozenset[bytes] = frozenset()  # nodes of the tasks that were audited before
    newest: bool = False  # whether to take the last finished task of the source; else the first
    # Longest time for mapping records. At least one record is mapped. None maps all records of the task.
    seconds: float | None = None
    isolated: bool = False  # whether to call user code in another process, because it ends its process


class AuditAnswer(NamedTuple):
    """The result of an audit."""

    node: bytes | None = None  # the audited task; None if the source has no task left to audit
    difference: str = ""  # how its results differ; empty if they are the same
    problem: str = ""  # why the task could not be computed again; empty if it could
