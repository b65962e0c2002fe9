"""From sources to tasks: `PlanTasks` cuts each source into spans of records and leaves out finished ones."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, UsageError
from ledgerbeam.io.storage.publish import publishing_together
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.stopwatch import timed
from ledgerbeam.ledger.worker.task_budget import TaskBudget
from ledgerbeam.sources import Cut, Sources, TaskLimits
from ledgerbeam.transforms.chain.base import ChainTransform, ChainValues, size_of
from ledgerbeam.transforms.chain.schedule import DrawTasks, Planned, PostTasks, StreamedTasks
from ledgerbeam.transforms.chain.overlap import ThreadsBeside
from ledgerbeam.transforms.chain.worker import LedgerHandle, fatal_errors

AT_ONCE = 8
"""Sources that a worker cuts at once."""

TOGETHER = 8
"""Small local sources that one thread cuts one after the other, and publishes the indexes of together. Threads side by
side would take the interpreter from each other more often than they wait for a disk."""

TOGETHER_BYTES = 1 << 16
"""Size of a small source, at most."""

_WAITS = 4
"""From this ratio of seconds to seconds of processors on, what cuts small sources waits for a disk, or for a network
behind it: others are cut beside them."""

BESIDE_BYTES = 1 << 30
"""Size of such sources together, at most: of each a worker holds the index, some hundredths of that."""


class Planner(ChainTransform):
    """A transform that cuts sources into tasks. Both are spread over all workers."""

    def expand(self, elements: Any) -> Any:
        """Apply the transform to what `SkipCompleted` returns, or to plain `Source` values: of those all is planned."""
        planned = super().expand(elements | "SpreadSources" >> beam.Reshuffle())
        return planned | LimitTasks() | PostTasks() | "SpreadTasks" >> beam.Reshuffle() | DrawTasks()


class PlanTasks(Planner):
    """Cuts each source into tasks, spans of records or of places of a graph, and leaves out finished ones.

    Sources and tasks are spread over all workers: a `Reshuffle` before or after this transform is not needed.

    The tasks of a source that is read in one pass stay together, as `StreamedTasks`. A source without records becomes
    one `NoneTask`, a source that cannot be opened one `FailedTask`. Both pass through the rest of the chain to the
    ledger.

    Args:
        task_bytes: Size of a task, in bytes or as ``"16M"``, which it is if neither limit is given.
        task_records: Records of a task, at most.

    Raises:
        UsageError: If a limit cannot mean anything.
    """

    def __init__(self, task_bytes: int | str | None = None, task_records: int | None = None) -> None:
        super().__init__()
        if task_records is not None and task_records < 1:
            raise UsageError(f"PlanTasks: task_records: expected at least 1, found {task_records}")
        if task_bytes is None and task_records is None:
            task_bytes = "16M"
        self.task_bytes = size_of("PlanTasks: task_bytes", task_bytes)
        self.task_records = task_records

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what cuts the sources."""
        return _Plan(values.ledger, values.sources, TaskLimits(self.task_bytes, self.task_records))

    def display_data(self) -> dict[str, Any]:
        """Show the task limits in a runner's console."""
        return {"task_bytes": self.task_bytes or 0, "task_records": self.task_records or 0}


class _Cuts(NamedTuple):
    """What was made of sources, in their order, and whether that was mostly waiting."""

    cuts: list[Cut | FailedTask]
    waited: bool


class _Planning(NamedTuple):
    """Sources that are being cut in another thread, marked as in work meanwhile."""

    sources: list[PendingSource]
    cuts: Future[_Cuts]
    marked: ExitStack

    @property
    def size(self) -> int:
        return _size_of(self.sources)


