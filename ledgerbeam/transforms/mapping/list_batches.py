"""Batches as lists of records. The object returns a list of the same length, with one result for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.results import Reject
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.mapping.batches import BatchMapping
from ledgerbeam.transforms.mapping.outcomes import Outcome
from ledgerbeam.transforms.mapping.task_mapping import NOT_DECODED


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
            for positions, meant in self._again(readable) if readable else ():
                outcomes.update(zip(positions, [meant] if isinstance(meant, Outcome) else meant, strict=True))
            yield from sorted(outcomes.items(), reverse=True)

    def _compared(self, results: Sequence[Any], records: Any, positions: Sequence[int]) -> list[Outcome]:
        return [
            self._meant(result, record, position)
            for result, record, position in zip(results, records, positions, strict=True)
        ]

    def _meant(self, result: Any, record: Any, position: int) -> Outcome:
        try:
            return self._outcome(result, record, position)
        except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
            return self._as_reject(error, position)

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
