"""Functions of records as functions of one task, for `ProcessTask`."""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ledgerbeam import stats
from ledgerbeam.errors import UsageError
from ledgerbeam.io import Format
from ledgerbeam.io.conversion import find_conversion
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sources.forms import ARROW_OUTPUTS, ARROW_ROWS, OnError, RecordForm
from ledgerbeam.transforms.mapping.batches import BatchAgainError, ListMapping
from ledgerbeam.transforms.mapping.collectors import UnplacedError, name_of
from ledgerbeam.transforms.mapping.outcomes import NotRecomputedError, Recomputed
from ledgerbeam.transforms.mapping.task_mapping import MappingRules, TaskFailedError, TaskMapping
from ledgerbeam.user_code.functions import code_identity, made_of, reference_of
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import ReadyObject, UserObject, check_object, depends_on_batches

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
    """Base of functions of one task that call a user's object. Each process creates the object once."""

    takes_blocks = True
    reference: Reference  # the user's object
    step = 1  # number of records in a batch. A partial recomputation starts at a multiple of it
    marks = False  # whether the function takes `Unreadable` in the place of records that cannot be decoded

    _ready: ReadyObject | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def set_up(self) -> ReadyObject:
        """Import the object, or make the instance of the class, once in each process.

        Raises FunctionError if that fails; see `UserObject.ready` for other errors.
        """
        if self._ready is None:
            self._ready = self._load()
        return self._ready

    def recomputed(self, task: Task, is_late: Callable[[], bool]) -> Recomputed:
        """Map the records of a finished task again, from the last one to the first, until `is_late` returns True.

        `is_late` is called after each call of the user's object. Raises NotRecomputedError if the object raises.
        """
        ready = self.set_up()
        with ready.in_turn, stats.discarded():
            try:
                return self._mapping_again(ready, task).recomputed(is_late)
            except TaskFailedError as failed:
                raise NotRecomputedError(failed.task.error) from failed

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:  # noqa: ARG002 - most read no file
        """Return the function with the storage options for its files."""
        return self

    @abstractmethod
    def _load(self) -> ReadyObject: ...

    @abstractmethod
    def _mapping_again(self, ready: ReadyObject, task: Task) -> TaskMapping: ...


