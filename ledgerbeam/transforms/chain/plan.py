"""From patterns to tasks: list sources, skip complete ones, and divide the others into tasks.

`MatchSources` and `SkipCompleted` exchange pages of thousands of sources, so a finished source never becomes a Beam
element of its own. `PlanTasks` divides each source into spans of records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, NamedTuple

from ledgerbeam._base.process import library_logger
from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import canonical_pattern
from ledgerbeam.io.storage.publish import publishing_together
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.ledger import FailedTask, LedgerStore, NoneTask, Source, Task
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.selection import PendingSource, open_packs, open_sources, with_progress
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sources import Cut, Sources, TaskLimits
from ledgerbeam.transforms.chain.base import (
    ChainStep,
    ChainValues,
    Emit,
    LedgerHandle,
    Listing,
    Packer,
    Spread,
    StepWork,
    fatal_errors,
    size_of,
    working_on,
)
from ledgerbeam.transforms.chain.schedule import DrawStep, Planned, PostStep, StreamedTasks, ThreadsBeside

AT_ONCE = 8  # number of sources that a worker divides concurrently
# Number of small local sources that one thread divides in turn, with one publication of their indexes. Concurrent
# threads would compete for the interpreter more than they wait for the disk.
TOGETHER = 8
TOGETHER_BYTES = 1 << 16  # maximum size of a small source
# Ratio of wall time to CPU time from which a thread is assumed to wait for a disk or a network. Other sources are then
# divided concurrently.
_WAITS = 4
BESIDE_BYTES = 1 << 30  # maximum bytes of sources divided concurrently; a worker holds their indexes, a few percent
_log = library_logger(__name__)


class MatchStep(ChainStep):
    """List sources in pages, at the start of the chain: ``p | MatchSources("s3://bucket/**/*.jsonl")``.

    The arguments apply to the whole chain: `PlanTasks` and `ReadTasks` open the sources accordingly, and `WriteTasks`
    names outputs relative to `base`.

    Args:
        patterns: One URL with wildcards, or several.
        sources_from: URL of a file that lists the sources, instead of `patterns`.
        graph: ``module:function`` of an iterator graph, instead of both. Each pass of the graph is a source.
        epochs: Number of passes of the graph.
        base: Folder that output names are relative to. Default: the fixed part of the patterns.
        group: Grouping of tar members into samples: ``auto``, ``pairs`` or ``key``.
        index_root: Root of the tree of index files. Default: each index is beside its source.
        build_index: Whether to index sources that have no index.
        columns: Columns to read from Parquet and Arrow files. Default: all.
        pack: Size of a pack of small sources, in bytes or as ``"64M"``. None makes no packs.
        shar: Whether the patterns are folders of Shar datasets. Their shards are the sources.

    Raises:
        UsageError: If arguments exclude each other.
    """

    elements = Page
    begins = True

    def __init__(
        self,
        patterns: str | Sequence[str] = (),
        *,
        sources_from: str | None = None,
        graph: str | None = None,
        epochs: int = 1,
        base: str | None = None,
        group: Grouping = "auto",
        index_root: str | None = None,
        build_index: bool = True,
        columns: Sequence[str] = (),
        pack: int | str | None = None,
        shar: bool = False,
    ) -> None:
        named = (patterns,) if isinstance(patterns, str) else patterns
        self.patterns = tuple(canonical_pattern(pattern) for pattern in named)
        self.sources_from = canonical_url(sources_from) if sources_from else None
        self.graph = graph
        self.epochs = epochs
        self.base = canonical_url(base).rstrip("/") + "/" if base else None
        self.group = group
        self.index_root = canonical_url(index_root).rstrip("/") if index_root else None
        self.build_index = build_index
        self.columns = tuple(columns)
        self.pack = size_of("MatchSources: pack", pack)
        self.shar = shar
        if sum(map(bool, (self.patterns, self.sources_from, self.graph))) > 1:
            raise UsageError("MatchSources: found several of patterns, sources_from and graph; pass one of them")
        if group not in ("auto", "pairs", "key"):
            raise UsageError(f"MatchSources: group: expected auto, pairs or key, found {group!r}")
        if shar and (pack or self.columns or group != "auto" or not self.patterns):
            raise UsageError("MatchSources: shar reads whole shards; pass folders, and leave out pack, columns, group")

    def make_work(self, values: ChainValues) -> StepWork:
        """Return the work that lists pages. If the launcher or the next step lists sources, it emits an empty page."""
        listing = values.listing if values.open_sources is None and values.packer is None else None
        return Emit(lambda: [Page([], [], [])] if listing is None else _listed(listing), None)

    def display_data(self) -> dict[str, Any]:
        shown = ", ".join(self.patterns) or self.sources_from or self.graph or "those of the job"
        return {"sources": printable(shown)}


def _listed(listing: Listing) -> Iterator[Page]:
    left_out = LeftOut()
    yield from listing.pages(left_out)
    for line in left_out.lines():
        _log.info("%s", line)


class SkipStep(ChainStep):
    """Drop complete sources. Register the other sources as open, and attach their finished tasks.

    Later transforms make no request to the ledger, because each source carries its finished tasks. Workers of the local
    runner also check the ledger before they start a task, a remote one in its local copy.
    """

    elements = PendingSource

    def make_work(self, values: ChainValues) -> StepWork:
        """Return the work that looks up sources in the ledger. If the launcher has done so, it emits the open ones."""
        if values.open_sources is not None:
            return Emit(values.open_sources, values.ledger)
        return _Skip(values.require_ledger(), values.packer, values.listing)


class _Skip(StepWork):
    """Emit the sources that are not complete.

    With packs, this work lists sources itself: a pack can span two pages, and memory cannot hold all pages.
    """

    def __init__(self, ledger: LedgerHandle, pack: Packer | None = None, listing: Listing | None = None) -> None:
        self._ledger = ledger
        self._pack = pack
        self._listing = listing

    def setup(self) -> None:
        with self._ledger.fatal_errors():
            self._ledger.store().refresh()  # an earlier pipeline of this process may have opened it

    def process(self, page: Page) -> Iterator[PendingSource]:
        with self._ledger.fatal_errors():
            store = self._ledger.store()
            for sources, ids in self._opened(page, store):
                pending = with_progress(sources, store)
                self.counters.add("sources_open", len(pending))
                self.counters.add("sources_skipped", len(ids) - len(pending))
                yield from pending

    def _opened(self, page: Page, store: LedgerStore) -> Iterable[tuple[list[Source], Sequence[bytes]]]:
        """Register open sources. Return them, and the IDs of all sources, some sources at a time."""
        if self._pack is None or self._listing is None:
            ids = source_ids(page.urls, page.sizes, page.versions)
            return [(open_sources(ids, page.urls, page.sizes, page.versions, store), ids)]
        members = (
            Source(*row)
            for listed in _listed(self._listing)
            for row in zip(listed.urls, listed.sizes, listed.versions, strict=True)
        )
        return open_packs(self._pack(members), store)


class Planner(ChainStep):
    """A step that divides sources into tasks and spreads sources and tasks over all workers.

    Its input is the output of `SkipCompleted`, or `Source` values. It plans all tasks of a `Source`.
    """

    def parts(self) -> Sequence[tuple[str, ChainStep]]:
        """Return this step, and the steps around it that spread sources and tasks over all workers."""
        spread = "SpreadSources", Spread()
        return [spread, *super().parts(), *PostStep().parts(), ("SpreadTasks", Spread()), *DrawStep().parts()]


class PlanStep(Planner):
    """Divide each source into tasks and skip finished tasks.

    A task is a span of records, or a span of positions of an iterator graph. Sources and tasks are spread over all
    workers: no `Reshuffle` is needed before or after this transform.

    The tasks of a source that must be read in one pass stay together, as `StreamedTasks`. A source without records
    becomes a `NoneTask`, a source that cannot be opened a `FailedTask`. `CommitTasks` records both.

    Args:
        task_bytes: Size of a task, in bytes or as ``"16M"``. Default if neither limit is given: 16 MiB.
        task_records: Maximum number of records of a task.

    Raises:
        UsageError: If a limit is invalid.
    """

    def __init__(self, task_bytes: int | str | None = None, task_records: int | None = None) -> None:
        if task_records is not None and task_records < 1:
            raise UsageError(f"PlanTasks: task_records: expected at least 1, found {task_records}")
        if task_bytes is None and task_records is None:
            task_bytes = "16M"
        self.task_bytes = size_of("PlanTasks: task_bytes", task_bytes)
        self.task_records = task_records

    def make_work(self, values: ChainValues) -> StepWork:
        return _Plan(values.ledger, values.sources, TaskLimits(self.task_bytes, self.task_records))

    def display_data(self) -> dict[str, Any]:
        return {"task_bytes": self.task_bytes or 0, "task_records": self.task_records or 0}


class _Planning(NamedTuple):
    """A group of sources that another thread divides. They are marked as in progress meanwhile."""

    sources: list[PendingSource]
    cuts: Future[tuple[list[Cut | FailedTask], bool]]  # see `_cut_all`
    marked: ExitStack


class _Plan(StepWork):
    """Divide sources, several concurrently, because each waits for requests or for disk syncs."""

    def __init__(self, ledger: LedgerHandle | None, sources: Sources, limits: TaskLimits) -> None:
        self._ledger = ledger
        self._sources = sources
        self._limits = limits
        self._threads = ThreadsBeside(AT_ONCE, "ledgerbeam-plan", "index")
        self._begun: deque[_Planning] = deque()
        self._small: list[PendingSource] = []  # waiting for a full group
        self._waited = False  # whether the last group waited

    def start_bundle(self) -> None:
        self._small = []
        while self._begun:  # left by a failed bundle
            self._begun.popleft().marked.close()

    def process(self, element: PendingSource | Source) -> Iterator[Planned]:
        source = PendingSource.of(element)
        if source.has_quarantined(_whole(source)):
            return
        if not self._waits(source):
            yield from self._ended()
            with working_on(self._ledger, [_whole(source)]), timed("index"), fatal_errors(self._ledger):
                cut = self._cut(source)
            yield from self._tasks(source, cut)
        elif is_local(source.source.url) and source.source.size <= TOGETHER_BYTES:
            self._small.append(source)
            if len(self._small) == TOGETHER:
                yield from self._begin_small()
        else:
            yield from self._begin_small()
            yield from self._begin([source])

    def finish_bundle(self) -> Iterator[Planned]:
        return self._ended()

    def teardown(self) -> None:
        self._threads.close()

    def _waits(self, pending: PendingSource) -> bool:
        """Return whether to divide a source in a thread: it waits for a store or disk, and no worker has died at it."""
        source = pending.source
        if pending.attempts:
            return False
        try:
            return self._sources.kind_of(source).cut_waits
        except LedgerbeamError:  # raised again when the source is divided, and recorded then
            return False

    def _begin_small(self) -> Iterator[Planned]:
        """Start to divide the gathered small sources. If the last group mostly computed, finish all groups first."""
        small, self._small = self._small, []
        if small:
            if not self._waited:
                yield from self._until(0)
            yield from self._begin(small)

    def _begin(self, sources: list[PendingSource]) -> Iterator[Planned]:
        """Start to divide sources in another thread. If the threads have too many, first finish earlier ones."""
        yield from self._until(AT_ONCE - 1, BESIDE_BYTES - _size_of(sources))
        marked = ExitStack()
        marked.enter_context(working_on(self._ledger, [*map(_whole, sources)]))
        self._begun.append(_Planning(sources, self._threads.submit(self._cut_all, sources), marked))

    def _ended(self) -> Iterator[Planned]:
        """Divide all remaining sources to the end, and yield their tasks."""
        yield from self._begin_small()
        yield from self._until(0)

    def _until(self, left: int, size: int = BESIDE_BYTES) -> Iterator[Planned]:
        """Yield the tasks of the oldest sources until at most `left` groups and `size` bytes are being divided."""
        while self._begun and (len(self._begun) > left or sum(_size_of(begun.sources) for begun in self._begun) > size):
            begun = self._begun.popleft()
            with begun.marked, timed("index"), fatal_errors(self._ledger):
                cuts, self._waited = begun.cuts.result()
            for source, cut in zip(begun.sources, cuts, strict=True):
                yield from self._tasks(source, cut)

    def _tasks(self, source: PendingSource, cut: Cut | FailedTask) -> Iterator[Planned]:
        if isinstance(cut, FailedTask):
            self.counters.add("tasks_planned")
            yield cut
            return
        if not cut.spans:
            self.counters.add("tasks_planned")
            yield NoneTask(_whole(source))
            return
        tasks = cut.tasks()
        left = [
            number for number, task in enumerate(tasks) if not (source.has_quarantined(task) or source.has_done(task))
        ]
        self.counters.add("tasks_planned", len(left))
        self.counters.add("tasks_skipped", len(tasks) - len(left))
        if cut.stream is None:
            yield from (tasks[number] for number in left)
        elif left:
            places = cut.stream.places
            yield StreamedTasks(
                tuple(tasks[number] for number in left), tuple(places[number] for number in left), cut.stream.format
            )

    def _cut_all(self, sources: list[PendingSource]) -> tuple[list[Cut | FailedTask], bool]:
        """Divide sources; return the results in order, and whether the thread mostly waited for disk or store."""
        began, worked = time.monotonic(), time.thread_time()
        try:
            with publishing_together():
                cuts = [self._cut(source) for source in sources]
        except LedgerbeamError:  # divide each alone, to find the source of the error
            cuts = [self._cut(source) for source in sources]
        return cuts, time.monotonic() - began > _WAITS * (time.thread_time() - worked)

    def _cut(self, source: PendingSource) -> Cut | FailedTask:
        """Return the spans of a source, or a `FailedTask` if it cannot be divided."""
        try:
            return self._sources.kind_of(source.source).cut(source.source, self._limits, changed=source.replaces)
        except (DiskFullError, LedgerError):  # the fault of the job; any other error is the fault of the source
            raise
        except LedgerbeamError as error:
            return FailedTask(_whole(source), type(error).__name__, str(error))


def _size_of(sources: Iterable[PendingSource]) -> int:
    return sum(source.source.size for source in sources)


def _whole(source: PendingSource) -> Task:
    return Task(source.source, 0, 0)
