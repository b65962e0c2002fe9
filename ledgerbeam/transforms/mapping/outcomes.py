"""Outcomes of records, parsed from results of the user's functions: kept by route, dropped or rejected.

`TaskResults` has the outcomes of a task, and `Recomputed` those of an audit, which calls the user's functions with the
records of a finished task in reverse order.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import orjson

from ledgerbeam._base.lazy import np
from ledgerbeam._base.names import as_unicode, check_route
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import FunctionError, RecordError, UnsupportedShapeError
from ledgerbeam.io import Sample, ShardFile
from ledgerbeam.io.index.reader import NO_BYTES, RawRecord
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.accounts import NOTHING, RecordCounts, Statistic
from ledgerbeam.ledger.model.values import text
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.sketches import FunctionCounts
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from ledgerbeam.transforms.mapping.collectors import Collector
from ledgerbeam.user_code.guards import (
    ReportedError,
    describe_error,
    error_name,
    has_ended,
    is_break,
    message_of,
    raised_at,
)

EXPECTED = "expected a record, None or a list of records"
_OF_OBJECTS = ("jsonl", "tar", "parquet", "arrow")  # usually of objects; another result is probably a mistake
MOST_RAW = 64 * 1024  # maximum number of bytes that are kept of a rejected record
REJECTS_ENDING = ".jsonl"  # suffix of a file of rejects, for any output format
NOT_DECODED = "not decoded"  # reject reason of a record whose bytes do not fit its format
TIMEOUT = "timeout"  # reject reason of a record that takes too long
OUT_OF_MEMORY = "out of memory"  # reject reason of a record for which a function runs out of memory
_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes, datetime, date, Decimal})
NO_FUNCTION = -1  # in the place of the number of a function, for a record that cannot be decoded


class NotDecodedError(Exception):
    """A record could not be decoded, so it is not passed to the function."""


class ChildFailedError(FunctionError):
    """A process of functions cannot be started, or dies without a value in work. This fails the task."""


class End(NamedTuple):
    """The end of a value: a function dropped or rejected it, or raised for it."""

    function: int  # number of the function in the job, or `NO_FUNCTION`
    reason: str
    error: str | None = None  # description of the problem; None for a dropped value
    at: str = ""  # see `Rejection`
    said: str = ""  # the problem in the words of a failed task
    broke: bool = False  # see `FailedTask`

    @classmethod
    def of_result(cls, result: Drop | Reject, function: str, number: int) -> End:
        """Return the end of a value for which a function returned Drop or Reject."""
        if issubclass(type(result), Drop):
            return cls(number, result.reason)
        error: str = result.error  # type: ignore[union-attr]
        return cls(number, result.reason, error, "", f"{function} rejected it: {result.reason}{error and ': '}{error}")

    @classmethod
    def of_error(cls, error: BaseException, function: str, number: int) -> End:
        """Return the end of a value for which a function raised, or returned what cannot be used."""
        if issubclass(type(error), MemoryError):  # the same end in this process and in another one
            text = f"{function} {memory_text(message_of(error))}"
            error = ReportedError(OUT_OF_MEMORY, text, has_ended=True, function=number)
        message = message_of(error)
        if type(error) is NotDecodedError:
            return cls(NO_FUNCTION, NOT_DECODED, message, "", message)
        if type(error) is CategoryError:
            return cls(number, FunctionError.__name__, message, "", f"{function}: {message}")
        if type(error) is ChildFailedError:
            return cls(number, FunctionError.__name__, message, "", message)
        if type(error) in (FunctionError, RecordError):
            return cls(number, error_name(error), message, "", message, is_break(error))
        said = raised(error, function)
        return cls(number, error_name(error), message, raised_at(error), said, is_break(error))


def memory_text(message: str) -> str:
    """Return the text of a MemoryError that continues the name of the function."""
    return f"ran out of memory{': ' if message else ''}{message}"


def raised(error: BaseException, function: str) -> str:
    """Return the text about an error of a call for the message of a failed task."""
    if has_ended(error):
        return f"{message_of(error)}; to write the other records, use --on-error reject"
    return f"{function} raised {describe_error(error)}"


class Results(NamedTuple):
    """The results of a stage for one value: those for the next stage, and the ends of the others.

    Other values, such as a dict, are the only result of all functions of the stage.
    """

    values: Sequence[tuple[str, Any]] = ()  # pairs of route and result; an empty route stands for that of the value
    ends: Sequence[End] = ()
    received: Sequence[int] = (1,)  # number of values that each function of the stage received, up to the last one


class Outcome(NamedTuple):
    """The outcome of one record: kept, dropped or rejected."""

    end: End | None  # None for a kept record
    held: Sequence[tuple[str, Any]] = ()  # pairs of route and result, as the collector of the route holds it

    @classmethod
    def of_results(cls, ends: Sequence[End], held: Sequence[tuple[str, Any]]) -> Outcome:
        """Return the outcome of a record from the ends of some of its results, and the others.

        It is rejected by the earliest function that rejected a result, or dropped by the last one that dropped a
        result. So it does not depend on the order in which batches were called.
        """
        rejected = [end for end in ends if end.error is not None]
        if rejected:
            return cls(min(rejected, key=lambda end: end.function))
        return cls(None, held) if held else cls(max(reversed(ends), key=lambda end: end.function))


class Tally:
    """The outcomes of the records of one task so far, and the results of each of several functions."""

    def __init__(self, main: Collector, labels: Sequence[str] = ()) -> None:
        self.dropped: dict[str, int] = {}  # number of dropped records by reason
        self.rejected: dict[str, int] = {}  # number of rejected records by reason
        # Collector of the results of each route. The collector of the empty route always exists.
        self.routes: dict[str, Collector] = {"": main}
        self.functions = [FunctionCounts(label) for label in labels]

    def drop(self, reason: str, records: int = 1) -> None:
        """Count records that are dropped for a reason."""
        _count(self.dropped, reason, "reasons of Drop", records)

    def reject(self, reason: str) -> None:
        """Count a rejected record."""
        _count(self.rejected, reason, "reasons of rejected records")

    def receive(self, first: int, values: Iterable[int]) -> None:
        """Count values that functions received: one number for each function from `first` on.

        The number after that of the last function is the number of its results.
        """
        for at, received in enumerate(values if self.functions else (), first):
            if at == len(self.functions):
                self.functions[-1].returned += received
            else:
                self.functions[at].received += received

    def end(self, end: End, values: int = 1) -> None:
        """Count values that a function dropped or rejected."""
        if end.function != NO_FUNCTION:
            counts = self.functions[end.function]
            if end.error is None:
                _count(counts.dropped, end.reason, "reasons of Drop", values)
            else:
                _count(counts.rejected, end.reason, "reasons of rejected records", values)

    def counts(self, read: int, datasets: Mapping[str, Any]) -> RecordCounts:
        """Return the counts of a task that has read `read` records and writes `datasets`."""
        kept = read - sum(self.dropped.values()) - sum(self.rejected.values())
        written = {route: len(records) for route, records in datasets.items()}
        return RecordCounts(read, kept, self.dropped, self.rejected, written)


@dataclass(frozen=True)
class TaskResults:
    """The results of `MapRecords` for a task."""

    datasets: Mapping[str, Any]  # records to write in the form that the encoder takes, by route; empty for no route
    counts: RecordCounts
    rejects: Sequence[RejectedRecord] = ()  # in order
    statistics: Mapping[str, Statistic] = field(default_factory=dict)  # by name
    dropped: Sequence[RejectedRecord] = ()  # dropped records that are stored, in order


class RejectedRecord(NamedTuple):
    """A rejected or dropped record as stored in its source, and the reason: one row of a file of such records."""

    raw: RawRecord
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why a record of a task is rejected or dropped."""

    position: int  # position in the records of the task, from 0
    reason: str
    error: str = ""  # description of the problem, shortened and without secrets
    at: str = ""  # ``package/file.py:line`` of the code that raised, the same on every host; empty without an exception
    function: str | None = ""  # label of the function. Empty for the only one; None if the record is not decoded


