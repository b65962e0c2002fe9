"""Mapping of one task by functions of single records and of lists of records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain, islice, tee
from operator import itemgetter
from typing import Any

from ledgerbeam.errors import FunctionError, ServiceError
from ledgerbeam.io import Sample
from ledgerbeam.ledger.worker.reports import SharedTime, timed
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.mapping.outcomes import (
    NO_FUNCTION,
    ChildFailedError,
    End,
    NotDecodedError,
    Outcome,
    Results,
    copied,
)
from ledgerbeam.transforms.mapping.stages import CallStage
from ledgerbeam.transforms.mapping.task_mapping import BatchAgainError, BatchMapping, TaskFailedError, Window
from ledgerbeam.user_code.guards import children, end_child

MEASURED_RECORDS = 32  # number of records of a task for which the time of the function is measured

COPIED_RECORDS = 1024  # number of records of a list that are copied at once

Item = tuple[int, str, Any]  # position of the source record, route, value


class RecordMapping(BatchMapping):
    """The mapping of one task record by record and in lists of records. The arguments are those of `BatchMapping`.

    If there is one stage, the results of a record are collected at once. With several stages, the results of a record
    can be in several batches. All stages keep the order of the records. So a record is complete when a result of a
    later record arrives.
    """

    def run(self) -> None:
        """Map all records, in order. Raises BatchAgainError if the task must start again."""
        stage = self._stages[0]
        if len(self._stages) > 1:
            self._run_stages()
            return
        if stage.size is not None:
            self._run_batches(stage, stage.size)
        else:
            self._run_each(stage)
        # The values of records whose result was written as it is are counted together.
        self._tally.receive(0, [self._read - self._accounted] * (stage.stop + 1))

    @property
    def _keeps(self) -> bool:
        """Whether a value may be mapped again, so that functions get copies, which they may change in place."""
        return self._rules.rejects and self._rules.ahead is None

    def _blocks(self) -> Iterator[Sequence[Any]]:
        blocks = super()._blocks()
        if isinstance(self._task.records, RecordBlocks) or not self._keeps:
            return blocks
        parts = (block[at : at + COPIED_RECORDS] for block in blocks for at in range(0, len(block), COPIED_RECORDS))
        return ([copied(record) for record in part] for part in parts)

    def _run_each(self, stage: CallStage) -> None:
        stage.collected.running = stage.running
        # Function and encoding alternate. Their shares of the time are measured for the first records.
        with SharedTime("function", "encode") as shared:
            blocks, called = self._blocks(), stage.call
            if stage.ahead is not None:
                blocks, before = tee(blocks)
                called = stage.calls(one for records in before for one in records if type(one) is not Unreadable)
            for records in blocks:
                is_partial = self._rules.rejects and Unreadable in map(type, records)
                call, first = _of_decoded(called) if is_partial else called, 0
                if not self._read:
                    first = MEASURED_RECORDS
                    self._map(shared.measured(call), records, 0, first)
                    shared.measure()
                self._map(call, records, first, None)
                self._read += len(records)

    def _map(self, call: Callable[[Any], Any], records: Sequence[Any], first: int, stop: int | None) -> None:
        """Map the records of a block from index `first` to `stop` - 1, or to the end if `stop` is None."""
        add, plain = self._tally.routes[""].add, self._plain
        for position, record in enumerate(islice(records, first, stop), self._read + first):
            if children:
                end_child()
            try:
                result = call(record)
                if type(result) is plain:
                    add(result)
                else:
                    self._take(self._outcome(result, record, position), position)
            except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
                self._blame(error, position)

    def _run_batches(self, stage: CallStage, size: int) -> None:
        for window, indexes, results in self._parts_of_each(stage, self._windows(size)):
            with timed("encode"):
                self._take_batch(results, indexes, window)

    def _windows(self, size: int) -> Iterator[tuple[Window, Sequence[int], int]]:
        """Yield the records of the task in batches, with the indexes of readable ones and the first position."""
        records = chain.from_iterable(self._blocks())
        while values := list(islice(records, size)):
            first = self._read
            self._read += len(values)
            window = Window(values, range(first, self._read))
            yield window, self._readable(window), first

    def _take_batch(self, results: Sequence[Any], indexes: Sequence[int], window: Window) -> None:
        add, plain, (values, positions, *_) = self._tally.routes[""].add, self._plain, window
        for index, result in zip(indexes, results, strict=True):
            try:
                if type(result) is plain:
                    add(result)
                else:
                    self._take(self._outcome(result, values[index], positions[index]), positions[index])
            except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
                self._blame(error, positions[index])

    def _readable(self, window: Window) -> Sequence[int]:
        """Reject the records that could not be decoded, and return the indexes of the others."""
        values = window.values
        if not self._rules.rejects or Unreadable not in map(type, values):
            return range(len(values))
        for value, position in zip(values, window.positions, strict=True):
            if type(value) is Unreadable:
                self._end(self._end_of(NotDecodedError(value.error), position, NO_FUNCTION), position)
        return [index for index, value in enumerate(values) if type(value) is not Unreadable]

    def _batch_of(self, window: Window, indexes: Sequence[int]) -> Any:
        values = window.values
        batch = values[indexes.start : indexes.stop] if isinstance(indexes, range) else [values[at] for at in indexes]
        # The values of a batch that fails are called again.
        return [copied(value) for value in batch] if self._keeps and len(batch) > 1 else batch

    def _understood(self, results: Any, stage: CallStage, window: Window, indexes: Sequence[int]) -> Any:
        del window
        count = len(indexes)
        is_list = issubclass(type(results), list | tuple)
        if is_list and len(results) == count:
            return results
        kind = type(results).__name__
        found = f"a {kind} of {len(results)}" if is_list else f"a {kind}"
        raise FunctionError(
            f"{stage.name} returned {found} for a batch of {count} records: expected a list of {count} results, "
            "one at the position of each record; use None or Drop to drop a record, and a list for several results"
        )

    # Several stages

    _gathers = False  # whether the results of a record are gathered until it is complete
    _ends: defaultdict[int, list[End]]  # the ends of results of records that are not complete, by position
    _unwritten: defaultdict[int, list[End]]  # the ends of their results that cannot be written
    _samples: dict[int, Sample]  # the key of each record that is not complete, in an empty sample

    def _run_stages(self) -> None:
        self._begin()
        current, found = -1, list[tuple[str, Any]]()
        with SharedTime("function", "encode") as shared:
            for stage in self._stages:
                stage.measure(shared.measured)
            items: Iterable[Item] = self._items()
            for stage in self._stages:
                if stage.size is None:
                    items = self._each(stage, items)
                else:  # the function before it may return the same object again
                    items = self._batches(stage, stage.size, map(_copied, items))
            for position, route, value in items:
                if position != current:
                    self._finish(current, found)
                    current, found = position, []
                found += self._arrived(position, route, value)
            self._finish(current, found)
            shared.measure()
        for position in sorted({*self._ends, *self._unwritten}):
            self._finish(position, [])

    def _begin(self) -> None:
        self._gathers = True
        self._ends, self._unwritten = defaultdict(list), defaultdict(list)
        self._samples = {}

    def _items(self) -> Iterator[Item]:
        for records in self._blocks():
            window = Window(records, range(self._read, self._read + len(records)))
            self._read += len(records)
            for index in self._readable(window):
                yield self._item(records[index], window.positions[index])

    def _item(self, record: Any, position: int) -> Item:
        if self._output == "tar" and isinstance(record, Sample):
            self._samples[position] = Sample(record.key)
        return position, "", record

    def _each(self, stage: CallStage, items: Iterable[Item]) -> Iterator[Item]:
        call = stage.call
        if stage.ahead is not None:
            items, before = tee(items)
            call = stage.calls(item[2] for item in before)
        for item in items:
            if children:
                end_child()
            stage.collected.running = stage.running
            try:
                result = call(item[2])
            except (
                ChildFailedError,
                ServiceError,
                TaskFailedError,
                BatchAgainError,
            ):  # the latter of items that are taken ahead
                raise
            except BaseException as error:  # noqa: BLE001 - of the only function of a job
                result = stage.read(item[2], None, error=error)
            yield from self._passed(stage, item, result)

    def _batches(self, stage: CallStage, size: int, items: Iterable[Item]) -> Iterator[Item]:
        def windows() -> Iterator[tuple[Window, Sequence[int], int]]:
            start, rest = 0, iter(items)
            while some := list(islice(rest, size)):
                positions, routes, values = map(list, zip(*some, strict=True))
                yield Window(values, positions, routes=routes), range(len(some)), start
                start += len(some)

        for window, indexes, results in self._parts_of_each(stage, windows()):
            for index, result in zip(indexes, results, strict=True):
                item = window.positions[index], window.routes[index], window.values[index]
                yield from self._passed(stage, item, result)

    def _passed(self, stage: CallStage, item: Item, result: Any) -> Iterator[Item]:
        """Yield the results of a stage for a value, and count them."""
        position, route, value = item
        if type(result) is dict:
            self._tally.receive(stage.first, [1] * len(stage.functions))
            yield position, route, result
            return
        results = result if type(result) is Results else stage.read(value, result)
        self._count(results, stage.first, position)
        for name, made in results.values:
            yield position, name or route, made

    def _end(self, end: End, position: int, first: int = 0) -> None:
        self._count(Results((), (end,), [1] * (end.function + 1 - first)), first, position)
        if not self._gathers:
            self._take(Outcome(end), position)

    def _count(self, results: Results, first: int, position: int) -> None:
        super()._count(results, first, position)
        if results.ends and self._gathers:
            self._ends[position] += results.ends

    def _arrived(self, position: int, route: str, value: Any) -> Sequence[tuple[str, Any]]:
        """Return a result of the last stage as its collector holds it. Samples are only copied."""
        if self._output == "tar":
            return [(route, copy(value))]
        held, ends = self._held_each([(route, value)], None, position)
        if ends:
            self._unwritten[position] += ends
        return held

    def _finish(self, position: int, held: Sequence[tuple[str, Any]]) -> None:
        """Take the outcome of a record that is complete."""
        if outcome := self._complete(held, self._samples.pop(position, None), position):
            self._take(outcome, position)

    def _complete(self, held: Sequence[tuple[str, Any]], record: Any, position: int) -> Outcome | None:
        """Return the outcome of a record; None if it has no results and no ends."""
        ends = [*self._ends.pop(position, ()), *self._unwritten.pop(position, ())]
        if self._output == "tar" and held:
            held, unwritten = self._held_each(held, record, position)
            ends += unwritten
        return Outcome.of_results(ends, held) if held or ends else None

    # Audit

    def _backwards(self) -> Iterator[tuple[int, Outcome]]:
        self._begin()
        self._is_again = True
        records = list(chain.from_iterable(self._blocks()))
        for positions in self._chunks(len(records)):
            window = Window([records[position] for position in positions], positions)
            items = [self._item(window.values[index], positions[index]) for index in self._readable(window)]
            for stage in self._stages:
                items = self._again(stage, items)
            held = defaultdict[int, list[tuple[str, Any]]](list)
            for position, route, value in items:
                held[position].append((route, value))
            for position in reversed(positions):
                if outcome := self._complete(held[position], records[position], position):
                    yield position, outcome

    def _chunks(self, records: int) -> Iterator[range]:
        """Yield the positions of records that all stages map together, from the last ones to the first ones."""
        sizes = [stage.size or 1 for stage in self._stages]
        invariant = all(stage.invariant or stage.size is None for stage in self._stages)
        if sizes == [1] and self._stages[0].size is None:
            return iter(range(position, position + 1) for position in reversed(range(records)))
        if not invariant and len(sizes) > 1:  # batches have results of any records
            return iter([range(records)] if records else [])
        return self._starts_backwards(records, max(sizes), invariant=invariant)

    def _again(self, stage: CallStage, items: Sequence[Item]) -> list[Item]:
        """Return the results of a stage for values, which it maps from the last to the first."""
        found: dict[int, list[Item]] = {}
        is_last = stage is self._stages[-1]

        def keep(index: int, passed: Iterable[Item]) -> None:
            if is_last:
                found[index] = [
                    (position, *pair) for position, *one in passed for pair in self._arrived(position, *one)
                ]
            else:
                found[index] = list(map(_copied, passed))

        if stage.size is None:
            for index in reversed(range(len(items))):
                keep(index, self._each(stage, [items[index]]))
        else:
            window = Window([item[2] for item in items], [item[0] for item in items])
            for part in self._starts_backwards(len(items), stage.size, invariant=stage.invariant):
                order = list(reversed(part)) if stage.invariant else part
                for indexes, results in self._parts(stage, window, order):
                    for index, result in zip(indexes, results, strict=True):
                        keep(index, self._passed(stage, items[index], result))
        return [item for _, made in sorted(found.items(), key=itemgetter(0)) for item in made]


def _copied(item: Item) -> Item:
    position, route, value = item
    return position, route, copied(value)


def _of_decoded(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls `call`, but raises NotDecodedError for records that could not be decoded."""

    def called(record: Any) -> Any:
        if type(record) is Unreadable:
            raise NotDecodedError(record.error)
        return call(record)

    return called
