"""From sources to tasks: `PlanTasks` cuts each source into spans of records and leaves out finished ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, UsageError
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.stopwatch import timed
from ledgerbeam.ledger.worker.task_budget import TaskBudget
from ledgerbeam.sources import Cut, Sources, TaskLimits
from ledgerbeam.transforms._worker import LedgerHandle, fatal_errors
from ledgerbeam.transforms.chain import ChainTransform, ChainValues, size_of
from ledgerbeam.transforms.draw import DrawTasks, PostTasks, StreamedTasks

__all__ = ["PlanTasks", "Planner", "StreamedTasks"]


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


class _Plan(beam.DoFn):
    def __init__(self, ledger: LedgerHandle | None, sources: Sources, limits: TaskLimits) -> None:
        self._ledger = ledger
        self._sources = sources
        self._limits = limits
        self._planned = Metrics.counter("ledgerbeam", "tasks_planned")
        self._skipped = Metrics.counter("ledgerbeam", "tasks_skipped")

    def process(self, element: PendingSource | Source) -> Iterator[Task | NoneTask | FailedTask | StreamedTasks]:
        source = PendingSource.of(element)
        whole = Task(source.source, 0, 0)
        if source.has_quarantined(whole):
            return
        cut, failed = self._cut(source, whole)
        if failed is not None:
            self._planned.inc()
            yield failed
            return
        if not cut.spans:
            self._planned.inc()
            yield NoneTask(whole)
            return
        tasks = list(_tasks(cut))
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

    def _cut(self, source: PendingSource, whole: Task) -> tuple[Cut, FailedTask | None]:
        """Return the source in spans, and what its failure is recorded as, if it could not be cut."""
        with timed("index"), ExitStack() as stack:
            if self._ledger is not None:
                stack.enter_context(self._ledger.fatal_errors())
                stack.enter_context(self._ledger.working_on([whole]))
            try:
                kind = self._sources.kind_of(source.source)
                return kind.cut(source.source, self._limits, changed=source.replaces), None
            except (DiskFullError, LedgerError):  # these end the job; whatever else is wrong is the source's
                raise
            except LedgerbeamError as error:
                return Cut(source.source, []), FailedTask(whole, type(error).__name__, str(error))


class LimitTasks(ChainTransform):
    """Lets as many planned tasks pass as the run may do, and drops the others: they stay open."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what counts the tasks."""
        return _Limit(values.budget, values.ledger)


class _Limit(beam.DoFn):
    def __init__(self, budget: TaskBudget | None, ledger: LedgerHandle | None) -> None:
        self._budget = budget
        self._ledger = ledger

    def process(self, element: Any) -> Iterator[Task | NoneTask | FailedTask | StreamedTasks]:
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


def _tasks(cut: Cut) -> Iterator[Task]:
    for ordinal, (start, stop) in enumerate(cut.spans):
        yield Task(cut.source, start, stop, ((ordinal, len(cut.spans)),))