@dataclass(frozen=True)
class Recomputed:
    """The results that an audit has recomputed: those of the last records of a task, or of all records."""

    first: int  # position of the first recomputed record in the task; 0 if all records were recomputed
    records: int  # number of records of the task
    datasets: Mapping[str, Any]  # results by route, in the order of the records, in the form that the encoder takes
    origins: Mapping[str, Sequence[int]]  # for each route, the positions of the records of its results, ascending
    place: Callable[[int], str]  # returns the name of the record at a position, for messages


class NotRecomputedError(Exception):
    """An audit failed: the function raised for a record that it had mapped without an error."""


def read_result(result: Any, record: Any, function: str, output_format: str) -> Drop | Reject | list[tuple[str, Any]]:
    """Return the records in the result of a function for a record, each with its route. FunctionError: it is invalid.

    `output_format` is empty for results that are the records of another function.
    """
    if result is None:
        return Drop(NOTHING)
    if issubclass(type(result), Drop | Reject):
        require_reason(result, function)
        end: Drop | Reject = result
        return end
    values = list(routed(result, function))
    for _, value in values:
        if type(value) is not dict:
            check_value(value, record, function, output_format)
    return values or Drop(NOTHING)


def routed(result: Any, function: str) -> Iterator[tuple[str, Any]]:
    """Yield the records in the result of a function, each with its route; the empty string for no route.

    Raises FunctionError for a Drop or a Reject in a list or a Route, or for an invalid route.
    """
    for item in result if issubclass(type(result), list) else [result]:
        if not issubclass(type(item), Route):
            _require_record(item, function, "a list")
            yield "", item
            continue
        name = route_name(item.name, function)
        inner = item.record
        if inner is None:
            raise FunctionError(
                f"{function} returned a Route of None: expected a record or a list of records; return "
                "None or Drop to drop a record"
            )
        for value in inner if issubclass(type(inner), list) else [inner]:
            if issubclass(type(value), Route):
                raise FunctionError(f"{function} returned a Route in a Route: expected records; a list may hold Routes")
            _require_record(value, function, "a Route")
            yield name, value


