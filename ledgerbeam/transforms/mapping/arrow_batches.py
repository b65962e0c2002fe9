"""Mapping of one task in Arrow record batches: slices of its table, without Python objects for records."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ledgerbeam.errors import FunctionError
from ledgerbeam.io.columns.encode import as_array, as_table, fits_one_batch, record_batch
from ledgerbeam.ledger.model.accounts import NOTHING
from ledgerbeam.results import Drop, Reject, Route, Rows
from ledgerbeam.sources.forms import PartialTable
from ledgerbeam.stats import MOST_NAMES
from ledgerbeam.transforms.mapping.batches import BatchMapping, batch_failures, halves
from ledgerbeam.transforms.mapping.outcomes import (
    CategoryError,
    Recomputed,
    require_category,
    require_reason,
    route_name,
)
from ledgerbeam.user_code.guards import describe_error, message_of


class ArrowMapping(BatchMapping):
    """The mapping of one task in record batches. The arguments are those of `BatchMapping`."""

    @cached_property
    def _partial(self) -> PartialTable | None:
        return self._task.records if isinstance(self._task.records, PartialTable) else None

    @cached_property
    def _table(self) -> pa.Table:
        return self._task.records if self._partial is None else self._partial.table

    def _windows(self) -> Iterator[range]:
        records = len(self._table) if self._partial is None else len(self._partial)
        for start in range(0, records, self._size):
            yield from self._fitting(range(start, min(start + self._size, records)))

    def _fitting(self, positions: range) -> Iterator[range]:
        """Divide positions until the rows of each part fit into one record batch."""
        first, end = positions.start, positions.stop
        if self._partial is not None:
            first, end = self._partial.rows_at([first, end]).tolist()
        if len(positions) == 1 or fits_one_batch(self._table, first, end):
            yield positions
            return
        for half in halves(positions):
            yield from self._fitting(half)

    def _broken(self, positions: range) -> dict[int, str]:
        if self._partial is None:
            return {}
        return {at: error for at, error in self._partial.unreadable.items() if at in positions}

    def _batch_of(self, positions: Sequence[int]) -> pa.RecordBatch:
        if self._partial is not None:
            positions = self._partial.rows_at(positions).tolist()
        # Decoded rows of consecutive records are consecutive in the table.
        return record_batch(self._table, positions[0], positions[0] + len(positions))

    def _understood(self, results: Any, positions: Sequence[int]) -> RowsOutcome:
        with batch_failures(FunctionError):
            return rows_outcome(results, len(positions), self._name)

    def recomputed(self, is_late: Callable[[], bool]) -> Recomputed:
        """Map the rows from the last batch to the first; see `TaskMapping.recomputed`."""
        total = len(self._table) if self._partial is None else len(self._partial)
        backwards: list[tuple[range, list[tuple[Sequence[int], Any]]]] = []
        for window in self._starts_backwards(total):
            readable = [position for position in window if position not in self._broken(window)]
            backwards.append((window, list(self._again(readable)) if readable else []))
            if is_late():
                break
        origins: dict[str, list[int]] = {}
        for _, parts in reversed(backwards):
            for positions, results in parts:
                if isinstance(results, Reject):  # the object raised for this row
                    continue
                self._take_batch(results, positions)
                for route, table in results.kept.items():
                    has_all = table.num_rows == len(positions)
                    origins.setdefault(route, []).extend(positions if has_all else [positions[0]] * table.num_rows)
        return self._recomputed(backwards[-1][0].start if backwards else 0, total, origins)

    def _take_batch(self, results: RowsOutcome, positions: Sequence[int]) -> None:
        try:
            with batch_failures(CategoryError):
                held = [(self._route(route), table) for route, table in results.kept.items()]
                written = [(collector, collector.hold(table)) for collector, table in held]
                for reason, rows in results.dropped.items():
                    self._tally.drop(reason, rows)
        except CategoryError as mistake:
            raise self._batch_failed(mistake, positions, f"{self._name}: {message_of(mistake)}") from mistake
        for collector, table in written:
            collector.take(table)
        for row, end in results.rejected:
            self._reject(end, positions[row])


EXPECTED = (
    "expected a record batch, a table or another frame with the Arrow interface, None, or Drop, Reject, Route or Rows "
    "of ledgerbeam"
)

_NO_NAME = -1


@dataclass
class RowsOutcome:
    """The outcome of a batch: which of its rows are kept, dropped and rejected."""

    rows: int  # number of rows of the batch
    kept: dict[str, pa.Table] = field(default_factory=dict)  # rows to write, by route. No table is empty
    dropped: Counter[str] = field(default_factory=Counter)  # number of dropped rows by reason
    # Position in the batch and reason of each rejected row, ascending
    rejected: list[tuple[int, Reject]] = field(default_factory=list)


def rows_outcome(result: Any, rows: int, function: str) -> RowsOutcome:
    """Return the outcome of a result for a batch of `rows` rows.

    Raises FunctionError for an invalid result, or one whose rows cannot be traced to rows of the batch. Reading the
    returned frame can raise any error.
    """
    outcome = RowsOutcome(rows)
    kind = type(result)
    if result is None:
        outcome.dropped[NOTHING] = rows
    elif issubclass(kind, Drop):
        require_reason(result, function)
        outcome.dropped[result.reason] = rows
    elif issubclass(kind, Reject):
        require_reason(result, function)
        outcome.rejected = [(position, result) for position in range(rows)]
    elif issubclass(kind, Rows):
        _take_apart(result, outcome, function)
    else:
        route = ""
        if issubclass(kind, Route):
            route, result = route_name(result.name, function), result.record
        table = _table(result, function)
        if table.num_rows > rows:
            raise FunctionError(
                f"{function} returned {table.num_rows} rows for a batch of {rows}: expected at most one for each row "
                "of the batch; return Rows(batch, of=...) with the position of the original row of each"
            )
        outcome.dropped[NOTHING] = rows - table.num_rows
        outcome.kept = {route: table}
    outcome.dropped = +outcome.dropped
    outcome.kept = {route: table for route, table in outcome.kept.items() if table.num_rows}
    return outcome


def _table(frame: Any, function: str) -> pa.Table:
    try:
        table = as_table(frame)
    except pa.ArrowException as error:  # for example a pandas column of mixed objects
        raise FunctionError(
            f"{function} returned a {type(frame).__name__} that Arrow cannot convert: {describe_error(error)}; give "
            "each column one type"
        ) from error
    if table is not None and table.num_columns:
        return table
    if table is not None:
        raise FunctionError(f"{function} returned a frame without columns: expected at least one column")
    if inspect.iscoroutine(frame):
        frame.close()  # otherwise Python warns that it was never awaited
    remedy = "; make one with pyarrow.RecordBatch.from_pylist" if isinstance(frame, list | tuple | dict) else ""
    remedy = "; collect it first" if hasattr(frame, "collect") else remedy
    raise FunctionError(f"{function} returned a {type(frame).__name__}: {EXPECTED}{remedy}")


def _take_apart(result: Rows, outcome: RowsOutcome, function: str) -> None:
    """Set the outcome of each row from a `Rows` result."""
    rows, table = outcome.rows, _table(result.batch, function)
    of = _origins(result.of, table.num_rows, rows, function)
    rejects = _labels(result.reject, rows, "reject", function, texts=True)
    drops = _labels(result.drop, rows, "drop", function)
    routes = _labels(result.route, table.num_rows, "route", function)
    for name in rejects.names:
        require_reason(Reject(name), function)
    for name in drops.names:
        require_reason(Drop(name), function)
    outcome.rejected = [
        (int(row), Reject(rejects.names[rejects.codes[row]], rejects.text(int(row))))
        for row in np.flatnonzero(rejects.codes >= 0)
    ]
    drops.codes[rejects.codes >= 0] = _NO_NAME
    is_written = (rejects.codes < 0) & (drops.codes < 0)
    counts = np.bincount(drops.codes[drops.codes >= 0], minlength=len(drops.names))
    outcome.dropped.update(dict(zip(drops.names, counts.tolist(), strict=True)))
    if of is not None:
        is_made = np.zeros(rows, bool)
        is_made[of] = True
        outcome.dropped[NOTHING] += int((is_written & ~is_made).sum())
        is_written = is_written[of]
    outcome.kept = _by_route(table, is_written, routes, function)


def _by_route(table: pa.Table, is_written: NDArray[np.bool_], routes: _Labels, function: str) -> dict[str, pa.Table]:
    codes = routes.codes
    kept: dict[str, pa.Table] = {}
    for code in np.unique(codes[is_written]).tolist():
        chosen = is_written & (codes == code)
        name = route_name(routes.names[code], function) if code >= 0 else ""
        kept[name] = table if chosen.all() else table.filter(pa.array(chosen))
    return kept


def _origins(of: Any, returned: int, rows: int, function: str) -> NDArray[np.int64] | None:
    """Return the position of the original row of each returned row; None if the rows correspond by position."""
    if of is None:
        if returned != rows:
            raise FunctionError(
                f"{function} returned Rows of {returned} rows for a batch of {rows}: expected one for each row; drop "
                "rows with drop=..., or pass of=... with the position of the original row of each"
            )
        return None
    array = _array_of(of, "of", function)
    if not (returned or len(array)):  # an empty list has no type
        return np.zeros(0, np.int64)
    if not pa.types.is_integer(array.type) or array.null_count or len(array) != returned:
        found = f"{len(array)} of type {array.type}{', some of them null' if array.null_count else ''}"
        raise FunctionError(f"{function}: Rows: of: expected an integer for each row ({returned}), found {found}")
    origins: NDArray[np.int64] = array.to_numpy(zero_copy_only=False).astype(np.int64)
    if origins.min() < 0 or origins.max() >= rows or (np.diff(origins) < 0).any():
        raise FunctionError(
            f"{function}: Rows: of: expected positions from 0 to {rows - 1}, ascending, found {origins[:8].tolist()}; "
            "sort the rows by the position of their original row"
        )
    return origins


class _Labels(NamedTuple):
    """The name of each position: a reason or a route."""

    codes: NDArray[np.int64]  # number of the name of each position, or -1
    names: Sequence[str]
    texts: Mapping[int, pa.Array]  # explanations of each position, by the number of the name

    def text(self, position: int) -> str:
        """Return the explanation of a position that has a name."""
        texts = self.texts.get(int(self.codes[position]))
        return "" if texts is None else str(texts[position].as_py())


def _labels(given: Any, rows: int, what: str, function: str, *, texts: bool = False) -> _Labels:
    """Return the names that the argument `what` of `Rows` gives to each row."""
    if given is None:
        return _Labels(np.full(rows, _NO_NAME, np.int64), [], {})
    if isinstance(given, Mapping):
        return _labels_of_masks(given, rows, what, function, texts=texts)
    array = _column(given, rows, what, function)
    if not _is_text(array.type):
        raise FunctionError(f"{function}: Rows: {what}: expected texts and nulls, or masks by text, found {array.type}")
    encoded = array.cast(pa.string()).dictionary_encode()
    require_few(len(encoded.dictionary), what, function)
    codes = encoded.indices.fill_null(_NO_NAME).to_numpy(zero_copy_only=False).astype(np.int64)
    return _Labels(codes, encoded.dictionary.to_pylist(), {})


def require_few(names: int, what: str, function: str) -> None:
    """Check the number of different names, before the slower check of each name. Raises CategoryError."""
    if names > MOST_NAMES:
        require_category("", f"names of {what} in {function}", names)


def _labels_of_masks(masks: Mapping[Any, Any], rows: int, what: str, function: str, *, texts: bool) -> _Labels:
    codes = np.full(rows, _NO_NAME, np.int64)
    said: dict[int, pa.Array] = {}
    for code, (name, given) in enumerate(masks.items()):
        named = f"{what} {name!r:.60}"
        array = _column(given, rows, named, function)
        if not rows:  # an empty list has no type
            continue
        if texts and _is_text(array.type):
            said[code] = array
            array = array.is_valid()
        if not pa.types.is_boolean(array.type) or array.null_count:
            found = f"nulls in it ({array.null_count}); use fill_null" if array.null_count else f"{array.type}"
            raise FunctionError(f"{function}: Rows: {named}: expected a mask of true and false, found {found}")
        codes[array.to_numpy(zero_copy_only=False) & (codes < 0)] = code
    return _Labels(codes, list(masks), said)


def _column(given: Any, rows: int, what: str, function: str) -> pa.Array:
    array = _array_of(given, what, function)
    if len(array) != rows:
        raise FunctionError(
            f"{function}: Rows: {what}: expected one value for each row ({rows}), by position, found {len(array)}"
        )
    return array


def _array_of(given: Any, what: str, function: str) -> pa.Array:
    try:
        return as_array(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FunctionError(
            f"{function}: Rows: {what}: expected an array, found a {type(given).__name__} ({error})"
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)
