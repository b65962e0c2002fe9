"""Random access to rows in row groups: the base class of the readers of columnar formats."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

import pyarrow as pa

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError, SourceError, UsageError
from ledgerbeam.io.columns.content import Content, DecodedLimit, HeldBytes, damage_of, plain_table
from ledgerbeam.io.columns.schema import type_text
from ledgerbeam.io.columns.values import record_json, rows_at, to_records
from ledgerbeam.io.formats.format import CACHE_BYTES, HeldGroups, RowGroup
from ledgerbeam.io.index.reader import NO_BYTES, NumberedRecords, RawRecord, numbers_of, require_span
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import canonical_url

_MOST_ROWS, _MOST_IN_ALL = 2**31 - 1, 2**36  # rows of a row group and of a file; more are treated as damage
# Exceptions for values that cannot be Python objects.
_UNDECODABLE = (ValueError, ArithmeticError, LookupError, NotImplementedError, TypeError)
_BYTES_AT_ONCE = 32 * 2**20  # row groups up to this size in all are fetched together; a larger one alone


class GroupedRows(NumberedRecords[dict[str, Any]]):
    """Random access to the rows of a source. A record is a dict of column to value; see `io.columns.values`.

    Deterministic, picklable, safe to share between threads and to use after a fork. The footer is read when the reader
    is created. A row is read with its row group: its chosen columns with as few requests as possible. Decoded row
    groups are kept in memory up to a limit, so that reading neighbouring rows is cheap.

    Args:
        url: The source.
        options: Storage options.
        columns: Names of the columns to read; they have the order of the file. Default: all.
        listed: The listed properties of the source; see `RangeReader`. Default: its properties now.
        cache_bytes: Limit of the decoded row groups in memory.
        data: The whole content, if it is in memory; the URL is then not read.

    Attributes:
        held: The decoded row groups in memory; several readers may share one object.

    Raises:
        SourceError: The source is damaged, encrypted, or not of this format.
        SourceNotFoundError: There is no such source; also `ChangedSourceError` and StorageError.
        UsageError: The source lacks one of the columns.
    """

    is_indexed: Literal[True] = True
    _together = 1024

    def __init__(
        self,
        url: str,
        options: Options | None = None,
        *,
        columns: Sequence[str] = (),
        listed: FileInfo | None = None,
        cache_bytes: int = CACHE_BYTES,
        data: bytes | None = None,
    ) -> None:
        self.url = canonical_url(url)
        self.options = options
        self.columns = tuple(columns)
        self.held = HeldGroups(cache_bytes)
        self._content: Content
        if data is None:
            self._content = RangeReader(self.url, options, listed=listed or stat(self.url, options))
        else:
            self._content = HeldBytes(data)
        self._ends: list[int] | None = None
        self._groups: list[RowGroup] = []
        self._schema: pa.Schema = None
        self._load()

    def __repr__(self) -> str:
        chosen = f", columns={self.columns!r}" if self.columns else ""
        return f"{type(self).__name__}({self.url!r}{chosen})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ends": None, "_groups": [], "_schema": None}

    @abstractmethod
    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        """Read the footer; return the schema of all columns and the row groups."""

    @abstractmethod
    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        """Read the chosen columns of row groups, which are fetched together."""

    def _is_streamed(self, group: int) -> bool:  # noqa: ARG002 - most formats have none
        """Return whether a row group is too large to keep in memory, so that `_read_part` reads it."""
        return False

    def _read_part(self, group: int, start: int, stop: int) -> Iterator[pa.Table]:
        """Read the rows `[start, stop)` of a row group that is too large to keep in memory, some at a time."""
        raise NotImplementedError

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """Return the facts of this format for `ledgerbeam show`, which also prints size, records and columns."""

    def facts(self) -> Mapping[str, Any]:
        """Return the facts for `ledgerbeam show`, which also prints name, size and number of records."""
        with damage_of(self.url, "the footer"):
            return self._facts() | {"columns": {field.name: type_text(field.type) for field in self.schema}}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the chosen columns."""
        self._load()
        return self._schema

    @property
    def groups(self) -> Sequence[RowGroup]:
        """The row groups, in order, with the sizes of the chosen columns."""
        self._load()
        return self._groups

    def __len__(self) -> int:
        ends = self._load()
        return ends[-1] if ends else 0

    def _read(self, records: list[int]) -> list[dict[str, Any]]:
        return self.read_many(records)

    def read_many(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Read records by number, in the requested order; each of their row groups is read once.

        Negative numbers count from the end.

        Raises:
            IndexError: A number is out of range.
            RecordError: A record cannot be decoded. A SourceError: the file is damaged.
        """
        ends = self._load()
        numbers = numbers_of(indices, len(self), self.url)
        of_groups = np.searchsorted(np.array(ends, np.int64), numbers, "right")
        records: list[Any] = [None] * len(numbers)
        touched: list[int] = np.unique(of_groups).tolist()
        streamed = [group for group in touched if self._is_in_parts(group)]
        needed = [group for group in touched if group not in streamed]
        parts: list[pa.Table] = []
        together: list[int] = []
        limit = self._limit(f"{len(numbers)} rows", {group: int((of_groups == group).sum()) for group in touched})
        for group, table in zip(needed, self._tables(needed), strict=True):
            places = np.flatnonzero(of_groups == group)
            rows = (numbers[places] - (ends[group] - self._groups[group].rows)).tolist()
            if (copied := _copied(table, rows)) is not None:
                parts.append(self._plain(copied, limit))
                together += places.tolist()
            else:
                found = self._decoded(self._plain(_sliced(table, rows), limit), numbers[places].tolist())
                for place, record in zip(places.tolist(), found, strict=True):
                    records[place] = record
        if parts:
            found = self._decoded(_joined(parts), numbers[together].tolist())
            for place, record in zip(together, found, strict=True):
                records[place] = record
        for place in sorted(np.flatnonzero(np.isin(of_groups, streamed)).tolist(), key=numbers.__getitem__):
            row = int(numbers[place])
            table = self.read_batch(row, row + 1)
            limit.add(table)
            records[place] = self._decoded(table, [row])[0]
        return records

    def read_batch(self, start: int, stop: int) -> pa.Table:
        """Read the rows `[start, stop)` as columns, without creating Python objects.

        Raises:
            SourceError: The source is damaged there, or has fewer rows.
            UsageError: `0 <= start <= stop` does not hold.
        """
        require_span(start, stop, self.url)
        ends = self._ends_to(stop)
        if start == stop:
            return self._no_rows()
        touched = range(bisect_right(ends, start), bisect_right(ends, stop - 1) + 1)
        needed = [group for group in touched if self._groups[group].rows]
        tables = self._tables([group for group in needed if not self._is_in_parts(group)])
        parts: list[pa.Table] = []
        firsts = {group: ends[group] - self._groups[group].rows for group in needed}
        taken = {group: min(stop, ends[group]) - max(start, first) for group, first in firsts.items()}
        limit = self._limit(f"rows {start} to {stop - 1}", taken)
        for group in needed:
            begin, end = max(start - firsts[group], 0), min(stop, ends[group]) - firsts[group]
            whole = not self._is_in_parts(group)
            found = [next(tables).slice(begin, end - begin)] if whole else self._read_part(group, begin, end)
            with damage_of(self.url, f"row group {group}"):
                parts += [self._plain(part, limit) for part in found]
        return _joined(parts)

    def read_rows(self, numbers: NDArray[np.int64]) -> pa.Table:
        """Read some rows as columns, given by ascending numbers, from the row groups that have any of them.

        Raises:
            SourceError: The source is damaged there, or has fewer rows.
        """
        if not len(numbers):
            return self._no_rows()
        ends = self._ends_to(int(numbers[-1]) + 1)
        cuts: list[int] = np.searchsorted(numbers, [0, *ends]).tolist()
        touched = {
            group: numbers[first:last] - (ends[group] - self._groups[group].rows)
            for group, (first, last) in enumerate(pairwise(cuts))
            if first < last
        }
        tables = self._tables([group for group in touched if not self._is_in_parts(group)])
        limit = self._limit(f"{len(numbers)} rows", {group: len(rows) for group, rows in touched.items()})
        parts: list[pa.Table] = []
        for group, rows in touched.items():
            place = int(rows[0]) if self._is_in_parts(group) else 0
            found = self._read_part(group, place, int(rows[-1]) + 1) if self._is_in_parts(group) else [next(tables)]
            with damage_of(self.url, f"row group {group}"):
                for part in found:
                    first, last = np.searchsorted(rows, [place, place + part.num_rows]).tolist()
                    parts.append(self._plain(_taken(part, rows[first:last] - place), limit))
                    place += part.num_rows
        return _joined(parts)

    def _ends_to(self, stop: int) -> list[int]:
        """Return the end row of each row group. SourceError: the source has fewer than `stop` rows."""
        ends = self._load()
        if stop > len(self):
            raise SourceError(f"{self.url}: expected at least {stop} rows, found {len(self)}; run the job again")
        return ends

    def _no_rows(self) -> pa.Table:
        return pa.Table.from_batches([], self._schema)  # `empty_table` cannot nest extension types

    def _limit(self, rows: str, taken: Mapping[int, int]) -> DecodedLimit:
        """Return the limit of the decoded bytes of `rows`, as messages name them; `taken` counts them by row group."""
        stored = sum(self._groups[group].size * count // self._groups[group].rows for group, count in taken.items())
        return DecodedLimit(f"{self.url}: {rows}", stored)

    def _plain(self, rows: pa.Table, limit: DecodedLimit) -> pa.Table:
        """Count the bytes of rows, then return the rows with the types of the schema."""
        limit.add(rows)
        return plain_table(rows, self._schema)

    def read_span(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Read the records `[start, stop)`; see `read_batch` for the arguments.

        Raises:
            RecordError: A record cannot be decoded; also the errors of `read_batch`.
        """
        return self._decoded(self.read_batch(start, stop), range(start, stop))

    def read_each(self, start: int, stop: int) -> list[Any]:
        """Read the records `[start, stop)`, with a `RecordError` for each that cannot be decoded."""
        return self.decode_each(self.read_batch(start, stop), range(start, stop))

    def decode_each(self, table: pa.Table, numbers: Sequence[int]) -> list[Any]:
        """Return rows as records, with a `RecordError` for each that cannot be decoded; see `ColumnReader`."""
        with damage_of(self.url, "what the rows hold"):
            try:
                return to_records(table)
            except _UNDECODABLE as error:
                if table.num_rows == 1:
                    return [self._undecodable(table, numbers[0], error)]
                half = table.num_rows // 2
                first = self.decode_each(table.slice(0, half), numbers[:half])
                return first + self.decode_each(table.slice(half), numbers[half:])

    def first_rows(self, group: int, rows: int) -> pa.Table:
        """Read the first rows of a row group, fewer if it has fewer. SourceError if it is damaged.

        If the format allows it, only the needed part of a large row group is read.
        """
        rows = min(rows, self.groups[group].rows)
        limit = self._limit(f"the first {rows} rows of row group {group}", {group: rows} if rows else {})
        with damage_of(self.url, f"row group {group}"):
            return _joined([self._plain(part, limit) for part in self._read_first(group, rows)])

    def _read_first(self, group: int, rows: int) -> Iterator[pa.Table]:
        first = self._load()[group] - self._groups[group].rows
        table, places = self.read_batch(first, first + rows), list(range(rows))
        found = _copied(table, places)  # a slice would keep the row group
        yield _sliced(table, places) if found is None else found

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the records `[start, stop)` as JSON, each with the number of its row.

        Values that cannot be decoded are `null`.
        """
        table = self.read_batch(start, stop)
        return [
            RawRecord(
                self.url,
                number,
                NO_BYTES,
                NO_BYTES,
                _json_of(table.slice(number - start, 1)) if isinstance(record, RecordError) else record_json(record),
            )
            for number, record in enumerate(self.decode_each(table, range(start, stop)), start)
        ]

    def raw(self, index: int) -> bytes:
        """Return one record as JSON. Raises IndexError if the number is out of range."""
        number = self._number(index)
        return self.read_raw(number, number + 1)[0].data

    def close(self) -> None:
        """Close the source and drop the row groups in memory; a later read opens the source again."""
        self.held.clear()
        self._content.close()

    def _load(self) -> list[int]:
        """Return the end row of each row group; read the footer first if needed."""
        if self._ends is None:
            with damage_of(self.url, "the footer"):
                schema, groups = self._read_footer()
                for number, group in enumerate(groups):
                    if not 0 <= group.rows <= _MOST_ROWS:
                        raise SourceError(
                            f"{self.url}: expected 0 to {_MOST_ROWS:,} rows in row group {number}, found "
                            f"{group.rows:,}; the file is damaged, write it again"
                        )
                self._schema = self._chosen(schema)
                if (rows := sum(group.rows for group in groups)) > _MOST_IN_ALL:
                    raise SourceError(
                        f"{self.url}: expected at most {_MOST_IN_ALL:,} rows, found {rows:,}; the file is "
                        "damaged, write it again"
                    )
            self._groups = groups
            self._ends = list(accumulate(group.rows for group in groups))
        return self._ends

    def _chosen(self, schema: pa.Schema) -> pa.Schema:
        names = schema.names
        double = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if double is not None:
            raise SourceError(
                f"{self.url}: has more than one column {double!r}; expected names that differ, so that a record can be "
                "a dict. Write the file again with other names"
            )
        if (lacking := next((name for name in self.columns if name not in names), None)) is not None:
            raise UsageError(
                f"{self.url}: has no column {lacking!r}; its columns: {', '.join(map(repr, names)) or 'none'}"
            )
        if not self.columns:
            return schema
        return pa.schema([field for field in schema if field.name in self.columns], schema.metadata)

    def _tables(self, needed: Sequence[int]) -> Iterator[pa.Table]:
        """Yield decoded row groups; those in memory are not read again."""
        held = {group: table for group in needed if (table := self.held.get((self.url, group))) is not None}
        missing = [group for group in needed if group not in held]
        reading = chain.from_iterable(map(self._read_checked, self._fetched_together(missing)))
        for group in needed:
            table = held[group] if group in held else next(reading)
            self.held.put((self.url, group), table)
            yield table

    def _is_in_parts(self, group: int) -> bool:
        return not self.held.least and self._is_streamed(group)

    def _fetched_together(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        together: list[int] = []
        for number in numbers:
            if together and sum(self._groups[one].size for one in (*together, number)) > _BYTES_AT_ONCE:
                yield together
                together = []
            together.append(number)
        if together:
            yield together

    def _read_checked(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        last = f" to {numbers[-1]}" if len(numbers) > 1 else ""
        with damage_of(self.url, f"row group{'s' if last else ''} {numbers[0]}{last}"):
            for number, table in zip(numbers, self._read_groups(numbers), strict=True):
                if table.num_rows != self._groups[number].rows:
                    raise SourceError(
                        f"{self.url}: expected {self._groups[number].rows} rows in row group {number} by its "
                        f"footer, found {table.num_rows}; the file is damaged, write it again"
                    )
                yield table

    def _decoded(self, table: pa.Table, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of a table as records; `numbers` are their numbers, for messages."""
        records = self.decode_each(table, numbers)
        if (error := next((one for one in records if isinstance(one, RecordError)), None)) is not None:
            raise error
        return records

    def _undecodable(self, table: pa.Table, number: int, error: Exception) -> RecordError:
        """Return the error for a table of one row that cannot be decoded; it names the column."""
        column, reason = table.column_names[0], str(error)
        for name in table.column_names:
            try:
                to_records(table.select([name]))
            except _UNDECODABLE as found:
                column, reason = name, str(found)
                if isinstance(found, KeyError):  # from zoneinfo
                    reason = f"its time zone {found.args[0]!r} is unknown on this machine"
                break
        return RecordError(
            f"{self.url}: record {number}: column {column!r}: {reason}; write the file again, read the other columns "
            "(--columns), or set such records aside (--on-error reject)"
        )


def _sliced(table: pa.Table, rows: list[int]) -> pa.Table:
    return _joined([table.slice(row, 1) for row in rows])


def _copied(table: pa.Table, rows: list[int]) -> pa.Table | None:
    """Return a copy of rows, which does not keep the table in memory; None for one row (too slow) and string views."""
    if len(rows) == 1:
        return None
    try:
        return table.take(rows)
    except NotImplementedError:  # string views
        return None


def _taken(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """Return a copy of rows, which does not keep the table in memory; string views keep it."""
    try:
        return rows_at(table, rows)
    except NotImplementedError:
        return _sliced(table, rows.tolist()) if len(rows) else table.slice(0, 0)


def _joined(parts: list[pa.Table]) -> pa.Table:
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts)


def _json_of(table: pa.Table) -> bytes:
    """Return a table of one row as JSON; a value that cannot be decoded is null."""
    try:
        return record_json(to_records(table)[0])
    except _UNDECODABLE:
        record: dict[str, Any] = {}
        for name in table.column_names:
            try:
                value = to_records(table.select([name]))[0]
                record_json(value)
                record |= value
            except _UNDECODABLE:
                record[name] = None
        return record_json(record)