def check_value(value: Any, record: Any, function: str, output_format: str) -> None:
    """Raise FunctionError for a result that is not a record, or is probably a mistake, such as True for an object."""
    kind = type(value).__name__
    found = f"{function} returned {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
        raise FunctionError(f"{found}: {EXPECTED}; return its result, for example with asyncio.run")
    if isinstance(value, tuple | set | Iterator) or (value is None and not output_format):
        raise FunctionError(f"{found}: {EXPECTED}")
    if isinstance(value, bool | np.bool_) and not isinstance(record, bool):
        raise FunctionError(f"{found} ({value}): {EXPECTED}; to keep some records, `return record if ... else None`")
    if output_format not in _OF_OBJECTS:
        return
    if _is_object(record) and not _is_object(value) and not isinstance(value, list):
        raise FunctionError(
            f"{found} for a record that is a {type(record).__name__}: {EXPECTED}; return the whole record, for "
            "example {**record, 'name': value}, and leave None out of a list"
        )


def require_reason(end: Drop | Reject, function: str) -> None:
    """Check the reason of a dropped or rejected record. Raises FunctionError."""
    reason = end.reason
    if type(reason) is not str or not _is_text(reason):
        raise FunctionError(
            f"{function} returned {type(end).__name__}({reason!r:.60}): expected a short text as the reason, such as "
            f"{type(end).__name__}('too short')"
        )
    if issubclass(type(end), Reject) and type(end.error) is not str:  # type: ignore[union-attr]
        raise FunctionError(f"{function} returned a Reject whose error is not text; return Reject(reason, str(error))")


def route_name(name: Any, function: str) -> str:
    """Return the name of a route that a function returned. Raises FunctionError if it is invalid."""
    try:
        return check_route(name)
    except ValueError as error:
        raise FunctionError(f"{function} returned a Route: {error}") from None


class CategoryError(FunctionError):
    """A function uses too many reasons or routes, or too long ones. This fails the task, not one record."""


def require_category(name: str, what: str, known: int) -> None:
    """Check the name of a new reason or route of a task that has used `known` others. Raises CategoryError."""
    if len(name) > NAME_CHARACTERS:
        raise CategoryError(
            f"{what} are categories of at most {NAME_CHARACTERS} characters, found one of {len(name)}: {name[:60]!r} "
            "...; leave out details of the record, or pass them as the error of Reject"
        )
    if known >= MOST_NAMES:
        raise CategoryError(
            f"a task has at most {MOST_NAMES} different {what}, found one more: {name[:60]!r}; use names of "
            "categories, without details of the record"
        )


