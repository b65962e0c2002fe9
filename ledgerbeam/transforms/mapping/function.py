"""Functions of records as functions of one task, for `ProcessTask`."""

from __future__ import annotations

import copy
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

from ledgerbeam import stats
from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io import Format
from ledgerbeam.io.conversion import find_conversion
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sources.forms import ARROW_OUTPUTS, ARROW_ROWS, OnError, RecordForm
from ledgerbeam.transforms.mapping.async_calls import IN_FLIGHT, AsyncCalls
from ledgerbeam.transforms.mapping.collectors import UnplacedError, name_of
from ledgerbeam.transforms.mapping.isolation import IsolatedCalls
from ledgerbeam.transforms.mapping.outcomes import NotRecomputedError, Recomputed
from ledgerbeam.transforms.mapping.record_mapping import RecordMapping
from ledgerbeam.transforms.mapping.stages import HostedFunctions
from ledgerbeam.transforms.mapping.task_mapping import (
    BatchAgainError,
    BatchMapping,
    MappingRules,
    TaskFailedError,
    TaskMapping,
)
from ledgerbeam.user_code.functions import code_identity, made_of
from ledgerbeam.user_code.functions_of_job import Function, JobFunction, read_functions
from ledgerbeam.user_code.objects import ReadyObject, depends_on_batches

RESTARTS = 3  # restarts of a task with statistics whose batch raises; after that, all its batches have one record


@dataclass(frozen=True)
class EachRecord:
    """A function of one task, for `ProcessTask`, that calls a function with each record, as `beam.Map` does.

    The result replaces the record; None drops it. `MapRecords` can do more: batches, `Route`, `Reject`, reasons for
    `Drop`, and results that are encoded one by one.

    Attributes:
        function: Takes a record and returns a record or None.
    """

    function: Callable[[Any], Any]

    def __repr__(self) -> str:
        return f"EachRecord({_name(self.function)})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the function and its code."""
        return {"each": _name(self.function), **code_identity(self.function)}

    def __call__(self, task: Task) -> Task | NoneTask:
        """Return the task with the results."""
        return _replaced(task, [result for record in task.records if (result := self.function(record)) is not None])


@dataclass(frozen=True)
class FilterRecords:
    """A function of one task, for `ProcessTask`, that keeps the records for which a predicate is true (`beam.Filter`).

    Attributes:
        predicate: Takes a record and returns whether to keep it.
    """

    predicate: Callable[[Any], Any]

    def __repr__(self) -> str:
        return f"FilterRecords({_name(self.predicate)})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the predicate and its code."""
        return {"filter": _name(self.predicate), **code_identity(self.predicate)}

    def __call__(self, task: Task) -> Task | NoneTask:
        """Return the task with the kept records."""
        return _replaced(task, [record for record in task.records if self.predicate(record)])


