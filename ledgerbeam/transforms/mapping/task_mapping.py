"""Bases of the mapping of one task: outcomes of its records, and calls of functions with batches of them.

An error rejects its record or fails the task. Bisection of a failed batch finds the records that cause the error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, tee
from typing import Any, NamedTuple

from ledgerbeam._base.lazy import np
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import (
    FunctionError,
    IndexError_,
    LedgerbeamError,
    RecordError,
    ServiceError,
    SourceError,
    StorageError,
)
from ledgerbeam.io import Format
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import FUNCTIONS, NOTHING, Statistic
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sketches import MergedFunctions
from ledgerbeam.sources.forms import RecordBlocks, blocks_of
from ledgerbeam.stats import Collected
from ledgerbeam.transforms.mapping.async_calls import AsyncCalls
from ledgerbeam.transforms.mapping.collectors import (
    Collector,
    UnplacedError,
    as_samples,
    collector,
    name_of,
    table_collector,
)
from ledgerbeam.transforms.mapping.outcomes import (
    NO_FUNCTION,
    CategoryError,
    ChildFailedError,
    End,
    Outcome,
    Recomputed,
    Rejection,
    Results,
    Tally,
    TaskResults,
    raised,
    raw_records_of,
    read_result,
    rejected_records,
    require_category,
    source_record,
)
from ledgerbeam.transforms.mapping.stages import Ahead, CallStage, ReadyFunction, stages_of
from ledgerbeam.user_code.guards import children, end_child, failed_by, has_ended, is_interrupt, message_of


@dataclass(frozen=True)
class MappingRules:
    """Settings of mappings, the same for all tasks of a process."""

    functions: Sequence[ReadyFunction]
    output: str | Format  # format of the outputs, or its name
    nan: NanRule  # treatment of NaN and infinities in JSONL
    rejects: bool  # whether an invalid record is rejected. Otherwise its task fails
    tables: bool = False  # whether results are tables (Arrow batches)
    keeps_dropped: bool = False  # whether dropped records are stored
    # Whether each result is checked at once, even if the format encodes all results of a task together
    placed: bool = False
    ahead: Ahead | None = None  # if the functions are in another process
    asynchronous: AsyncCalls = field(default_factory=AsyncCalls)  # how async functions are called
    # Whether each record has one row in the output. The row of a record without a result has nulls.
    per_record: bool = False

    @cached_property
    def labels(self) -> Sequence[str]:
        """The labels of several functions; empty for one function."""
        return [function.label for function in self.functions] if len(self.functions) > 1 else ()

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


_NOTHING = Outcome(End(0, NOTHING))
ONE_ROW = (
    "returned several results, or a Route, for one record: expected one mapping of names to values, or None for nulls"
)


class TaskMapping:
    """The mapping of one task."""

    def __init__(self, rules: MappingRules, task: Task) -> None:
        self._rules = rules
        self._task = task
        self._read = 0
        self._name = rules.functions[-1].name
        self._output = name_of(rules.output)
        self._tally = Tally(rules.collector(), rules.labels)
        self._rejections: list[Rejection] = []
        self._dropped: list[Rejection] = []
        self._accounted = 0  # number of records whose values were counted for each function
        # A result of this type is written as it is. Results for tar are always checked.
        self._plain = None if self._output == "tar" else dict

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
            rejects, dropped = (
                rejected_records(task, sorted(ends, key=lambda end: end.position)) if ends else []
                for ends in (self._rejections, self._dropped if self._rules.keeps_dropped else ())
            )
            if self._rules.per_record:
                datasets = {"": self._aligned(datasets.get(""), 0, self._read)}
        except UnplacedError:
            raise
        except RecordError as error:
            raise TaskFailedError(FailedTask(task, type(error).__name__, f"{task.name}: {name}: {error}")) from error
        except LedgerbeamError as error:
            raise TaskFailedError(failed_by(error, task, f"{task.name}: {message_of(error)}")) from error
        counts, statistics = self._tally.counts(self._read, datasets), {**statistics, **self._function_counts()}
        if not datasets and not rejects and not dropped:
            return NoneTask(task, counts=counts, statistics=statistics)
        return task.replace(records=TaskResults(datasets, counts, rejects, statistics, dropped))

    def _aligned(self, results: Any, first: int, records: int) -> Any:
        """Return a row for each record from position `first` on, from the `results` of those that have one.

        Blank lines, which have a number, have a row, too.
        """
        import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

        task = self._task
        numbers = np.arange(records)
        if records != task.stop - task.start:
            numbers = np.array([one.record for one in raw_records_of(task)], np.int64) - task.start
        numbers = numbers[first:]
        ended = [end.position - first for end in (*self._rejections, *self._dropped)]
        kept = np.delete(numbers, ended)
        start = int(numbers[0]) if first else 0
        rows = np.full(task.stop - task.start - start, -1)
        rows[kept - start] = np.arange(len(kept))
        schemas = getattr(self._rules.output, "schema", None)
        if schemas is None:
            raise RecordError("the columns have no schema, because no sampled record has values; give --schema")
        table = schemas.of().empty_table() if results is None else results
        return table.take(pa.array(rows, mask=rows < 0))

    def _function_counts(self) -> dict[str, Statistic]:
        """Return the counts of several functions as a statistic."""
        functions, counts = self._tally.functions, MergedFunctions()
        if not functions:
            return {}
        for one, following in pairwise(functions):
            one.returned = following.received
        for number, one in enumerate(functions):
            counts.add(number, one)
        return {FUNCTIONS: Statistic(counts.kind, counts.data())}

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
        if self._rules.per_record:
            datasets = {"": self._aligned(datasets.get(""), first, records)}
        return Recomputed(first, records, datasets, origins, self._place)

    def _place(self, position: int) -> str:
        return record_place(self._task, position)

    def _backwards(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the position and the outcome of each record, from the last to the first."""
        raise NotImplementedError

    def _outcome(self, result: Any, record: Any, position: int) -> Outcome:
        """Return the outcome of a record from the result of the only function, or from the results of a stage.

        FunctionError, RecordError: it is invalid.
        """
        if type(result) is Results:
            self._count(result, 0, position)
            held, ends = self._held_each(result.values, record, position)
            return Outcome.of_results([*result.ends, *ends], held)
        if result is None:
            return _NOTHING
        found = read_result(result, self._like(record), self._name, self._output)
        if not isinstance(found, list):
            return Outcome(End.of_result(found, self._name, 0))
        return Outcome(None, self._held(found, record, position))

    def _held(self, values: Sequence[tuple[str, Any]], record: Any, position: int) -> list[tuple[str, Any]]:
        """Return the results of a record as their collectors hold them. FunctionError, RecordError: one is invalid."""
        if self._output == "tar":
            samples = as_samples([value for _, value in values], record, self._task, position)
            values = [(route, sample) for (route, _), sample in zip(values, samples, strict=True)]
        return [(route, self._route(route).hold(value)) for route, value in values]

    def _held_each(
        self, values: Sequence[tuple[str, Any]], record: Any, position: int
    ) -> tuple[list[tuple[str, Any]], list[End]]:
        """Return the results of a record as `_held` does, and the ends of those that are invalid.

        The samples of a record are valid together, because their keys depend on their number.
        """
        held, ends, last = [], list[End](), len(self._rules.functions) - 1
        for part in [values] if self._output == "tar" and values else [[value] for value in values]:
            try:
                held += self._held(part, record, position)
            except BaseException as error:  # noqa: BLE001 - every error is attributed to its record
                ends.append(self._end_of(error, position, last))
        self._end_values(ends, position)
        self._tally.receive(last + 1, [len(held)])
        return held, ends

    def _like(self, record: Any) -> Any:
        """Return a record for `check_value`, which compares a result with it to find mistakes."""
        return record

    def _route(self, route: str) -> Collector:
        routes = self._tally.routes
        if route not in routes:
            require_category(route, "routes", len(routes) - 1)
            routes[route] = self._rules.collector(route)
        return routes[route]

    def _count(self, results: Results, first: int, position: int) -> None:
        """Count the values of the functions of a stage, whose first function has the number `first`."""
        self._accounted += 1
        self._tally.receive(first, results.received)
        self._end_values(results.ends, position)

    def _end_values(self, ends: Sequence[End], position: int, values: int = 1) -> None:
        """Count values that functions dropped or rejected. Raises TaskFailedError if the job rejects no records."""
        for end in ends:
            if end.error is not None and not self._rules.rejects:
                raise TaskFailedError(self._failed(end, position))
            if self._tally.functions:
                try:
                    self._tally.end(end, values)
                except CategoryError as too_many:
                    raise self._category_failure(too_many, position, end) from too_many

    def _take(self, outcome: Outcome, position: int, records: int = 1) -> None:
        """Collect the results of a record, or count its end, which may also be that of more records."""
        end = outcome.end
        if end is None and self._rules.per_record and (len(outcome.held) > 1 or outcome.held[0][0]):
            last = len(self._rules.functions) - 1
            end = self._end_of(FunctionError(f"{self._name} {ONE_ROW}"), position, last)
        if end is None:
            for route, held in outcome.held:
                self._tally.routes[route].take(held)
            return
        try:
            if end.error is None:
                self._tally.drop(end.reason, records)
                if self._rules.keeps_dropped or self._rules.per_record:
                    self._dropped.append(Rejection(position, end.reason, function=self._label(end)))
                return
            if not self._rules.rejects:
                raise TaskFailedError(self._failed(end, position))
            self._tally.reject(end.reason)
        except CategoryError as too_many:
            raise self._category_failure(too_many, position, end) from too_many
        error, at = without_secrets(end.error), without_secrets(end.at)
        label = self._label(end) if self._rules.labels else ""
        self._rejections.append(Rejection(position, end.reason, error, at, label))

    def _label(self, end: End) -> str | None:
        return None if end.function == NO_FUNCTION else self._rules.functions[end.function].label

    def _blame(self, error: BaseException, position: int) -> None:
        """Reject the record for which the last function, or the encoding of its result, raised an error."""
        number = len(self._rules.functions)
        end = self._end_of(error, position, number - 1)
        if self._tally.functions:
            self._count(Results((), (end,), () if end.function == NO_FUNCTION else [1] * number), 0, position)
        self._take(Outcome(end), position)

    def _end_of(self, error: BaseException, position: int, function: int) -> End:
        """Return the end of a value with an error. TaskFailedError: the job rejects no records, or none is to blame."""
        if is_interrupt(error) or type(error) in (ServiceError, TaskFailedError):  # `isinstance` could run user code
            raise error
        end = End.of_error(error, self._rules.functions[function].name, function)
        if not self._rules.rejects or type(error) in (CategoryError, ChildFailedError):
            raise TaskFailedError(self._failed(end, position)) from error
        return end

    def _category_failure(self, error: CategoryError, position: int, end: End) -> TaskFailedError:
        name = self._rules.functions[end.function].name
        return TaskFailedError(self._failed(End.of_error(error, name, end.function), position))

    def _failed(self, end: End, position: int) -> FailedTask:
        return FailedTask(self._task, end.reason, f"{self._place(position)}: {end.said}", broke=end.broke)


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
        if type(error) is ServiceError:
            raise error
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