def _count(counts: dict[str, int], name: str, what: str, records: int = 1) -> None:
    if name not in counts:
        require_category(name, what, len(counts))
    counts[name] = counts.get(name, 0) + records


def rejected_records(task: Task, rejections: Sequence[Rejection]) -> list[RejectedRecord]:
    """Read the rejected records of a task from their source again, in the order of `rejections`.

    Raises UnsupportedShapeError if a function has replaced the records that `ReadTasks` read: their positions are then
    unknown. If the source has changed or cannot be read, raises SourceError, IndexError_ or StorageError.
    """
    if not rejections:
        return []
    raws = raw_records_of(task)
    return [RejectedRecord(raws[rejection.position], rejection) for rejection in rejections]


def source_record(task: Task, position: int) -> RawRecord | None:
    """Return a record of a task as stored in its source; None if it cannot be found."""
    try:
        return raw_records_of(task)[position]
    except Exception:  # noqa: BLE001 - the caller describes another error with it
        return None


def encode_rejects(rejected: Sequence[RejectedRecord], *, dropped: bool = False) -> ShardFile:
    """Encode rejected or dropped records as JSON, one line each. Equal records give equal bytes."""
    lines = [orjson.dumps(_row(*record, dropped), option=orjson.OPT_APPEND_NEWLINE) for record in rejected]
    return ShardFile(REJECTS_ENDING, b"".join(lines), len(lines))


def _require_record(value: Any, function: str, where: str) -> None:
    kind = type(value)
    if issubclass(kind, Drop | Reject):
        raise FunctionError(
            f"{function} returned a {kind.__name__} inside of {where}: expected records; return Drop or Reject alone, "
            "for the whole record"
        )


def _is_text(value: str) -> bool:
    try:
        return bool(text(value))
    except ValueError:
        return False


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping | orjson.Fragment) or dataclasses.is_dataclass(value)


def raw_records_of(task: Task) -> Sequence[RawRecord]:
    """Return the bytes of the records of a task, in order. UnsupportedShapeError: they are unknown."""
    if task.raw is None:
        raise UnsupportedShapeError(
            f"{task.name}: an earlier function made this task, so the bytes of its rejected records are unknown; "
            "reject records in the first function after ReadTasks"
        )
    raws = task.raw()
    if isinstance(task.records, RecordBlocks):  # unchanged since reading
        return raws
    if len(raws) != len(task.records):
        raise UnsupportedShapeError(
            f"{task.name}: expected the {len(raws)} records that were read, found {len(task.records)}; reject records "
            "in the first function after ReadTasks"
        )
    return raws


def _row(raw: RawRecord, rejection: Rejection, dropped: bool) -> dict[str, Any]:
    function = {} if rejection.function == "" else {"function": rejection.function}
    problem = {} if dropped else {"error": as_unicode(rejection.error), "at": as_unicode(rejection.at)}
    row: dict[str, Any] = {
        "source": as_unicode(without_secrets(raw.url)),
        "record": raw.record,
        "bytes": None if raw.start == NO_BYTES else [raw.start, raw.stop],
        **function,
        "reason": as_unicode(rejection.reason),
        **problem,
    }
    kept = raw.data[:MOST_RAW]
    text = _as_text(kept, is_cut=len(kept) < len(raw.data))
    if text is None:
        row["raw_base64"] = base64.b64encode(kept).decode("ascii")
    else:
        row["raw"] = text
    if len(kept) < len(raw.data):
        row["raw_truncated"] = True
    return row


def _as_text(data: bytes, *, is_cut: bool) -> str | None:
    """Decode UTF-8 bytes; None if they are not UTF-8. A character cut at the end is left out."""
    for dropped in range(4 if is_cut else 1):
        try:
            return data[: len(data) - dropped].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return None


def copied(value: Any) -> Any:
    """Return a value that a function may change in place without a change of the given one."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        return {name: one if type(one) in _IMMUTABLE else copied(one) for name, one in value.items()}
    if kind is list:
        return [one if type(one) in _IMMUTABLE else copied(one) for one in value]
    if kind is Sample:
        return Sample(value.key, value)  # of bytes
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - an object that cannot be copied, such as a handle, is shared
        return value