class _Plan(beam.DoFn):
    """Cuts sources, several at once: each takes some requests or some syncs of a disk, and waits for them."""

    def __init__(self, ledger: LedgerHandle | None, sources: Sources, limits: TaskLimits) -> None:
        self._ledger = ledger
        self._sources = sources
        self._limits = limits
        self._planned = Metrics.counter("ledgerbeam", "tasks_planned")
        self._skipped = Metrics.counter("ledgerbeam", "tasks_skipped")
        self._threads = ThreadsBeside(AT_ONCE, "ledgerbeam-plan", "index")
        self._begun: deque[_Planning] = deque()
        self._small: list[PendingSource] = []  # that are cut together, once there are enough of them
        self._waited = False  # what was cut last

    def start_bundle(self) -> None:
        self._small = []
        while self._begun:  # of a bundle that failed
            self._begun.popleft().marked.close()

    def process(self, element: PendingSource | Source) -> Iterator[Planned]:
        source = PendingSource.of(element)
        if source.has_quarantined(_whole(source)):
            return
        if not self._waits(source):
            yield from self._ended()
            with self._working_on([source]), timed("index"), fatal_errors(self._ledger):
                cut = self._cut(source)
            yield from self._tasks(source, cut)
        elif is_local(source.source.url) and source.source.size <= TOGETHER_BYTES:
            self._small.append(source)
            if len(self._small) == TOGETHER:
                yield from self._begin_small()
        else:
            yield from self._begin_small()
            yield from self._begin([source])

    def finish_bundle(self) -> list[WindowedValue]:
        return [GlobalWindows.windowed_value(planned) for planned in self._ended()]

    def teardown(self) -> None:
        self._threads.close()

    def _waits(self, pending: PendingSource) -> bool:
        """Return whether a source waits for a store or a disk, and no worker has died of it."""
        source = pending.source
        if pending.attempts:
            return False
        try:
            return self._sources.kind_of(source).cut_waits
        except LedgerbeamError:  # recorded in its turn
            return False

    def _begin_small(self) -> Iterator[Planned]:
        """Begin to cut the small sources: beside others if these wait, else once they are done."""
        small, self._small = self._small, []
        if small:
            if not self._waited:
                yield from self._until(0)
            yield from self._begin(small)

    def _begin(self, sources: list[PendingSource]) -> Iterator[Planned]:
        """Begin to cut sources in another thread, once there is room; yield the tasks of those that made it."""
        yield from self._until(AT_ONCE - 1, BESIDE_BYTES - _size_of(sources))
        marked = ExitStack()
        marked.enter_context(self._working_on(sources))
        self._begun.append(_Planning(sources, self._threads.submit(self._cut_all, sources), marked))

    def _ended(self) -> Iterator[Planned]:
        """Yield the tasks of all sources that were begun, or wait to be."""
        yield from self._begin_small()
        yield from self._until(0)

    def _until(self, left: int, size: int = BESIDE_BYTES) -> Iterator[Planned]:
        """Yield the tasks of the sources that were begun first, until at most so many threads, and bytes, are left."""
        while self._begun and (len(self._begun) > left or sum(begun.size for begun in self._begun) > size):
            begun = self._begun.popleft()
            with begun.marked, timed("index"), fatal_errors(self._ledger):
                cuts, self._waited = begun.cuts.result()
            for source, cut in zip(begun.sources, cuts, strict=True):
                yield from self._tasks(source, cut)

    def _tasks(self, source: PendingSource, cut: Cut | FailedTask) -> Iterator[Planned]:
        if isinstance(cut, FailedTask):
            self._planned.inc()
            yield cut
            return
        if not cut.spans:
            self._planned.inc()
            yield NoneTask(_whole(source))
            return
        tasks = cut.tasks()
        left = [
            number for number, task in enumerate(tasks) if not (source.has_quarantined(task) or source.has_done(task))
        ]
        self._planned.inc(len(left))
        self._skipped.inc(len(tasks) - len(left))
        if cut.stream is None:
            yield from (tasks[number] for number in left)
        elif left:
            places = cut.stream.places
            yield StreamedTasks(
                tuple(tasks[number] for number in left), tuple(places[number] for number in left), cut.stream.format
            )

    def _working_on(self, sources: Iterable[PendingSource]) -> AbstractContextManager[None]:
        return nullcontext() if self._ledger is None else self._ledger.working_on([*map(_whole, sources)])

    def _cut_all(self, sources: list[PendingSource]) -> _Cuts:
        began, worked = time.monotonic(), time.thread_time()
        try:
            with publishing_together():
                cuts = [self._cut(source) for source in sources]
        except LedgerbeamError:  # each by itself says which of them it is of
            cuts = [self._cut(source) for source in sources]
        return _Cuts(cuts, time.monotonic() - began > _WAITS * (time.thread_time() - worked))

    def _cut(self, source: PendingSource) -> Cut | FailedTask:
        """Return the source in spans, or what its failure is recorded as."""
        if self._ledger is not None:
            self._ledger.wait_for_index(source.source)
        try:
            kind = self._sources.kind_of(source.source)
            return kind.cut(source.source, self._limits, changed=source.replaces)
        except (DiskFullError, LedgerError):  # these end the job; whatever else is wrong is the source's
            raise
        except LedgerbeamError as error:
            return FailedTask(_whole(source), type(error).__name__, str(error))


def _size_of(sources: Iterable[PendingSource]) -> int:
    return sum(source.source.size for source in sources)


def _whole(source: PendingSource) -> Task:
    return Task(source.source, 0, 0)


class LimitTasks(ChainTransform):
    """Lets as many planned tasks pass as the run may do, and drops the others: they stay open."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what counts the tasks."""
        return _Limit(values.budget, values.ledger)


class _Limit(beam.DoFn):
    def __init__(self, budget: TaskBudget | None, ledger: LedgerHandle | None) -> None:
        self._budget = budget
        self._ledger = ledger

    def process(self, element: Any) -> Iterator[Planned]:
        if self._budget is None:
            yield element
        elif not isinstance(element, StreamedTasks):
            if self._claimed(self._budget, 1):
                yield element
        elif granted := self._claimed(self._budget, len(element.tasks)):
            yield dataclasses.replace(element, tasks=element.tasks[:granted], spans=element.spans[:granted])

    def _claimed(self, budget: TaskBudget, tasks: int) -> int:
        with fatal_errors(self._ledger):
            return budget.claim(tasks)
