"""Outcomes of records, parsed from results of the user's function: kept by route, dropped or rejected.

`TaskResults` has the outcomes of a task, and `Recomputed` those of an audit, which calls the user's object with the
records of a finished task in reverse order.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from ledgerbeam._base.lazy import np
from ledgerbeam._base.names import as_unicode, check_route
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import FunctionError, UnsupportedShapeError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.index.reader import NO_BYTES, RawRecord
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.values import text
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from ledgerbeam.transforms.mapping.collectors import Collector

EXPECTED = "expected a record, None or a list of records"
_OF_OBJECTS = ("jsonl", "tar", "parquet", "arrow")  # usually of objects; another result is probably a mistake
MOST_RAW = 64 * 1024  # maximum number of bytes that are kept of a rejected record
REJECTS_ENDING = ".jsonl"  # suffix of a file of rejects, for any output format


class Outcome(NamedTuple):
    """The outcome of one record: kept, dropped or rejected."""

    end: Drop | Reject | None  # None for a kept record
    held: tuple[tuple[str, Any], ...] = ()  # pairs of route and result, as the collector of the route holds it


class Tally:
    """The outcomes of the records of one task so far."""

    def __init__(self, main: Collector) -> None:
        self.dropped: dict[str, int] = {}  # number of dropped records by reason
        self.rejected: dict[str, int] = {}  # number of rejected records by reason
        # Collector of the results of each route. The collector of the empty route always exists.
        self.routes: dict[str, Collector] = {"": main}

    def drop(self, reason: str, records: int = 1) -> None:
        """Count records that are dropped for a reason."""
        _count(self.dropped, reason, "reasons of Drop", records)

    def reject(self, reason: str) -> None:
        """Count a rejected record."""
        _count(self.rejected, reason, "reasons of rejected records")

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


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A rejected record with its position and bytes: one row of a file of rejects."""

    source: str  # URL of the source. For a pack, the URL of the member
    record: int  # number of the record in the source, from 0
    start: int  # offset of its first byte in the source, or in the decompressed data of a compressed source
    stop: int  # offset after its last byte
    raw: bytes  # bytes of the record in the source
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why a record of a task is rejected."""

    position: int  # position in the records of the task, from 0
    reason: str
    error: str = ""  # description of the problem, shortened and without secrets
    at: str = ""  # ``package/file.py:line`` of the code that raised, the same on every host; empty without an exception


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
    if isinstance(value, tuple | set | Iterator):
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
    raws = _raw_records(task)
    return [
        RejectedRecord(raw.url, raw.record, raw.start, raw.stop, raw.data, rejection)
        for rejection, raw in ((rejection, raws[rejection.position]) for rejection in rejections)
    ]


def source_record(task: Task, position: int) -> RawRecord | None:
    """Return a record of a task as stored in its source; None if it cannot be found."""
    try:
        return _raw_records(task)[position]
    except Exception:  # noqa: BLE001 - the caller describes another error with it
        return None


def encode_rejects(rejected: Sequence[RejectedRecord]) -> ShardFile:
    """Encode rejected records as JSON, one line each. Equal records give equal bytes."""
    lines = [orjson.dumps(_row(record), option=orjson.OPT_APPEND_NEWLINE) for record in rejected]
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


def _raw_records(task: Task) -> Sequence[RawRecord]:
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


def _row(record: RejectedRecord) -> dict[str, Any]:
    rejection = record.rejection
    row: dict[str, Any] = {
        "source": as_unicode(without_secrets(record.source)),
        "record": record.record,
        "bytes": None if record.start == NO_BYTES else [record.start, record.stop],
        "reason": as_unicode(rejection.reason),
        "error": as_unicode(rejection.error),
        "at": as_unicode(rejection.at),
    }
    kept = record.raw[:MOST_RAW]
    text = _as_text(kept, is_cut=len(kept) < len(record.raw))
    if text is None:
        row["raw_base64"] = base64.b64encode(kept).decode("ascii")
    else:
        row["raw"] = text
    if len(kept) < len(record.raw):
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
