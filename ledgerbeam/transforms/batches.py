"""The mapping of one task in batches, whatever these are: results by position, the same however records are cut."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, NonDeterministicTaskError, RecordError
from ledgerbeam.ledger import FailedTask, Task
from ledgerbeam.ledger.model.forks import children, end_child
from ledgerbeam.ledger.model.user_errors import describe_error, failed_by, is_interrupt, message_of
from ledgerbeam.ledger.worker.stopwatch import timed
from ledgerbeam.transforms.mapping import MappingRules, NotDecodedError, TaskFailedError, TaskMapping, record_place
from ledgerbeam.transforms.outcomes import CategoryError

__all__ = ["BatchAgainError", "BatchFailedError", "BatchMapping"]


class BatchAgainError(Exception):
    """A batch raised after something was observed: its task starts again, with this batch split into records.

    Attributes:
        start: The first position of the batch.
    """

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.start = start


class BatchFailedError(Exception):
    """A batch cannot be used, since of some of its records: the object raised, or a result cannot be written.

    Attributes:
        error: What was raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class BatchMapping(TaskMapping):
    """The mapping of one task in batches, each a call of the user's object.

    What a batch and its results are is said by the derived classes: lists of records, or of the rows of a table.

    Args:
        rules: Of the job.
        task: With its records.
        size: Records of a batch, at most.
        cut_up: First positions of batches that are mapped record by record.
        observed: Returns the names of what the object has observed in this task so far.
    """

    def __init__(
        self,
        rules: MappingRules,
        task: Task,
        size: int,
        cut_up: Collection[int],
        observed: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(rules, task)
        self._size = size
        self._cut_up = cut_up
        self._observed = observed

    @abstractmethod
    def _windows(self) -> Iterator[range]:
        """Yield the positions of one batch after the other; only the records of the last are at hand."""

    @abstractmethod
    def _batch_of(self, positions: Sequence[int]) -> Any:
        """Return the records at some positions, as the object takes them."""

    @abstractmethod
    def _twin(self, batch: Any, start: int = 0, stop: int | None = None) -> Any:
        """Return a copy of the records `[start, stop)` of a batch; None if they cannot be copied."""

    @abstractmethod
    def _understood(self, results: Any, positions: Sequence[int]) -> Any:
        """Return what the object returned for a batch, if it is of the right form.

        Raises:
            FunctionError: It is not.
            BatchFailedError: It cannot be read.
        """

    @abstractmethod
    def _compared(self, results: Any, records: Any, positions: Sequence[int]) -> Any:
        """Return what is compared of understood results: what would be written, and what becomes of the rest."""

    @abstractmethod
    def _difference(self, whole: Any, parts: Sequence[Any]) -> int | None:
        """Return where in its batch a record is of which `parts`, one after the other, say something else."""

    @abstractmethod
    def _take_batch(self, results: Any, positions: Sequence[int]) -> None:
        """Take understood results.

        Raises:
            BatchFailedError: Nothing of them was taken, since of a record that is not known.
        """

    def run(self) -> None:
        """Map one batch after the other.

        Raises:
            BatchAgainError: The task is to begin anew.
        """
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
        """Return the positions of records that were decoded; the others are rejected."""
        if not self._rules.rejects:
            return positions
        broken = self._broken(positions)
        for position, error in broken.items():
            self._blame(NotDecodedError(error), position)
        return [position for position in positions if position not in broken] if broken else positions

    @abstractmethod
    def _broken(self, positions: range) -> dict[int, str]:
        """Return what is wrong with the records that could not be decoded, by position."""

    def _batch(self, positions: Sequence[int]) -> None:
        """Map one batch."""
        batch = self._batch_of(positions)
        twin = self._twin(batch) if self._rules.purity.is_on else None
        started = time.monotonic()
        results = self._called(batch, positions)
        if twin is not None:
            self._check_batch(self._compared(results, batch, positions), twin, positions, started)
        with timed("encode"):
            self._take_batch(results, positions)

    def _called(self, batch: Any, positions: Sequence[int]) -> Any:
        try:
            results = self._rules.call(batch)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise BatchFailedError(error) from error
        finally:
            if children:
                end_child()
        try:
            return self._understood(results, positions)
        except FunctionError as mistake:
            raise self._batch_failed(mistake, positions, message_of(mistake)) from mistake

    def _check_batch(self, whole: Any, twin: Any, positions: Sequence[int], started: float) -> None:
        """Map the records of a batch again, the first ones alone: the results must be the same."""
        purity = self._rules.purity
        if not self._rules.invariant:
            if (number := self._difference(whole, [self._again(twin, positions)])) is not None:
                raise self._impure(positions[number])
            purity.is_on = False
            return
        cut: list[Any] = []
        while len(cut) < len(positions) and purity.is_on:
            number = len(cut)
            cut.append(self._again(self._twin(twin, number, number + 1), [positions[number]]))
            purity.count(started)
        if rest := positions[len(cut) :]:
            cut.append(self._again(self._twin(twin, len(cut)), rest))
        if (number := self._difference(whole, cut)) is not None:
            is_impure = self._difference(whole, [self._again(twin, positions)]) is not None
            position = positions[number]
            raise self._impure(position) if is_impure else self._variant(position, len(positions))

    def _again(self, batch: Any, positions: Sequence[int]) -> Any:
        """Return what is compared of records that were mapped before."""
        try:
            with stats.discarded():
                results = self._called(batch, positions)
            return self._compared(results, batch, positions)
        except BatchFailedError as failed:
            raise self._batch_failed(
                failed.error, positions, f"{self._name} raised {describe_error(failed.error)} when it was called again"
            ) from failed

    def _after_failure(self, failed: BatchFailedError, positions: Sequence[int], start: int) -> None:
        """Handle a batch that failed: map its halves, to find the records to blame."""
        error = failed.error
        if not self._rules.rejects or (len(positions) > 1 and not self._rules.invariant):
            is_plain = type(error) in (FunctionError, RecordError)
            said = message_of(error) if is_plain else f"{self._name} raised {describe_error(error)}"
            raise self._batch_failed(error, positions, said) from error
        if len(positions) == 1:
            self._blame(error, positions[0])
            return
        if self._observed():  # what the batch has observed before it failed would count twice
            raise BatchAgainError(start)
        middle = len(positions) // 2
        for half in (positions[:middle], positions[middle:]):
            try:
                self._batch(half)
            except BatchFailedError as again:
                self._after_failure(again, half, start)

    def _batch_failed(self, error: BaseException, positions: Sequence[int], said: str) -> TaskFailedError:
        first, last = record_place(self._task, positions[0]), positions[-1] - positions[0]
        place = first if not last else f"{first}, and the {last} after it"
        if type(error) is CategoryError:
            return TaskFailedError(FailedTask(self._task, FunctionError.__name__, f"{place}: {said}"))
        return TaskFailedError(failed_by(error, self._task, f"{place}: {said}"))

    def _variant(self, position: int, size: int) -> NonDeterministicTaskError:
        return NonDeterministicTaskError(
            f"{record_place(self._task, position)}: {self._name} returned another result for the record alone than in "
            f"a batch of {size}, so its outputs depend on --batch; make each result one of its own record only, or say "
            "`batch_invariant = False` of the function or class: then the size of a batch belongs to the job"
        )
