"""Outcomes of records (kept by route, dropped, rejected), parsed from results, and their totals for a task."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from ledgerbeam._base.names import check_route
from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.values import text
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from ledgerbeam.transforms.mapping.collectors import Collector

EXPECTED = "expected a record, None or a list of records"

_OF_OBJECTS = ("jsonl", "tar", "parquet", "arrow")
"""Formats whose records are usually objects. Another result is probably a mistake of the function."""


class CategoryError(FunctionError):
    """Too many reasons or routes, or one that is no category. An error of the function, not of one record."""


class Outcome(NamedTuple):
    """The outcome of one record. Two outcomes are equal if their written bytes would be equal.

    Attributes:
        end: `Drop` or `Reject`; None for a kept record.
        held: Pairs of route and result, each result in the form that the collector of the route holds.
    """

    end: Drop | Reject | None
    held: tuple[tuple[str, Any], ...] = ()


class Tally:
    """The outcomes of the records of one task so far.

    Attributes:
        dropped: Number of dropped records by reason.
        rejected: Number of rejected records by reason.
        routes: Collector of the results of each route. The collector of the empty route always exists.
    """

    def __init__(self, main: Collector) -> None:
        self.dropped: dict[str, int] = {}
        self.rejected: dict[str, int] = {}
        self.routes: dict[str, Collector] = {"": main}

    def drop(self, reason: str, records: int = 1) -> None:
        """Count dropped records."""
        _count(self.dropped, reason, "reasons of Drop", records)

    def reject(self, reason: str) -> None:
        """Count a rejected record."""
        _count(self.rejected, reason, "reasons of rejected records")

    def counts(self, read: int, datasets: Mapping[str, Any]) -> RecordCounts:
        """Return the counts of a task of which `read` records were read and `datasets` are written."""
        kept = read - sum(self.dropped.values()) - sum(self.rejected.values())
        written = {route: len(records) for route, records in datasets.items()}
        return RecordCounts(read, kept, self.dropped, self.rejected, written)


def _count(counts: dict[str, int], name: str, what: str, records: int = 1) -> None:
    if name not in counts:
        require_category(name, what, len(counts))
    counts[name] = counts.get(name, 0) + records


def require_category(name: str, what: str, known: int) -> None:
    """Check one more reason or route of a task. Raises CategoryError."""
    if len(name) > NAME_CHARACTERS:
        raise CategoryError(
            f"{what} are categories of at most {NAME_CHARACTERS} characters, found one of {len(name)}: {name[:60]!r} "
            "...; leave out details of the record, or pass them as the error of Reject"
        )
    if known >= MOST_NAMES:
        raise CategoryError(
            f"a task has at most {MOST_NAMES} different {what}, found one more: {name[:60]!r}; use categories, without "
            "details of the record"
        )


def routed(result: Any, function: str) -> Iterator[tuple[str, Any]]:
    """Yield the records in the result of a function, each with its route; the empty string for no route.

    Raises:
        FunctionError: A list or a Route contains a Drop or a Reject, or a route is invalid.
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


def _require_record(value: Any, function: str, where: str) -> None:
    kind = type(value)
    if issubclass(kind, Drop | Reject):
        raise FunctionError(
            f"{function} returned a {kind.__name__} inside of {where}: expected records; return Drop or Reject alone, "
            "for the whole record"
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
        raise FunctionError(f"{function} returned a Reject whose error is no text; expected Reject(reason, error)")


def route_name(name: Any, function: str) -> str:
    """Return the name of a route that a function returned. Raises FunctionError if it is invalid."""
    try:
        return check_route(name)
    except ValueError as error:
        raise FunctionError(f"{function} returned a Route: {error}") from None


def _is_text(value: str) -> bool:
    try:
        return bool(text(value))
    except ValueError:
        return False


def check_value(value: Any, record: Any, function: str, output_format: str) -> None:
    """Raise FunctionError for a result that is not a record, or that is probably a mistake."""
    found = f"{function} returned a {type(value).__name__}"
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


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping | orjson.Fragment) or dataclasses.is_dataclass(value)
