"""The mapping of one task in batches: results by position, and the same however the records are cut."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, NonDeterministicTaskError
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.user_errors import describe_error, failed_by, is_interrupt, message_of
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.mapping import (
    MappingRules,
    NotDecodedError,
    TaskFailedError,
    TaskMapping,
    record_place,
    twin_of,
)
from ledgerbeam.transforms.outcomes import Outcome

__all__ = ["BatchAgainError", "BatchMapping"]


class BatchAgainError(Exception):
    """A batch raised after something was observed: its task starts again, with this batch split into records.

    Attributes:
        start: The first position of the batch.
    """

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.start = start


class BatchMapping(TaskMapping):
    """The mapping of one task in lists of records, each a call of the user's object.

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

    def run(self) -> None:
        """Map one batch after the other.

        Raises:
            BatchAgainError: The task is to begin anew.
        """
        for start in range(0, len(self._records), self._size):
            positions = self._readable(range(start, min(start + self._size, len(self._records))))
            parts = [[one] for one in positions] if start in self._cut_up else [positions] if positions else []
            for part in parts:
                try:
                    self._batch(part)
                except _BatchRaisedError as raised:
                    self._after_raise(raised, part, start)

    def _readable(self, positions: range) -> Sequence[int]:
        """Return the positions of records that were decoded; the others are rejected."""
        if not self._rules.rejects:
            return positions
        broken = [position for position in positions if type(self._records[position]) is Unreadable]
        for position in broken:
            self._blame(NotDecodedError(self._records[position].error), position)
        return [position for position in positions if position not in broken] if broken else positions

    def _batch(self, positions: Sequence[int]) -> None:
        """Map one batch."""
        everything = self._records
        if isinstance(positions, range):
            records: Any = everything[positions.start : positions.stop]
        else:
            records = [everything[position] for position in positions]
        twins = twin_of(records) if self._rules.purity.is_on else None
        started = time.monotonic()
        results = self._called(records, positions)
        if twins is not None:
            self._check_batch(results, twins, positions, started)
        add, plain = self._tally.routes[""].add, self._plain
        for position, result in zip(positions, results, strict=True):
            try:
                if type(result) is plain:
                    add(result)
                else:
                    self._take(self._outcome(result, everything[position], position), position)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is attributed to the record
                self._blame(error, position)

    def _called(self, records: list[Any], positions: Sequence[int]) -> Sequence[Any]:
        try:
            results = self._rules.call(records)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise _BatchRaisedError(error) from error
        count = len(positions)
        is_list = issubclass(type(results), list | tuple)
        if not is_list or len(results) != count:
            kind = type(results).__name__
            found = f"a {kind} of {len(results)}" if is_list else f"a {kind}"
            mistake = FunctionError(
                f"{self._name} returned {found} for a batch of {count} records: expected a list of {count} results, "
                "one in each record's place; put None or Drop where a record is left out, and a list of records where "
                "several come of it"
            )
            raise self._batch_failed(mistake, positions, message_of(mistake))
        return results

    def _check_batch(self, results: Sequence[Any], twins: list[Any], positions: Sequence[int], started: float) -> None:
        """Map the records of a batch again, each alone: the results must be the same."""
        purity = self._rules.purity
        outcomes = [
            self._held(result, self._records[position], position)
            for result, position in zip(results, positions, strict=True)
        ]
        if not self._rules.invariant:
            if self._again(twins, positions) != outcomes:
                raise self._impure(positions[0])
            purity.is_on = False
            return
        for number, position in enumerate(positions):
            if self._again([copy.deepcopy(twins[number])], [position]) != [outcomes[number]]:
                is_impure = self._again(twins, positions)[number] != outcomes[number]
                raise self._impure(position) if is_impure else self._variant(position, len(positions))
            purity.count(started)
            if not purity.is_on:
                return

    def _again(self, records: list[Any], positions: Sequence[int]) -> list[Outcome | str]:
        """Return what becomes of records that were mapped before."""
        try:
            with stats.discarded():
                results = self._called(list(records), positions)
        except _BatchRaisedError as raised:
            raise self._batch_failed(
                raised.error, positions, f"{self._name} raised {describe_error(raised.error)} when it was called again"
            ) from raised
        return [
            self._held(result, record, position)
            for result, record, position in zip(results, records, positions, strict=True)
        ]

    def _held(self, result: Any, record: Any, position: int) -> Outcome | str:
        """Return an outcome, or what is wrong with it."""
        try:
            return self._outcome(result, record, position)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return message_of(error)

    def _after_raise(self, raised: _BatchRaisedError, positions: Sequence[int], start: int) -> None:
        """Handle a batch that raised: map its records one by one, to find those that raise."""
        if not self._rules.rejects or (len(positions) > 1 and not self._rules.invariant):
            said = f"{self._name} raised {describe_error(raised.error)}"
            raise self._batch_failed(raised.error, positions, said) from raised.error
        if len(positions) == 1:
            self._blame(raised.error, positions[0])
            return
        if self._observed():  # what the batch has observed before it raised would count twice
            raise BatchAgainError(start)
        for position in positions:
            try:
                self._batch([position])
            except _BatchRaisedError as alone:
                self._blame(alone.error, position)

    def _batch_failed(self, error: BaseException, positions: Sequence[int], said: str) -> TaskFailedError:
        first, last = record_place(self._task, positions[0]), positions[-1] - positions[0]
        place = first if not last else f"{first}, and the {last} after it"
        return TaskFailedError(failed_by(error, self._task, f"{place}: {said}"))

    def _variant(self, position: int, size: int) -> NonDeterministicTaskError:
        return NonDeterministicTaskError(
            f"{record_place(self._task, position)}: {self._name} returned another result for the record alone than in "
            f"a batch of {size}, so its outputs depend on --batch; make each result one of its own record only, or say "
            "`batch_invariant = False` of the function or class: then the size of a batch belongs to the job"
        )


class _BatchRaisedError(Exception):
    """The object raised when it was called with a batch."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
