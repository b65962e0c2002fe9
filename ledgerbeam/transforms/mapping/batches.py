"""Mapping of one task in batches. Each result belongs to the record at its position in the batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.ledger import FailedTask, Task
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.results import Reject
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.mapping.outcomes import CategoryError, Outcome
from ledgerbeam.transforms.mapping.task_mapping import (
    NOT_DECODED,
    MappingRules,
    NotDecodedError,
    TaskFailedError,
    TaskMapping,
    record_place,
)
from ledgerbeam.user_code.guards import children, describe_error, end_child, failed_by, is_interrupt, message_of


class BatchMapping(TaskMapping):
    """The mapping of one task in batches, each a call of the user's object. Results are lists, or rows of a table."""

    def __init__(
        self,
        rules: MappingRules,
        task: Task,
        size: int,
        cut_up: Collection[int],
        observed: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(rules, task)
        self._size = size  # maximum number of records in a batch
        self._cut_up = cut_up  # positions of the first records of batches that are mapped record by record
        self._observed = observed  # returns the names of the statistics that the object has observed in this task

    @abstractmethod
    def _windows(self) -> Iterator[range]:
        """Yield the positions of each batch, in order. Only the records of the last yielded batch are in memory."""

    @abstractmethod
    def _batch_of(self, positions: Sequence[int]) -> Any:
        """Return the records at `positions`, in the form that the object takes."""

    @abstractmethod
    def _broken(self, positions: range) -> dict[int, str]:
        """Return the errors of the records at `positions` that could not be decoded, by position."""

    @abstractmethod
    def _understood(self, results: Any, positions: Sequence[int]) -> Any:
        """Check and convert the results of a batch. FunctionError: wrong form. BatchFailedError: reading failed."""

    @abstractmethod
    def _take_batch(self, results: Any, positions: Sequence[int]) -> None:
        """Collect all results of a batch, or none: BatchFailedError if a result of an unknown record is invalid."""

    def run(self) -> None:
        """Map one batch after the other. Raises BatchAgainError if the task must start again."""
        for window in self._windows():
            start, self._read = window.start, window.stop
            positions = self._readable(window)
            parts = [[one] for one in positions] if start in self._cut_up else [positions] if positions else []
            for part in parts:
                try:
                    self._batch(part)
                except BatchFailedError as failed:
                    self._after_failure(failed, part, start)

    def _readable(self, positions: range) -> Sequence[int]:
        """Reject the records that could not be decoded, and return the positions of the others."""
        if not self._rules.rejects:
            return positions
        broken = self._broken(positions)
        for position, error in broken.items():
            self._blame(NotDecodedError(error), position)
        return [position for position in positions if position not in broken] if broken else positions

    def _batch(self, positions: Sequence[int]) -> None:
        """Call the object with the records at `positions`, and collect the results."""
        results = self._called(positions)
        with timed("encode"):
            self._take_batch(results, positions)

    def _called(self, positions: Sequence[int]) -> Any:
        batch = self._batch_of(positions)
        try:
            with batch_failures():
                results = self._rules.call(batch)
        finally:
            if children:
                end_child()
        try:
            return self._understood(results, positions)
        except FunctionError as mistake:
            raise self._batch_failed(mistake, positions, message_of(mistake)) from mistake

    def _starts_backwards(self, records: int) -> Iterator[range]:
        """Yield the positions of the batches of a recomputation, from the last batch to the first.

        The batches are smaller than in the first run, so that a result that depends on the other records of its batch
        differs. If the object declares that its results depend on batches, the batches are those of the first run.
        """
        invariant = self._rules.invariant
        size = (min(self._size, records) + 1) // 2 if invariant else self._size
        stop = records
        while stop:
            start = max(0, stop - size) if invariant else (stop - 1) // size * size
            yield range(start, stop)
            stop = start

    def _again(self, positions: Sequence[int]) -> Iterator[tuple[Sequence[int], Any]]:
        """Map records again, and yield positions and results in parts. A record that raises yields a `Reject`.

        Bisection finds such records, as in the first run. Raises TaskFailedError if the job does not reject them.
        """
        try:
            yield positions, self._called(positions)
        except BatchFailedError as failed:
            error = failed.error
            if len(positions) == 1:
                yield positions, self._reject_of(error, positions[0])
            elif not (self._rules.rejects and self._rules.invariant):
                message = f"{self._name} raised {describe_error(error)} when it was called again"
                raise self._batch_failed(error, positions, message) from error
            else:
                for half in halves(positions):
                    yield from self._again(half)

    def _after_failure(self, failed: BatchFailedError, positions: Sequence[int], start: int) -> None:
        """Map the halves of a failed batch to find the records that cause the error, or raise TaskFailedError."""
        error = failed.error
        if not self._rules.rejects or (len(positions) > 1 and not self._rules.invariant):
            is_plain = type(error) in (FunctionError, RecordError)
            message = message_of(error) if is_plain else f"{self._name} raised {describe_error(error)}"
            raise self._batch_failed(error, positions, message) from error
        if len(positions) == 1:
            self._blame(error, positions[0])
            return
        if self._observed():  # statistics of the failed call would count twice
            raise BatchAgainError(start)
        for half in halves(positions):
            try:
                self._batch(half)
            except BatchFailedError as again:
                self._after_failure(again, half, start)

    def _batch_failed(self, error: BaseException, positions: Sequence[int], message: str) -> TaskFailedError:
        first, last = record_place(self._task, positions[0]), positions[-1] - positions[0]
        place = first if not last else f"{first}, and {last} more after it"
        if type(error) is CategoryError:
            return TaskFailedError(FailedTask(self._task, FunctionError.__name__, f"{place}: {message}"))
        return TaskFailedError(failed_by(error, self._task, f"{place}: {message}"))


class ListMapping(BatchMapping):
    """The mapping of one task in lists of records. The arguments are those of `BatchMapping`."""

    _window: list[Any]  # records of the batch, and the position of the first one
    _first: int

    def _windows(self) -> Iterator[range]:
        records, first = chain.from_iterable(self._blocks()), 0
        while window := list(islice(records, self._size)):
            self._window, self._first = window, first
            yield range(first, first := first + len(window))

    def _broken(self, positions: range) -> dict[int, str]:
        window, first = self._window, self._first
        return {at: window[at - first].error for at in positions if type(window[at - first]) is Unreadable}

    def _batch_of(self, positions: Sequence[int]) -> list[Any]:
        window, first = self._window, self._first
        if isinstance(positions, range):
            return window[positions.start - first : positions.stop - first]
        return [window[position - first] for position in positions]

    def _understood(self, results: Any, positions: Sequence[int]) -> Sequence[Any]:
        count = len(positions)
        is_list = issubclass(type(results), list | tuple)
        if is_list and len(results) == count:
            listed: Sequence[Any] = results
            return listed
        kind = type(results).__name__
        found = f"a {kind} of {len(results)}" if is_list else f"a {kind}"
        raise FunctionError(
            f"{self._name} returned {found} for a batch of {count} records: expected a list of {count} results, "
            "one at the position of each record; use None or Drop to drop a record, and a list for several results"
        )

    def _backwards(self) -> Iterator[tuple[int, Outcome]]:
        self._window, self._first = list(chain.from_iterable(self._blocks())), 0
        for window in self._starts_backwards(len(self._window)):
            broken = self._broken(window) if self._rules.rejects else {}
            outcomes = dict.fromkeys(broken, Outcome(Reject(NOT_DECODED)))
            readable = [position for position in window if position not in broken]
            if self._rules.invariant:
                readable.reverse()
            for positions, results in self._again(readable) if readable else ():
                if isinstance(results, Reject):
                    outcomes[positions[0]] = Outcome(results)
                else:
                    outcomes.update(zip(positions, map(self._meant, results, positions), strict=True))
            yield from sorted(outcomes.items(), reverse=True)

    def _meant(self, result: Any, position: int) -> Outcome:
        try:
            return self._outcome(result, self._window[position], position)
        except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
            return Outcome(self._reject_of(error, position))

    def _take_batch(self, results: Sequence[Any], positions: Sequence[int]) -> None:
        add, plain, window, first = self._tally.routes[""].add, self._plain, self._window, self._first
        for position, result in zip(positions, results, strict=True):
            try:
                if type(result) is plain:
                    add(result)
                else:
                    self._take(self._outcome(result, window[position - first], position), position)
            except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
                self._blame(error, position)


class BatchAgainError(Exception):
    """A batch raised after it observed statistics. Its task starts again, with this batch split into records."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.start = start  # position of the first record of the batch


class BatchFailedError(Exception):
    """A batch failed: the object raised, or a result cannot be written."""

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
