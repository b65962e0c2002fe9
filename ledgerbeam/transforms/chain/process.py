"""User functions over tasks: `ProcessTask` returns 0, 1 or several tasks for one task, `ProcessBatch` N for N.

Other results of a function are refused: the ledger could not trace an output to its source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from ledgerbeam import stats
from ledgerbeam._base.process import hold_standard_descriptors
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.answers import in_job
from ledgerbeam.errors import LedgerbeamError, UnsupportedShapeError, UsageError
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answers import answers_beside
from ledgerbeam.ledger.model.accounts import Statistic, read_shares
from ledgerbeam.ledger.summaries import joined_statistics
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.ledger.worker.run_folders import ALL_TASKS
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.transforms.chain.base import (
    TASKS,
    ChainStep,
    ChainValues,
    LedgerHandle,
    StepWork,
    fatal_errors,
    working_on,
)
from ledgerbeam.transforms.chain.schedule import this_overlap
from ledgerbeam.user_code.guards import describe_error, failed_by, is_interrupt, running_user_code
from ledgerbeam.user_code.objects import take_set_ups

TaskResult = Task | NoneTask | FailedTask


@dataclass
class ProcessStep(ChainStep):
    """Apply a function to each task.

    Attributes:
        function: Takes a `Task`. Returns the task with other records (``task.replace(records=...)``), None or
            ``NoneTask(task, reason)`` to filter it, ``FailedTask(task, reason)`` to retry it in the next run, or the
            list of ``task.fan_out(lists_of_records)``. An exception makes the task a `FailedTask`. Statistics of
            `ledgerbeam.stats` are recorded with the task; if it fans out, with its first child. Optional attributes of
            the function, as of `MapRecords`: ``set_up()`` is called in each worker process before the first task;
            ``with_storage_options(options)`` returns a function that uses the options of the pipeline;
            ``takes_blocks``, if true, passes records as `sources.forms.RecordBlocks`.
    """

    elements = TASKS

    function: Callable[[Task], TaskResult | Sequence[Task] | None]

    @property
    def takes_blocks(self) -> bool:  # type: ignore[override]
        """Whether the function takes records as `sources.forms.RecordBlocks` instead of lists."""
        return bool(getattr(self.function, "takes_blocks", False))

    def make_work(self, values: ChainValues) -> StepWork:
        take_options = getattr(self.function, "with_storage_options", None)
        function = self.function if take_options is None else take_options(values.storage_options)
        return _Process(function, values.ledger)

    def display_data(self) -> dict[str, Any]:
        return {"function": _name(self.function)}


@dataclass
class BatchStep(ChainStep):
    """Apply a function to batches of tasks. Each result belongs to the task at its position.

    Attributes:
        function: Takes a list of tasks and returns a list of the same length. Each item is the task at the same
            position with other records, its `NoneTask` or None, or its `FailedTask`. The function cannot use
            `ledgerbeam.stats`, because a value would belong to no single task.
        batch_size: Maximum number of tasks in a batch. The last batch of a bundle may be smaller.
    """

    elements = TASKS

    function: Callable[[list[Task]], Sequence[TaskResult | None]]
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"ProcessBatch: batch_size: expected at least 1, found {self.batch_size}")

    def make_work(self, values: ChainValues) -> StepWork:
        return _Batch(self.function, self.batch_size, values.ledger)

    def display_data(self) -> dict[str, Any]:
        return {"function": _name(self.function), "batch_size": self.batch_size}


def check_result(task: Task, result: TaskResult | Sequence[Task] | None, function: str) -> list[TaskResult]:
    """Return a function's result for one task as a list of results.

    Raises UnsupportedShapeError for a result that cannot be traced to the task.
    """
    if result is None:
        return [NoneTask(task)]
    if isinstance(result, Task | NoneTask | FailedTask):
        check_slot(task, result, function)
        return [result]
    if not isinstance(result, list | tuple) or not all(isinstance(child, Task) for child in result):
        raise UnsupportedShapeError(
            f"{function} returned {_describe(result)} for {task.name}: expected a Task, None, NoneTask, FailedTask or "
            "the list of task.fan_out(...), so that each output can be traced to its source"
        )
    if not result:
        return [NoneTask(task)]
    expected = [(*task.lineage, (ordinal, len(result))) for ordinal in range(len(result))]
    if any(child.source.id != task.source.id for child in result) or [c.lineage for c in result] != expected:
        raise UnsupportedShapeError(
            f"{function} returned a list of {len(result)} for {task.name}: expected the list of task.fan_out(...), in "
            "its order; make it with task.fan_out(lists_of_records), without records of other tasks"
        )
    return list(result)


def check_slot(task: Task, result: TaskResult, function: str) -> None:
    """Raise UnsupportedShapeError unless `result` is `task` with other records, or its NoneTask or FailedTask."""
    origin = result if isinstance(result, Task) else result.task
    if origin.source.id != task.source.id or origin.lineage != task.lineage:
        raise UnsupportedShapeError(
            f"{function} returned {origin.name} for {task.name}: expected a result of the same task; make it with "
            "task.replace(records=...), NoneTask(task) or FailedTask(task, reason)"
        )


class _Process(StepWork):
    def __init__(
        self, function: Callable[[Task], TaskResult | Sequence[Task] | None], ledger: LedgerHandle | None
    ) -> None:
        self._function = function
        self._ledger = ledger
        self._isolated: Callable[[Task], Any] | None = None  # for tasks during which a worker has died
        self._set_ups: list[float] = []

    def setup(self) -> None:
        """Set up the function while no task is in progress, so that a crash counts against no task."""
        this_overlap().is_alone = self._ledger is not None and bool(self._ledger.isolation())
        isolated = getattr(self._function, "isolated", None)
        scope = "" if isolated is None or self._ledger is None else self._ledger.isolation()
        if isolated is not None and scope == ALL_TASKS:
            self._function = isolated()
        elif isolated is not None and scope:
            self._isolated = isolated()
        set_up = getattr(self._function, "set_up", None)
        if set_up is None:
            return
        with timed("function"), fatal_errors(self._ledger), running_user_code(), in_job():
            set_up()
        self._set_ups = take_set_ups()
        if self._ledger is not None:
            with self._ledger.fatal_errors():  # before anything is published
                self._ledger.check_modules()
            self._ledger.note_set_ups(self._set_ups)

    def start_bundle(self) -> None:
        for seconds in self._set_ups:  # a counter belongs to a bundle
            self.counters.observe("set_up_ms", round(1000 * seconds))
        self._set_ups = []

    def process(self, task: TaskResult) -> Iterator[TaskResult]:
        if not isinstance(task, Task):
            yield task
            return
        function = self._function_for(task)
        results = _guarded(
            self._ledger,
            [task],
            lambda: check_result(task, function(task), _name(function)),
            lambda results, collected: _with_statistics(_with_read(results, task), task, collected),
        )
        for result in results:
            if isinstance(result, FailedTask):
                self.counters.add("tasks_failed")
            yield result

    def _function_for(self, task: Task) -> Callable[[Task], TaskResult | Sequence[Task] | None]:
        """Return the function for a task: if a worker has died during the task, the one that runs isolated."""
        if self._isolated is None or self._ledger is None:
            return self._function
        return self._isolated if task.node in self._ledger.mirror().attempts(task.source.id) else self._function


class _Batch(StepWork):
    """Hold tasks until a batch is full or the bundle ends."""

    def __init__(
        self,
        function: Callable[[list[Task]], Sequence[TaskResult | None]],
        batch_size: int,
        ledger: LedgerHandle | None,
    ) -> None:
        self._function = function
        self._batch_size = batch_size
        self._ledger = ledger
        self._held: list[Task] = []

    def start_bundle(self) -> None:
        self._held = []

    def process(self, task: TaskResult) -> Iterator[TaskResult]:
        if not isinstance(task, Task):
            yield task
            return
        self._held.append(task)
        if len(self._held) == self._batch_size:
            yield from self._run()

    def finish_bundle(self) -> Iterator[TaskResult]:
        return self._run()

    def _run(self) -> Iterator[TaskResult]:
        batch, self._held = self._held, []
        if not batch:
            return
        with working_on(self._ledger, batch):
            yield from _guarded(
                self._ledger, batch, lambda: self._checked(batch, self._function(list(batch))), self._without_statistics
            )

    def _without_statistics(self, results: list[TaskResult], collected: stats.Collected) -> list[TaskResult]:
        if observed := collected.statistics():
            raise UnsupportedShapeError(
                f"{_name(self._function)} used ledgerbeam.stats ({', '.join(observed)}) for a batch of tasks. After a "
                "crash the batches differ, so some values would count twice; use ledgerbeam.stats in a function of "
                "one task, with ProcessTask"
            )
        return results

    def _checked(self, batch: list[Task], results: Sequence[TaskResult | None]) -> list[TaskResult]:
        name = _name(self._function)
        if not isinstance(results, list | tuple) or len(results) != len(batch):
            raise UnsupportedShapeError(
                f"{name} returned {_describe(results)} for a batch of {len(batch)} tasks: expected a list of "
                f"{len(batch)} results, one at the position of each task; use NoneTask(task) to filter a task and "
                "FailedTask(task, reason) to retry it; to make several tasks of one, use ProcessTask"
            )
        checked: list[TaskResult] = []
        for task, result in zip(batch, results, strict=True):
            if result is None:
                checked.append(NoneTask(task))
                continue
            if not isinstance(result, Task | NoneTask | FailedTask):
                raise UnsupportedShapeError(
                    f"{name} returned {_describe(result)} for {task.name}: expected a Task, NoneTask or FailedTask; "
                    "make it with task.replace(records=...), NoneTask(task) or FailedTask(task, reason)"
                )
            check_slot(task, result, name)
            checked += _with_read([result], task)
        return checked


def _guarded(
    ledger: LedgerHandle | None,
    tasks: Sequence[Task],
    call: Callable[[], list[TaskResult]],
    finish: Callable[[list[TaskResult], stats.Collected], list[TaskResult]],
) -> list[TaskResult]:
    """Call user code for tasks, and pass its results through `finish`. If the code raises, all tasks fail."""
    try:
        with timed("function"), fatal_errors(ledger), running_user_code(), beside(ledger):
            with stats.collecting() as collected:
                results = call()
            return finish(results, collected)
    except LedgerbeamError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        return [failed_by(error, task, f"{task.name}: {describe_error(error)}") for task in tasks]
    finally:
        hold_standard_descriptors()  # if the function closed them, an output could get their numbers


def beside(ledger: LedgerHandle | None) -> AbstractContextManager[None]:
    """Store the answers of calls in the body: beside the ledger, or where the job keeps them."""
    if ledger is None:
        return nullcontext()
    of_run = {"run": f"{ledger.url}#{ledger.run}", "is_indexed": ledger.run_dir is not None, "limits": ledger.limits}
    return answers_beside(AnswersPlace.of(ledger.url, ledger.answers, ledger.storage_options, **of_run))


def _with_read(results: list[TaskResult], task: Task) -> list[TaskResult]:
    """Return results that carry the number of records read for `task`, even if the function made new tasks."""
    read = task.records.passed if type(task.records) is RecordBlocks else task.read
    if read is None:
        return results
    tasks = [result if isinstance(result, Task) else result.task for result in results]
    shares = read_shares(read, [length_hint(one.records) for one in tasks])
    return [
        result if one.read is not None else _with_task(result, one.replace(read=share))
        for result, one, share in zip(results, tasks, shares, strict=True)
    ]


def _with_task(result: TaskResult, task: Task) -> TaskResult:
    return task if isinstance(result, Task) else dataclasses.replace(result, task=task)


def _with_statistics(results: list[TaskResult], task: Task, collected: stats.Collected) -> list[TaskResult]:
    """Return results, the first of them with all statistics of the task so far, so that they are recorded once.

    A failed task gets no statistics, because its retry collects them again.
    """
    found = {name: Statistic(*pair) for name, pair in collected.statistics().items()}
    known = joined_statistics(task.statistics, found)
    if not known:
        return results
    carried: list[TaskResult] = []
    for result in results:
        statistics = {} if carried else known
        match result:
            case Task():
                carried.append(result.replace(statistics=statistics))
            case NoneTask():
                carried.append(_with_task(result, result.task.replace(statistics=statistics)))
            case FailedTask():
                carried.append(result)
    return carried


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or without_secrets(repr(function))


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, list | tuple) else f"a {kind}"