class MapRecords(FunctionOfTask):
    """A function of one task, for `ProcessTask`, that calls a user's object with the records.

    The object takes a record or a list of records. A record of JSONL is the decoded value, a record of tar a mapping
    from extension to bytes. For each record the object returns a record, a list of records, None to drop the record,
    or `Drop`, `Reject` or `Route`. Each result is encoded or copied before the next call, so the object may return the
    same object again. With ``form="arrow"`` it takes Arrow record batches and returns record batches, frames or `Rows`.

    If a source is read in blocks, only one block of its records is decoded at a time. A batch may span two blocks.

    A call returns the task with `TaskResults`, or a `NoneTask` if there is nothing to write.

    Args:
        reference: ``module:object`` or the object itself: a function, a callable object, or a class. Each worker
            process makes one instance of a class.
        output_format: Format of the outputs, or its name.
        values: Keyword arguments of the function, or of the constructor of the class.
        batch: Maximum number of records in a batch; a batch has records of one task only. None calls the object with
            single records, or with Arrow batches of at most 65,536 rows.
        form: ``records``, or ``arrow`` to pass `pyarrow.RecordBatch`.
        watched: Checksums of the files that the object reads, by URL.
        nan: Treatment of NaN and infinities in JSONL.
        on_error: Treatment of a record that cannot be decoded, or for which the object raises or returns `Reject`:
            ``fail`` fails its task, ``reject`` stores the record with the rejected ones.
    """

    def __init__(
        self,
        reference: Reference | Callable[..., Any],
        output_format: str | Format,
        *,
        values: Mapping[str, Any] | None = None,
        batch: int | None = None,
        form: RecordForm = "records",
        watched: Mapping[str, str] | None = None,
        nan: NanRule = "refuse",
        on_error: OnError = "fail",
    ) -> None:
        if batch is not None and batch < 1:
            raise UsageError(f"MapRecords: batch: expected at least 1, found {batch}")
        self.reference = reference_of(reference)
        self.output_format = name_of(output_format)
        if form == "arrow" and self.output_format not in ARROW_OUTPUTS:
            raise UsageError(
                f"expected one of {', '.join(ARROW_OUTPUTS)} as the format of the outputs of a function of Arrow "
                f"batches, found {self.output_format}; use a function of records, or convert the outputs afterwards"
            )
        self.batch = batch
        self.form: RecordForm = form
        self.nan: NanRule = nan
        self.on_error: OnError = on_error
        self.step = batch or (ARROW_ROWS if form == "arrow" else 1)
        self.marks = on_error == "reject"
        self._object = UserObject(self.reference, values or {}, watched or {})
        self._format = output_format

    def __repr__(self) -> str:
        return f"MapRecords({str(self.reference)!r}, {self.output_format!r})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the object, the modules of its code, and its arguments."""
        shaping: dict[str, Json] = {
            "function": str(self.reference),
            **made_of(self.reference),
            "set": dict(self._object.values),
            "watched file": dict(self._object.watched),
            "as": self.form,
            "nan": self.nan,
        }
        if self.batch is not None and depends_on_batches(check_object(self.reference, self._object.values)):
            shaping["batch"] = self.batch
        return shaping

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:
        """Return a copy that reads watched files with the storage options of the pipeline."""
        given = copy.copy(self)
        given._object = replace(self._object, storage_options=options)  # noqa: SLF001 - a copy of this object
        return given

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Map the records of `task`. The first call also runs `set_up`, and raises its errors."""
        ready = self.set_up()
        # An instance may hold state of the current record, so threads take turns.
        with ready.in_turn:
            try:
                return self._mapped(task, self._rules(ready))
            except TaskFailedError as failed:
                return failed.task

    def _load(self) -> ReadyObject:
        return self._object.ready()

    def _rules(self, ready: ReadyObject) -> MappingRules:
        return MappingRules(
            str(self.reference),
            ready.call,
            self._format,
            self.nan,
            self.marks,
            not ready.depends_on_batches,
            self.form == "arrow",
        )

    def _mapping_again(self, ready: ReadyObject, task: Task) -> TaskMapping:
        return self._mapping(self._rules(ready), task, (), lambda: ())

    def _mapped(self, task: Task, rules: MappingRules) -> Task | NoneTask:
        cut_up: Collection[int] = ()
        while True:
            try:
                with stats.collecting() as collected:
                    mapping = self._mapping(rules, task, cut_up, collected.statistics)
                    mapping.run()
            except BatchAgainError as again:
                cut_up = {*cut_up, again.start} if len(cut_up) < RESTARTS else range(sys.maxsize)
                continue
            found = collected.statistics()
            try:
                with timed("encode"):
                    return mapping.results({name: Statistic(*statistic) for name, statistic in found.items()})
            except UnplacedError:
                rules = replace(rules, placed=True)

    def _mapping(
        self, rules: MappingRules, task: Task, cut_up: Collection[int], observed: Callable[[], Collection[str]]
    ) -> TaskMapping:
        if self.form == "arrow":
            from ledgerbeam.transforms.mapping.arrow_batches import ArrowMapping  # noqa: PLC0415 - brings pyarrow

            return ArrowMapping(rules, task, self.batch or ARROW_ROWS, cut_up, observed)
        if self.batch is None:
            return TaskMapping(rules, task)
        return ListMapping(rules, task, self.batch, cut_up, observed)


class ConvertRecords(MapRecords):
    """A conversion of one record, by its name in `io.conversion`, as a function of one task, for `ProcessTask`."""

    def __init__(self, conversion: str, output_format: str | Format) -> None:
        super().__init__(f"convert:{conversion}", output_format)
        self._conversion = conversion

    def _load(self) -> ReadyObject:
        return ReadyObject(find_conversion(self._conversion))


def _replaced(task: Task, records: list[Any]) -> Task | NoneTask:
    return task.replace(records=records) if records else NoneTask(task)


def _name(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
