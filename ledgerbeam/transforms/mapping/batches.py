"""Calls of functions with batches of one task. Bisection of a failed batch finds the records that cause the error."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, tee
from typing import Any, NamedTuple

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.ledger import FailedTask, Task
from ledgerbeam.stats import Collected
from ledgerbeam.transforms.mapping.outcomes import CategoryError, ChildFailedError, End, raised
from ledgerbeam.transforms.mapping.stages import CallStage, stages_of
from ledgerbeam.transforms.mapping.task_mapping import MappingRules, TaskFailedError, TaskMapping
from ledgerbeam.user_code.guards import children, end_child, failed_by, has_ended, is_interrupt, message_of


class Window(NamedTuple):
    """Values of which batches are made: a list, or the rows of a table."""

    values: Any
    positions: Any  # position of the source record of each value, ascending
    is_traced: bool = True  # False if a function returned fewer rows: then each row has the position of any record
    routes: Any = None  # route of each value, of a table its number; None if no value has a route
    route: str = ""  # of all rows of a table that is written
    held: Any = None  # the rows of a table as the collector of the route holds them


ENDED_PARTS = 16  # number of parts of a batch that has ended its process
STAGE_BITS = 40  # bits of the key of a batch: above is the number of the stage, below that of the first value in it


class BatchMapping(TaskMapping):
    """The mapping of one task in stages, of which some are called with batches.

    `cut_up` has the keys of batches that are mapped value by value; see `BatchAgainError`. Indexes are places in a
    window.
    """

    def __init__(self, rules: MappingRules, task: Task, collected: Collected, cut_up: Collection[int] = ()) -> None:
        super().__init__(rules, task)
        self._stages = stages_of(rules.functions, self._output, collected, rules.ahead, rules.asynchronous)
        self._cut_up = cut_up
        self._is_again = False  # whether this is an audit

    @abstractmethod
    def run(self) -> None:
        """Map all records, in order. Raises BatchAgainError if the task must start again."""

    @abstractmethod
    def _batch_of(self, window: Window, indexes: Sequence[int]) -> Any:
        """Return the values at `indexes`, in the form that the function takes."""

    @abstractmethod
    def _understood(self, results: Any, stage: CallStage, window: Window, indexes: Sequence[int]) -> Any:
        """Check and convert the results of a batch. FunctionError: wrong form. BatchFailedError: reading failed."""

    @abstractmethod
    def _end(self, end: End, position: int, first: int = 0) -> None:
        """Take the end of a value for which a stage raised. The first function of the stage has the number `first`."""

    def _position(self, window: Window, index: int, stage: CallStage) -> int:
        """Return the position of the source record of a value. TaskFailedError: it is unknown."""
        if not window.is_traced:
            raise self._failed_task(
                f"{stage.name} rejected a row, or raised for it, and its record is unknown: an earlier function "
                "returned fewer rows than it received; let it return Rows(batch, of=...) with the position of the "
                "original row of each"
            )
        return int(window.positions[index])

    def _parts(
        self,
        stage: CallStage,
        window: Window,
        indexes: Sequence[int],
        start: int = 0,
        call: Callable[[Any], Any] | None = None,
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Call the function of a stage with values of a window, whose first value is number `start` of the stage.

        `call` is one that has begun ahead. Returns indexes and their results in parts: values that fail are found and
        left out. Raises BatchAgainError if the task must start again, and TaskFailedError.
        """
        key = stage.first << STAGE_BITS | start
        if key in self._cut_up:
            return chain.from_iterable(self._called(stage, window, [index], key) for index in indexes)
        return self._called(stage, window, indexes, key, call) if indexes else iter(())

    def _parts_of_each(
        self, stage: CallStage, windows: Iterable[tuple[Window, Sequence[int], int]]
    ) -> Iterator[tuple[Window, Sequence[int], Any]]:
        """Yield the parts of windows, each with the indexes of its values and the number of its first one."""
        call: Callable[[Any], Any] | None = None
        if stage.is_async:
            windows, before = tee(windows)
            call = stage.calls(
                self._batch_of(window, indexes)
                for window, indexes, start in before
                if indexes and stage.first << STAGE_BITS | start not in self._cut_up
            )
        for window, indexes, start in windows:
            for part, results in self._parts(stage, window, indexes, start, call):
                yield window, part, results

    def _called(
        self,
        stage: CallStage,
        window: Window,
        indexes: Sequence[int],
        key: int,
        call: Callable[[Any], Any] | None = None,
    ) -> Iterator[tuple[Sequence[int], Any]]:
        batch, stage.collected.running = self._batch_of(window, indexes), stage.running
        try:
            try:
                results = (call or stage.call)(batch)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise BatchFailedError(error) from error
            finally:
                if children:
                    end_child()
            results = self._understood(results, stage, window, indexes)
        except FunctionError as mistake:
            raise self._batch_failed(mistake, window, indexes, message_of(mistake)) from mistake
        except BatchFailedError as failed:
            yield from self._after_failure(failed.error, stage, window, indexes, key)
        else:
            yield indexes, results

    def _after_failure(
        self, error: BaseException, stage: CallStage, window: Window, indexes: Sequence[int], key: int
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Map the halves of a failed batch to find the values that cause the error, or raise TaskFailedError."""
        is_ours = type(error) is ChildFailedError  # no value of the batch is to blame
        if is_ours or not self._rules.rejects or (len(indexes) > 1 and not stage.invariant):
            again = " when it was called again" if self._is_again else ""
            is_plain = is_ours or type(error) in (FunctionError, RecordError)
            message = message_of(error) if is_plain else f"{raised(error, stage.name)}{again}"
            raise self._batch_failed(error, window, indexes, message) from error
        if len(indexes) == 1:
            position = self._position(window, indexes[0], stage)
            self._end(self._end_of(error, position, stage.stop - 1), position, stage.first)
            return
        if has_ended(error):  # nothing was observed. More parts, because each call may take as long
            size = -(-len(indexes) // ENDED_PARTS)
            parts = [indexes[start : start + size] for start in range(0, len(indexes), size)]
        elif not self._is_again and stage.has_observed():  # statistics of the failed call would count twice
            raise BatchAgainError(key)
        else:
            parts = [*halves(indexes)]
        for part in parts:
            yield from self._called(stage, window, part, key)

    def _batch_failed(
        self, error: BaseException, window: Window, indexes: Sequence[int], message: str
    ) -> TaskFailedError:
        first, last = (int(window.positions[index]) for index in (indexes[0], indexes[-1]))
        place = self._place(first) + (f", and {last - first} more after it" if last > first else "")
        message = f"{place if window.is_traced else self._task.name}: {message}"
        if type(error) in (CategoryError, ChildFailedError):
            return TaskFailedError(FailedTask(self._task, FunctionError.__name__, message))
        return TaskFailedError(failed_by(error, self._task, message))

    def _failed_task(self, problem: str) -> TaskFailedError:
        return TaskFailedError(FailedTask(self._task, FunctionError.__name__, f"{self._task.name}: {problem}"))

    def _starts_backwards(self, records: int, size: int, *, invariant: bool) -> Iterator[range]:
        """Yield the positions of the batches of a recomputation, from the last batch to the first.

        The batches are smaller than in the first run, so that a result that depends on the other records of its batch
        differs. If a function declares that its results depend on batches, the batches are those of the first run.
        """
        size = (min(size, records) + 1) // 2 if invariant else size
        stop = records
        while stop:
            start = max(0, stop - size) if invariant else (stop - 1) // size * size
            yield range(start, stop)
            stop = start


class BatchAgainError(Exception):
    """A batch raised after it observed statistics. Its task starts again, with this batch split into single values."""

    def __init__(self, key: int) -> None:
        super().__init__(key)
        self.key = key  # number of the first function of the stage, and number of the first value of the batch in it


class BatchFailedError(Exception):
    """A batch failed: the function raised, or a result cannot be written."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def batch_failures(*passed: type[BaseException]) -> Iterator[None]:
    """Turn errors of the body into BatchFailedError, except interrupts and errors of the types in `passed`."""
    try:
        yield
    except passed:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise BatchFailedError(error) from error


def halves(positions: Sequence[int]) -> tuple[Any, Any]:
    """Return the first and the second half of positions. The halves of a range are ranges."""
    middle = len(positions) // 2
    return positions[:middle], positions[middle:]
