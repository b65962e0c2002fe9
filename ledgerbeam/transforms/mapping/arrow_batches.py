"""Mapping of one task in Arrow record batches: slices of its table, without Python objects for records."""

from __future__ import annotations

import copyreg
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ledgerbeam.errors import FunctionError
from ledgerbeam.io.columns.encode import as_array, as_table, fits_one_batch, record_batch
from ledgerbeam.ledger.model.accounts import NOTHING
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.results import Drop, Reject, Route, Rows
from ledgerbeam.sources.forms import PartialTable
from ledgerbeam.stats import MOST_NAMES
from ledgerbeam.transforms.mapping.outcomes import (
    NO_FUNCTION,
    CategoryError,
    End,
    NotDecodedError,
    Outcome,
    Recomputed,
    require_category,
    require_reason,
    route_name,
)
from ledgerbeam.transforms.mapping.stages import CallStage
from ledgerbeam.transforms.mapping.task_mapping import (
    ONE_ROW,
    BatchMapping,
    TaskFailedError,
    Window,
    batch_failures,
    halves,
)
from ledgerbeam.user_code.guards import describe_error, message_of


def _sendable(batch: pa.RecordBatch) -> tuple[Any, tuple[Any, ...]]:
    """Pickle the rows of a batch. Otherwise a slice would be pickled with all rows of its table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return _received, (sink.getvalue(),)


def _received(data: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()


copyreg.pickle(pa.RecordBatch, _sendable)


class _Ends:
    """The ends of the rows of one batch of the source."""

    def __init__(self, positions: range) -> None:
        self.positions = positions
        self.reasons: list[End] = []  # ends of dropped rows
        self.dropped = np.full(len(positions), _NO_NAME, np.int64)  # for each record the number of its last end
        self.rejected: dict[int, End] = {}  # by position, of the earliest function
        self.splits = False  # whether a record may have several rows
        self.arrives_split = False  # whether it may have had them when the current stage started
        self.is_traced = True  # whether the records of all dropped rows are known


class ArrowMapping(BatchMapping):
    """The mapping of one task in record batches. The arguments are those of `BatchMapping`.

    All functions map the rows of one batch of the source before the next batch. Tables of results are cut, not joined.
    """

    _ends: _Ends  # of the current batch of the source

    @cached_property
    def _names(self) -> dict[str, int]:
        """The numbers of routes in `Window.routes`, by name."""
        return {"": 0}

    @cached_property
    def _started(self) -> Counter[int]:
        """Number of rows that each stage has received, by the number of its first function."""
        return Counter()

    @cached_property
    def _is_invariant(self) -> bool:
        return all(stage.invariant for stage in self._stages)

    def run(self) -> None:
        """Map one batch after the other. Raises BatchAgainError if the task must start again."""
        records, size = len(self._task.records), self._stages[0].size or 1
        for start in range(0, records, size):
            self._read = min(start + size, records)
            parts = self._mapped(range(start, self._read))
            with timed("encode"):
                self._settle(parts)

    def recomputed(self, is_late: Callable[[], bool]) -> Recomputed:
        """Map the rows from the last batch to the first; see `TaskMapping.recomputed`."""
        self._is_again = True
        total, backwards = len(self._task.records), list[tuple[_Ends, list[Window]]]()
        size = self._stages[0].size or 1
        for window in self._starts_backwards(total, size, invariant=self._is_invariant):
            parts = self._mapped(window)
            backwards.append((self._ends, parts))
            if is_late():
                break
        origins: dict[str, list[int]] = {}
        for self._ends, parts in reversed(backwards):
            for part in self._settle(parts):
                origins.setdefault(part.route, []).extend(part.positions.tolist())
        return self._recomputed(backwards[-1][0].positions.start if backwards else 0, total, origins)

    def _mapped(self, window: range) -> list[Window]:
        """Return the results of all functions for a batch of the source."""
        self._ends = _Ends(window)
        parts = self._source_parts(window)
        for stage in self._stages:
            self._ends.arrives_split = self._ends.splits
            parts = [made for part in parts for made in self._through(stage, part)]
        return parts

    def _source_parts(self, window: range) -> list[Window]:
        records = self._task.records
        if not isinstance(records, PartialTable):
            return [Window(records.slice(window.start, len(window)), np.arange(window.start, window.stop))]
        for position in sorted(records.unreadable.keys() & set(window)):
            self._end(self._end_of(NotDecodedError(records.unreadable[position]), position, NO_FUNCTION), position)
        first, stop = records.rows_at([window.start, window.stop]).tolist()
        rows = records.table.slice(first, stop - first)
        return [Window(rows, records.places[first:stop])] if stop > first else []

    def _through(self, stage: CallStage, part: Window) -> list[Window]:
        """Return the results of a stage for the rows of a part, in order."""
        rows, size, made = len(part.positions), stage.size or 1, list[tuple[int, Window]]()
        if self._is_again and self._is_invariant and stage.first:
            size = (min(size, rows) + 1) // 2
        cuts = [range(start, min(start + size, rows)) for start in range(0, rows, size)]
        cuts = [fitting for cut in cuts for fitting in _fitting(part.values, cut)]
        for cut in reversed(cuts) if self._is_again else cuts:
            for indexes, outcome in self._parts(stage, part, cut, self._started[stage.first] + cut.start):
                made += [(indexes[0], one) for one in self._split(stage, part, indexes[0], outcome)]
        self._started[stage.first] += rows
        return [one for _, one in sorted(made, key=itemgetter(0))]

    def _batch_of(self, window: Window, indexes: Sequence[int]) -> pa.RecordBatch:
        return record_batch(window.values, indexes[0], indexes[0] + len(indexes))

    def _understood(self, results: Any, stage: CallStage, window: Window, indexes: Sequence[int]) -> RowsOutcome:
        with batch_failures(FunctionError):
            outcome = rows_outcome(results, len(indexes), stage.name)
        if outcome.routes is not None or window.routes is not None:
            self._number_routes(outcome, window, indexes[0])
        if stage is self._stages[-1]:
            with batch_failures(CategoryError), timed("encode"):
                outcome.held = [
                    Window(table, rows, route=route, held=self._route(route).hold(table))
                    for route, table, rows in outcome.by_route()
                ]
        return outcome

    def _number_routes(self, outcome: RowsOutcome, window: Window, first: int) -> None:
        """Replace the routes of returned rows by numbers in `_names`. Rows without a route keep the earlier route."""
        numbers = [self._names.setdefault(name, len(self._names)) for name in (*outcome.names, "")]
        own = np.array(numbers)[-1 if outcome.routes is None else outcome.routes]
        earlier = 0 if window.routes is None else window.routes[first : first + outcome.rows][outcome.origins]
        outcome.routes, outcome.names = np.where(own == 0, earlier, own), list(self._names)

    def _split(self, stage: CallStage, part: Window, first: int, outcome: RowsOutcome) -> list[Window]:
        """Return the kept rows of a batch, and take the ends of the others. `first` is the first row of the batch."""
        ends, positions, number = self._ends, part.positions[first : first + outcome.rows], stage.first
        self._tally.receive(number, [outcome.rows])
        is_traced = part.is_traced and outcome.is_traced
        if ends.arrives_split and not outcome.is_traced:
            raise self._untraced(f"{stage.name} received several rows of a record")
        for row, reject in outcome.rejected:
            self._reject(End.of_result(reject, stage.name, number), self._position(part, first + row, stage))
        if len(dropped := np.flatnonzero(outcome.codes >= 0)):
            of = positions[dropped]
            for reason, count in outcome.dropped.items():
                self._end_values([End(number, reason)], int(of[0]), count)
            ends.dropped[of - ends.positions.start] = outcome.codes[dropped] + len(ends.reasons)  # the last one counts
            ends.reasons += [End(number, reason) for reason in outcome.reasons]
            ends.is_traced &= is_traced
        ends.splits |= outcome.splits
        of = positions[outcome.origins]
        if stage is self._stages[-1]:
            return [one._replace(positions=of[one.positions], is_traced=is_traced) for one in outcome.held]
        return [Window(outcome.table, of, is_traced, outcome.routes)] if len(of) else []

    def _end(self, end: End, position: int, first: int = 0) -> None:
        del first
        self._tally.receive(max(0, end.function), [1] * (end.function != NO_FUNCTION))
        self._reject(end, position)

    def _reject(self, end: End, position: int) -> None:
        self._end_values([end], position)
        known = self._ends.rejected.get(position, end)
        self._ends.rejected[position] = min(known, end, key=lambda one: one.function)

    def _settle(self, parts: Sequence[Window]) -> Sequence[Window]:
        """Collect the results of a batch of the source, and count its records. Return the rows that are written."""
        ends, first = self._ends, self._ends.positions.start
        self._tally.receive(len(self._stages), [sum(len(part.positions) for part in parts)])
        if ends.rejected:
            parts = [part for part in map(self._without_rejected, parts) if len(part.positions)]
        if self._rules.per_record:
            self._require_one_row(parts)
        for part in parts:
            self._tally.routes[part.route].take(part.held)
        for position, end in sorted(ends.rejected.items()):
            self._take(Outcome(end), position)
        if not ends.reasons:
            return parts
        is_dropped = np.ones(len(ends.positions), bool)
        for positions in (list(ends.rejected), *(part.positions for part in parts)):
            is_dropped[np.asarray(positions, np.int64) - first] = False
        dropped = np.flatnonzero(is_dropped)
        if not (self._rules.keeps_dropped or self._rules.per_record):
            for code, records in zip(*np.unique(ends.dropped[dropped], return_counts=True), strict=True):
                self._take(Outcome(ends.reasons[code]), first, int(records))
        elif not ends.is_traced:
            raise self._untraced("the records of dropped rows are unknown")
        else:
            for row in dropped.tolist():
                self._take(Outcome(ends.reasons[ends.dropped[row]]), first + row)
        return parts

    def _require_one_row(self, parts: Sequence[Window]) -> None:
        positions = np.concatenate([np.zeros(0, np.int64), *(part.positions for part in parts)])
        if any(part.route for part in parts) or len(np.unique(positions)) < len(positions):
            raise self._failed_task(f"{self._name} {ONE_ROW}")

    def _without_rejected(self, part: Window) -> Window:
        """Leave out the rows of records of which another row was rejected."""
        chosen = ~np.isin(part.positions, list(self._ends.rejected))
        if chosen.all():
            return part
        if not part.is_traced:
            raise self._untraced("a row of a rejected record cannot be found")
        table = part.values.filter(pa.array(chosen))
        held = self._route(part.route).hold(table)
        return part._replace(values=table, positions=part.positions[chosen], held=held)

    def _category_failure(self, error: CategoryError, position: int, end: End) -> TaskFailedError:
        if end.error is not None:
            return super()._category_failure(error, position, end)
        message = f"{self._rules.functions[end.function].name}: {message_of(error)}"
        return self._batch_failed(error, Window((), self._ends.positions), (0, -1), message)

    def _untraced(self, problem: str) -> TaskFailedError:
        return self._failed_task(
            f"{problem}: a function returned fewer rows than it received; let it return Rows(batch, of=...) with the "
            "position of the original row of each"
        )


def _fitting(table: pa.Table, rows: range) -> Iterator[range]:
    """Divide rows until each part fits into one record batch."""
    if len(rows) == 1 or fits_one_batch(table, rows.start, rows.stop):
        yield rows
        return
    for half in halves(rows):
        yield from _fitting(table, half)


EXPECTED = (
    "expected a record batch, a table or another frame with the Arrow interface, None, or Drop, Reject, Route or Rows "
    "of ledgerbeam"
)

_NO_NAME = -1


@dataclass
class RowsOutcome:
    """The outcome of a batch: which of its rows are kept, dropped and rejected."""

    rows: int  # number of rows of the batch
    table: pa.Table | None = None  # returned rows that are kept
    origins: Any = field(default_factory=lambda: slice(0))  # index of the rows of the batch that became rows of `table`
    routes: NDArray[np.int64] | None = None  # number in `names` of the route of each row of `table`, or -1
    names: Sequence[str] = ()
    splits: bool = False  # whether a row of the batch has several returned rows
    # Whether `origins` and `codes` are exact. If not, only their numbers are: fewer rows were returned.
    is_traced: bool = True
    reasons: Sequence[str] = ()
    codes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # reason of each dropped row, or -1
    # Position in the batch and reason of each rejected row, ascending
    rejected: list[tuple[int, Reject]] = field(default_factory=list)
    held: list[Window] = field(default_factory=list)  # `by_route` as the collectors hold it

    @property
    def dropped(self) -> Counter[str]:
        """Number of dropped rows by reason."""
        numbers = np.bincount(self.codes[self.codes >= 0], minlength=len(self.reasons)).tolist()
        return +Counter(dict(zip(self.reasons, numbers, strict=True)))

    def by_route(self) -> Iterator[tuple[str, pa.Table, Any]]:
        """Yield each route with its rows and their index in `table`."""
        if self.table is None or not self.table.num_rows:
            return
        routes = [] if self.routes is None else np.unique(self.routes).tolist()
        if len(routes) < 2:
            yield self._name((*routes, _NO_NAME)[0]), self.table, slice(None)
            return
        for route in routes:
            chosen = self.routes == route
            yield self._name(route), self.table.filter(pa.array(chosen)), chosen

    def _name(self, route: int) -> str:
        return self.names[route] if route >= 0 else ""


def rows_outcome(result: Any, rows: int, function: str) -> RowsOutcome:
    """Return the outcome of a result for a batch of `rows` rows.

    Raises FunctionError for an invalid result, or one whose rows cannot be traced to rows of the batch. Reading the
    returned frame can raise any error.
    """
    outcome, kind = RowsOutcome(rows), type(result)
    if result is None:
        result, kind = Drop(NOTHING), Drop
    if issubclass(kind, Drop):
        require_reason(result, function)
        outcome.reasons, outcome.codes = [result.reason], np.zeros(rows, np.int64)
    elif issubclass(kind, Reject):
        require_reason(result, function)
        outcome.rejected = [(position, result) for position in range(rows)]
    elif issubclass(kind, Rows):
        _take_apart(result, outcome, function)
    else:
        route = ""
        if issubclass(kind, Route):
            route, result = route_name(result.name, function), result.record
        outcome.table = table = _table(result, function)
        if table.num_rows > rows:
            raise FunctionError(
                f"{function} returned {table.num_rows} rows for a batch of {rows}: expected at most one for each row "
                "of the batch; return Rows(batch, of=...) with the position of the original row of each"
            )
        if table.num_rows < rows:
            outcome.reasons, outcome.codes = [NOTHING], np.where(np.arange(rows) < table.num_rows, _NO_NAME, 0)
        outcome.origins, outcome.is_traced = slice(table.num_rows), table.num_rows in (0, rows)
        if route:
            outcome.routes, outcome.names = np.zeros(table.num_rows, np.int64), [route]
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
    codes, reasons = drops.codes, list(drops.names)
    codes[rejects.codes >= 0] = _NO_NAME
    is_written, origins = (rejects.codes < 0) & (codes < 0), np.arange(rows)
    if of is not None:
        is_made = np.zeros(rows, bool)
        is_made[of] = True
        if NOTHING not in reasons:
            reasons.append(NOTHING)
        codes[is_written & ~is_made] = reasons.index(NOTHING)
        is_written, origins = is_written[of], of
    outcome.codes, outcome.reasons = codes, reasons
    outcome.table = table if is_written.all() else table.filter(pa.array(is_written))
    outcome.origins = origins[is_written]
    outcome.splits = of is not None and bool((np.diff(outcome.origins) == 0).any())
    codes = routes.codes[is_written]
    if (codes >= 0).any():
        used = np.unique(codes)
        outcome.names = [route_name(name, function) if code in used else "" for code, name in enumerate(routes.names)]
        outcome.routes = codes


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