class FunctionOfTask(ABC):
    """Base of functions of one task that call a user's objects. Each process creates the objects once."""

    takes_blocks = True
    step = 1  # number of records in a batch. A partial recomputation starts at a multiple of it
    is_async = False  # whether the user's objects return coroutines
    marks = False  # whether the function takes `Unreadable` in the place of records that cannot be decoded

    _ready: tuple[ReadyObject, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the user's objects, for messages."""

    def set_up(self) -> tuple[ReadyObject, ...]:
        """Import the objects, or make the instances of classes, once in each process.

        Raises FunctionError if that fails; see `UserObject.ready` for other errors.
        """
        if self._ready is None:
            self._ready = self._load()
        return self._ready

    def recomputed(self, task: Task, is_late: Callable[[], bool]) -> Recomputed:
        """Map the records of a finished task again, from the last one to the first, until `is_late` returns True.

        `is_late` is called after each call of the user's objects. Raises NotRecomputedError if an object raises.
        """
        ready = self.set_up()
        with in_turn(ready), stats.collecting(self._labels) as discarded:
            try:
                return self._mapping_again(ready, task, discarded).recomputed(is_late)
            except TaskFailedError as failed:
                raise NotRecomputedError(failed.task.error) from failed

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:  # noqa: ARG002 - most read no file
        """Return the function with the storage options for its files."""
        return self

    @property
    def _labels(self) -> Sequence[str]:
        """Labels of several functions, whose statistics are collected separately."""
        return ()

    def isolated(self) -> Self:
        """Return a function that calls the object in another process, which it may end; here, if it can do that."""
        return self

    @abstractmethod
    def _load(self) -> tuple[ReadyObject, ...]: ...

    @abstractmethod
    def _mapping_again(self, ready: tuple[ReadyObject, ...], task: Task, collected: stats.Collected) -> TaskMapping: ...


@contextmanager
def in_turn(ready: Sequence[ReadyObject]) -> Iterator[None]:
    """Hold the locks of objects: an instance may hold state of the current record, so threads take turns."""
    locks = {id(one.in_turn): one.in_turn for one in ready}
    with ExitStack() as stack:
        for _, lock in sorted(locks.items()):  # one order for all threads
            stack.enter_context(lock)
        yield


class _AsyncCalls(threading.local):
    """The calls of the async functions of this thread."""

    def __init__(self) -> None:
        self.known: WeakKeyDictionary[MapRecords, AsyncCalls] = WeakKeyDictionary()


_async_calls = _AsyncCalls()


class MapRecords(FunctionOfTask):
    """A function of one task, for `ProcessTask`, that calls a user's object with the records.

    The object takes a record or a list of records. A record of JSONL is the decoded value, a record of tar a mapping
    from extension to bytes. For each record the object returns a record, a list of records, None to drop the record,
    or `Drop`, `Reject` or `Route`. Each result is encoded or copied before the next call, so the object may return the
    same object again. With ``form="arrow"`` it takes Arrow record batches and returns record batches, frames or `Rows`.

    If a source is read in blocks, only one block of its records is decoded at a time. A batch may span two blocks.

    A call returns the task with `TaskResults`, or a `NoneTask` if there is nothing to write.

    The results of one function are the records of the next. A source record is rejected if one of its results is
    rejected in any function. Else it is kept if something of it is written. Else it is dropped.

    Args:
        functions: ``module:object`` or the object itself: a function, a callable object, or a class. Each worker
            process makes one instance of a class. A list has the functions of a job in order.
        output_format: Format of the outputs, or its name.
        values: Keyword arguments of the functions, or of the constructors of classes; see `job_functions`.
        batch: Maximum number of records in a batch, for all functions or by label; a batch has records of one task
            only. None calls a function with single records, or with Arrow batches of at most 65,536 rows.
        form: ``records``, or ``arrow`` to pass `pyarrow.RecordBatch`.
        watched: Checksums of the files that the object reads, by URL.
        nan: Treatment of NaN and infinities in JSONL.
        on_error: Treatment of a record that cannot be decoded, or for which the object raises or returns `Reject`:
            ``fail`` fails its task, ``reject`` stores the record with the rejected ones.
        keep_dropped: Whether dropped records are stored in the folder ``_dropped``, as rejected ones are.
        style: Name of the convention of another library that the functions follow.
        record_timeout: Longest time of all calls of functions of single records for one record, and of each call with a
            batch, in seconds. The calls then run in another process, which is killed if they take longer. None calls
            the functions in this process. Async functions are always called in this process, and then cancelled.
        in_flight: Most records for which async functions are called at once in a process; default 32.
        per_record: Whether the output is a table with one row for each record: the columns beside it. A function
            returns one mapping of names to values. The row of a dropped or rejected record has nulls.
    """

    _inside: MapRecords | None = None  # of an isolated function: the one that calls the functions in this process
    _calls: IsolatedCalls | None = None

    def __init__(
        self,
        functions: Function | Sequence[Function] | Sequence[JobFunction],
        output_format: str | Format,
        *,
        values: Mapping[str, Any] | None = None,
        batch: int | Mapping[str, int] | None = None,
        form: RecordForm = "records",
        watched: Mapping[str, str] | None = None,
        nan: NanRule = "refuse",
        on_error: OnError = "fail",
        keep_dropped: bool = False,
        style: str | None = None,
        record_timeout: float | None = None,
        in_flight: int | None = None,
        per_record: bool = False,
    ) -> None:
        if record_timeout is not None and not record_timeout > 0:
            raise UsageError(f"MapRecords: record_timeout: expected more than 0 seconds, found {record_timeout}")
        if in_flight is not None and in_flight < 1:
            raise UsageError(f"MapRecords: in_flight: expected at least 1 record, found {in_flight}")
        self.record_timeout = record_timeout
        self.in_flight = in_flight
        self.functions = read_functions(functions, values, batch, watched, style)
        self.output_format = name_of(output_format)
        if form == "arrow" and self.output_format not in ARROW_OUTPUTS:
            raise UsageError(
                f"expected one of {', '.join(ARROW_OUTPUTS)} as the format of the outputs of a function of Arrow "
                f"batches, found {self.output_format}; use a function of records, or convert the outputs afterwards"
            )
        self.form: RecordForm = form
        self.nan: NanRule = nan
        self.on_error: OnError = on_error
        self.keep_dropped = keep_dropped
        self.per_record = per_record
        self.marks = on_error == "reject"
        self._format = output_format

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_calls": None}

    def __repr__(self) -> str:
        references = [str(one.object.reference) for one in self.functions]
        return f"MapRecords({references[0] if len(references) == 1 else references!r}, {self.output_format!r})"

    @property
    def name(self) -> str:
        """Name of the functions, for messages."""
        return ", ".join(str(one.object.reference) for one in self.functions)

    @property
    def step(self) -> int:  # type: ignore[override]
        """Number of records at a multiple of which a partial recomputation starts."""
        sizes = [one.batch or (ARROW_ROWS if self.form == "arrow" else 1) for one in self.functions]
        # Batches of results of an earlier function have any number of source records.
        is_fixed = self.form == "records" and any(one.depends_on_batches for one in self.set_up()[1:])
        return sys.maxsize if is_fixed else sizes[0]

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the objects, the modules of their code, and their arguments."""
        shared: dict[str, Json] = {
            "watched file": dict(self.functions[0].object.watched),
            "as": self.form,
            "nan": self.nan,
            **({"keep dropped": True} if self.keep_dropped else {}),
            **({"per record": True} if self.per_record else {}),
        }
        sizes = [one.batch for one in self.functions]
        if any(sizes) and any(depends_on_batches(one.object.check()) for one in self.functions):
            batches: list[dict[str, Json]] = [{} if size is None else {"batch": size} for size in sizes]
        else:
            batches = [{} for _ in sizes]
        found: list[dict[str, Json]] = [
            {
                "function": str(one.object.reference),
                **made_of(one.object.reference, one.object.values, one.object.style),
                "set": dict(one.object.values),
                **batch,
            }
            for one, batch in zip(self.functions, batches, strict=True)
        ]
        return {**found[0], **shared} if len(found) == 1 else {"functions": list[Json](found), **shared}

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:
        """Return a copy that reads watched files with the storage options of the pipeline."""
        given = copy.copy(self)
        given.functions = tuple(
            replace(one, object=replace(one.object, storage_options=options)) for one in self.functions
        )
        return given

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Map the records of `task`. The first call also runs `set_up`, and raises its errors."""
        ready = self.set_up()
        rules = self._rules(ready)
        with in_turn(ready), rules.asynchronous.of_task(task):
            try:
                found: Task | NoneTask | FailedTask = self._mapped(task, rules)
            except TaskFailedError as failed:
                found = failed.task
        if self._inside is not None and self._calls is not None and self._calls.take_unsent():
            return self._inside(task)
        return found

    def isolated(self) -> Self:
        """Return a function that calls the functions in another process, for tasks during which a worker has died.

        If a record or a result cannot be sent to another process, it maps the task in this process.
        """
        if self.record_timeout is not None or self._inside is not None or self.is_async:
            return self
        isolated = copy.copy(self)
        isolated._ready, isolated._inside = None, self  # noqa: SLF001 - a copy of this object
        return isolated

    @property
    def is_async(self) -> bool:  # type: ignore[override]
        """Whether one of the functions is async."""
        return self._hosted.are_async

    def recomputed(self, task: Task, is_late: Callable[[], bool]) -> Recomputed:
        """Map the records again, see `FunctionOfTask.recomputed`."""
        with self._rules(self.set_up()).asynchronous.of_task(task):
            return super().recomputed(task, is_late)

    @property
    def _labels(self) -> Sequence[str]:
        return self._hosted.labels

    def _load(self) -> tuple[ReadyObject, ...]:
        if self._inside is None and (self.record_timeout is None or self.is_async):
            return self._hosted.build()
        self._calls = IsolatedCalls(self._hosted, self.record_timeout)
        return self._calls.set_up()

    @property
    def _hosted(self) -> HostedFunctions:
        return HostedFunctions(self.functions, self.output_format, ARROW_ROWS if self.form == "arrow" else None)

    def _rules(self, ready: tuple[ReadyObject, ...]) -> MappingRules:
        if (calls := _async_calls.known.get(self)) is None:
            calls = _async_calls.known[self] = AsyncCalls(self.in_flight or IN_FLIGHT, self.record_timeout)
        return MappingRules(
            self._hosted.mapped(ready),
            self._format,
            self.nan,
            self.marks,
            self.form == "arrow",
            self.keep_dropped,
            ahead=None if self._calls is None else self._calls.ahead,
            asynchronous=calls,
            per_record=self.per_record,
        )

    def _mapping_again(self, ready: tuple[ReadyObject, ...], task: Task, collected: stats.Collected) -> TaskMapping:
        return self._mapping(self._rules(ready), task, collected, ())

    def _mapped(self, task: Task, rules: MappingRules) -> Task | NoneTask:
        cut_up: Collection[int] = ()
        unplaced: UnplacedError | None = None
        while True:
            try:
                with stats.collecting(self._labels) as collected:
                    mapping = self._mapping(rules, task, collected, cut_up)
                    mapping.run()
            except BatchAgainError as again:
                cut_up = {*cut_up, again.key} if len(cut_up) < RESTARTS else range(sys.maxsize)
                continue
            found = collected.statistics()
            try:
                with timed("encode"):
                    results = mapping.results({name: Statistic(*statistic) for name, statistic in found.items()})
            except UnplacedError as error:
                rules, unplaced = replace(rules, placed=True), error
                continue
            if unplaced is not None and not rules.rejects:  # now each result fits: the function changed its records
                problem = f"{task.name}: {unplaced}; return a new record in place of a changed one"
                raise TaskFailedError(FailedTask(task, RecordError.__name__, problem)) from unplaced
            return results

    def _mapping(
        self, rules: MappingRules, task: Task, collected: stats.Collected, cut_up: Collection[int]
    ) -> BatchMapping:
        if self.form == "arrow":
            from ledgerbeam.transforms.mapping.arrow_batches import ArrowMapping  # noqa: PLC0415 - brings pyarrow

            return ArrowMapping(rules, task, collected, cut_up)
        return RecordMapping(rules, task, collected, cut_up)


class MapWithin(MapRecords):
    """Maps records with a function of the library. It is not async, and not called in another process."""

    is_async = False

    def isolated(self) -> Self:
        return self


class ConvertRecords(MapWithin):
    """A conversion of one record, by its name in `io.conversion`, as a function of one task, for `ProcessTask`."""

    def __init__(self, conversion: str, output_format: str | Format) -> None:
        super().__init__(f"convert:{conversion}", output_format)
        self._conversion = conversion

    def _load(self) -> tuple[ReadyObject, ...]:
        return (ReadyObject(find_conversion(self._conversion)),)


def _replaced(task: Task, records: list[Any]) -> Task | NoneTask:
    return task.replace(records=records) if records else NoneTask(task)


def _name(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
