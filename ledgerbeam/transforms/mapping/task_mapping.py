"""Mapping of one task, record by record. An error rejects its record or fails the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import FunctionError, IndexError_, LedgerbeamError, RecordError, SourceError, StorageError
from ledgerbeam.io import Format
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import NOTHING, Statistic
from ledgerbeam.ledger.worker.reports import SharedTime, timed
from ledgerbeam.results import Drop, Reject
from ledgerbeam.sources.forms import RecordBlocks, blocks_of
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.mapping.collectors import (
    Collector,
    UnplacedError,
    as_samples,
    collector,
    name_of,
    table_collector,
)
from ledgerbeam.transforms.mapping.outcomes import (
    CategoryError,
    Outcome,
    Recomputed,
    Rejection,
    Tally,
    TaskResults,
    check_value,
    rejected_records,
    require_category,
    require_reason,
    routed,
    source_record,
)
from ledgerbeam.user_code.guards import (
    children,
    describe_error,
    end_child,
    error_name,
    failed_by,
    is_interrupt,
    message_of,
    raised_at,
)

NOT_DECODED = "not decoded"  # reject reason of a record whose bytes do not fit its format
MEASURED_RECORDS = 32  # number of records of a task for which the time of the function is measured


@dataclass(frozen=True)
class MappingRules:
    """Settings of mappings, the same for all tasks of a process."""

    name: str  # name of the user's object, for messages
    call: Callable[[Any], Any]  # the user's object
    output: str | Format  # format of the outputs, or its name
    nan: NanRule  # treatment of NaN and infinities in JSONL
    rejects: bool  # whether an invalid record is rejected. Otherwise its task fails
    invariant: bool  # whether the outcome of a record is independent of the other records of its batch
    tables: bool = False  # whether results are tables (Arrow batches)
    # Whether each result is checked at once, even if the format encodes all results of a task together
    placed: bool = False

    def collector(self, route: str = "") -> Collector:
        """Return a collector for the results of a route."""
        if self.tables:
            return table_collector(self.output, self.nan, route)
        return collector(self.output, self.nan, route, one_by_one=self.rejects, placed=self.placed)


class TaskFailedError(Exception):
    """The mapping of a task ended with an error. `task` is the failed task."""

    def __init__(self, task: FailedTask) -> None:
        super().__init__(task.error)
        self.task = task


class NotDecodedError(Exception):
    """A record could not be decoded, so it is not passed to the function."""


class TaskMapping:
    """The mapping of one task."""

    def __init__(self, rules: MappingRules, task: Task) -> None:
        self._rules = rules
        self._task = task
        self._read = 0
        self._name = rules.name
        self._output = name_of(rules.output)
        self._tally = Tally(rules.collector())
        self._rejections: list[Rejection] = []
        # A result of this type is written as it is. Results for tar are always checked.
        self._plain = None if self._output == "tar" else dict

    def run(self) -> None:
        """Map all records, in order."""
        # Function and encoding alternate. Their shares of the time are measured for the first records.
        with SharedTime("function", "encode") as shared:
            for records in self._blocks():
                call = self._rules.call
                if self._rules.rejects and Unreadable in map(type, records):
                    call = _of_decoded(call)
                first = 0
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

    def _blocks(self) -> Iterator[Sequence[Any]]:
        """Yield the records of the task. Raises TaskFailedError if they cannot be read."""
        blocks = iter(blocks_of(self._task.records))
        while True:
            try:
                with timed("read"):
                    block = next(blocks, None)
            except (SourceError, IndexError_, StorageError) as error:
                raise TaskFailedError(failed_by(error, self._task, message_of(error))) from error
            if block is None:
                return
            yield block

    def results(self, statistics: Mapping[str, Statistic]) -> Task | NoneTask:
        """Return the task with its results.

        Raises UnplacedError if a result cannot be written and its record is unknown. To find the record, map the task
        again with `MappingRules.placed`.
        """
        task, name = self._task, self._name
        datasets: dict[str, Any] = {}
        try:
            for route, collected in self._tally.routes.items():
                if len(records := collected.finish()):
                    datasets[route] = records
            rejects = rejected_records(task, self._rejections) if self._rejections else []
        except UnplacedError:
            raise
        except RecordError as error:
            raise TaskFailedError(FailedTask(task, type(error).__name__, f"{task.name}: {name}: {error}")) from error
        except LedgerbeamError as error:
            raise TaskFailedError(failed_by(error, task, f"{task.name}: {message_of(error)}")) from error
        counts = self._tally.counts(self._read, datasets)
        if not datasets and not rejects:
            return NoneTask(task, counts=counts, statistics=statistics)
        return task.replace(records=TaskResults(datasets, counts, rejects, statistics))

    def recomputed(self, is_late: Callable[[], bool]) -> Recomputed:
        """Map the records from the last to the first. Stop if `is_late`, called after each record, returns True."""
        backwards: list[tuple[int, Outcome]] = []
        for position, outcome in self._backwards():
            backwards.append((position, outcome))
            if is_late():
                break
        origins: dict[str, list[int]] = {}
        for position, outcome in reversed(backwards):
            self._take(outcome, position)
            for route, _ in outcome.held:
                origins.setdefault(route, []).append(position)
        first, records = (backwards[-1][0], backwards[0][0] + 1) if backwards else (0, 0)
        return self._recomputed(first, records, origins)

    def _recomputed(self, first: int, records: int, origins: Mapping[str, Sequence[int]]) -> Recomputed:
        collected = {route: collector.finish() for route, collector in self._tally.routes.items()}
        datasets = {route: records for route, records in collected.items() if len(records)}
        return Recomputed(first, records, datasets, origins, self._place)

    def _place(self, position: int) -> str:
        return record_place(self._task, position)

    def _backwards(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the position and the outcome of each record, from the last to the first."""
        records = list(chain.from_iterable(self._blocks()))
        call = _of_decoded(self._rules.call)
        for position in range(len(records) - 1, -1, -1):
            record = records[position]
            if children:
                end_child()
            try:
                outcome = self._outcome(call(record), record, position)
            except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
                outcome = Outcome(self._reject_of(error, position))
            yield position, outcome

    def _outcome(self, result: Any, record: Any, position: int) -> Outcome:
        """Return the outcome of a record from the function's result. FunctionError, RecordError: it is invalid."""
        if result is None:
            return Outcome(Drop(NOTHING))
        kind = type(result)
        if issubclass(kind, Drop | Reject):
            require_reason(result, self._name)
            return Outcome(result)
        values = list(routed(result, self._name))
        if not values:
            return Outcome(Drop(NOTHING))
        for _, value in values:
            if type(value) is not dict:
                check_value(value, self._like(record), self._name, self._output)
        if self._output == "tar":
            samples = as_samples([value for _, value in values], record, self._task, position)
            values = [(route, sample) for (route, _), sample in zip(values, samples, strict=True)]
        return Outcome(None, tuple((route, self._route(route).hold(value)) for route, value in values))

    def _like(self, record: Any) -> Any:
        """Return a record for `check_value`, which compares a result with it to find mistakes."""
        return record

    def _route(self, route: str) -> Collector:
        routes = self._tally.routes
        if route not in routes:
            require_category(route, "routes", len(routes) - 1)
            routes[route] = self._rules.collector(route)
        return routes[route]

    def _take(self, outcome: Outcome, position: int) -> None:
        end = outcome.end
        if end is None:
            for route, held in outcome.held:
                self._tally.routes[route].take(held)
        elif isinstance(end, Drop):
            self._tally.drop(end.reason)
        else:
            self._reject(end, position)

    def _reject(self, end: Reject, position: int) -> None:
        if not self._rules.rejects:
            said = f"{self._name} rejected it: {end.reason}{': ' if end.error else ''}{end.error}"
            place = record_place(self._task, position)
            raise TaskFailedError(FailedTask(self._task, end.reason, f"{place}: {said}"))
        self._put_aside(position, end.reason, end.error)

    def _reject_of(self, error: BaseException, position: int) -> Reject:
        """Return the rejection for an error. TaskFailedError: the job rejects no records, or it is a CategoryError."""
        if is_interrupt(error) or type(error) is TaskFailedError:  # `isinstance` could run the user's code
            raise error
        if not self._rules.rejects or type(error) is CategoryError:
            raise TaskFailedError(self._failed(error, position)) from error
        return Reject(NOT_DECODED if type(error) is NotDecodedError else error_name(error), message_of(error))

    def _blame(self, error: BaseException, position: int) -> None:
        """Reject the record that caused an error. Raises TaskFailedError, as `_reject_of` does."""
        end = self._reject_of(error, position)
        is_ours = type(error) in (NotDecodedError, FunctionError, RecordError)
        self._put_aside(position, end.reason, end.error, "" if is_ours else raised_at(error))

    def _put_aside(self, position: int, reason: str, error: str, at: str = "") -> None:
        try:
            self._tally.reject(reason)
        except CategoryError as too_many:
            raise TaskFailedError(self._failed(too_many, position)) from too_many
        self._rejections.append(Rejection(position, reason, without_secrets(error), without_secrets(at)))

    def _failed(self, error: BaseException, position: int) -> FailedTask:
        place = record_place(self._task, position)
        if type(error) in (FunctionError, RecordError):
            return failed_by(error, self._task, f"{place}: {message_of(error)}")
        if type(error) is CategoryError:
            return FailedTask(self._task, FunctionError.__name__, f"{place}: {self._name}: {message_of(error)}")
        return failed_by(error, self._task, f"{place}: {self._name} raised {describe_error(error)}")


def _of_decoded(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls `call`, but raises NotDecodedError for records that could not be decoded."""

    def called(record: Any) -> Any:
        if type(record) is Unreadable:
            raise NotDecodedError(record.error)
        return call(record)

    return called


def _is_whole(task: Task) -> bool:
    """Return whether a task has one record for each position of its span."""
    records = task.records
    try:
        count = sum(map(len, records.marking())) if isinstance(records, RecordBlocks) else len(records)
    except LedgerbeamError:  # the caller describes another error
        return False
    return count == task.stop - task.start


def record_place(task: Task, position: int) -> str:
    """Return the URL of a record's source and its number there, for a message. This may read the source again."""
    if not task.source.members and _is_whole(task):
        return f"{task.source.url}, record {task.start + position}"
    found = source_record(task, position)
    return f"{task.name}, its record {position}" if found is None else f"{found.url}, record {found.record}"
