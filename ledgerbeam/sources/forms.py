"""Records of a task in memory, and their three forms: Python objects, an Arrow table, or records with their places.

Python objects are decoded in blocks if the function takes blocks, else as one list. Exchanges use the third form: it
has the place of each record in its file, and gives the records as bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast

import orjson

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError, SourceError, UsageError
from ledgerbeam.io import ColumnFormat, ColumnReader, Format, OffsetFormat, Reader
from ledgerbeam.io.exchange.payloads import are_json_text, payload_of
from ledgerbeam.io.formats.base import changed_span
from ledgerbeam.io.formats.format import StreamSpan, TableFormat, fits
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.formats.streamed import (
    Blocks,
    DataReader,
    HeldBlock,
    LineBlocks,
    decode_each,
    decode_raw,
    gives_blocks,
)
from ledgerbeam.io.index.newlines import count_lines
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.json_values import exact, holds_wide
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.lines.jsonl import JsonLines, RawLines, decode_line
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.sources.kind import unreadable

if TYPE_CHECKING:
    import pyarrow as pa

RecordForm: TypeAlias = Literal["records", "arrow", "placed"]
"""Form of the records of a task: Python objects, a `pyarrow.Table` whose rows are the records, or `PlacedRecords`."""

OnError: TypeAlias = Literal["fail", "reject"]  # action for a record that cannot be decoded or used

ARROW_ROWS = 65_536  # default for the largest number of rows of an Arrow batch, as in pyarrow
ARROW_OUTPUTS = ("jsonl", "parquet", "arrow")  # formats that can be written from Arrow batches


@dataclass(eq=False)
class RecordBlocks:
    """The records of a task, whose bytes are in memory. Each pass (iteration) decodes them again, some at a time.

    With `each`, an `Unreadable` replaces each record that cannot be decoded. Without it, a pass raises the error of the
    first such record. `passed` is the number of records of the last complete pass; None before a pass is complete.
    """

    parts: Sequence[Blocks]
    each: bool = False
    passed: int | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[list[Any]]:
        """Start a pass: yield the records in order, in lists. Raises the errors of `Blocks` and of bad records."""
        passed = 0
        for part in self.parts:
            for block in part.decoded(each=self.each):
                passed += len(block)
                yield unreadable(block) if self.each else block
        self.passed = passed

    def marking(self) -> Self:
        """Return the same records, with an `Unreadable` in place of each record that cannot be decoded."""
        return replace(self, each=True)

    def listed(self) -> list[Any]:
        """Return all records as a list. Raises the errors of a pass."""
        return list(chain.from_iterable(self))


def blocks_of(records: Any) -> Iterable[Sequence[Any]]:
    """Return the records of a task as blocks; a list is one block."""
    return records if isinstance(records, RecordBlocks) else [records]


def listed(records: Any) -> Any:
    """Return `RecordBlocks` as a list of all records, or raise the error of a pass; return other records unchanged."""
    return records.listed() if isinstance(records, RecordBlocks) else records


FILE_SHIFT = 40  # bits of a place in a pack: above is the number of the file, below that of the record in the file


@dataclass(frozen=True)
class PlacedPart:
    """Records of one file, in order. Lines of JSON are held undecoded."""

    url: str
    numbers: NDArray[np.uint64]  # of the records in the file, ascending
    values: Sequence[Any] | None  # the records; None if they are lines
    lines: ByteRows | None = None
    span: StreamSpan | None = None  # of the lines, blank ones included
    notes: Sequence[Any] | None = None  # a value of each record from a list or a column

    @classmethod
    def of_results(cls, name: str, records: Any) -> Self:
        """Return the results of a function for one task, numbered from 0. `name` takes the place of the URL."""
        numbers = np.arange(len(records), dtype=np.uint64)
        if not isinstance(records, JsonLines):
            return cls(name, numbers, records)
        lines = ByteRows.consecutive(records.data, records.offsets[1:].astype(np.int64), gap=1)
        return cls(name, numbers, None, lines, StreamSpan(0, len(lines), 0, len(records.data)))

    def __len__(self) -> int:
        return len(self.numbers)

    def records(self) -> Iterator[Any]:
        """Yield the records; lines are decoded one by one. RecordError names the first line that is not JSON."""
        if self.lines is None:
            yield from self.values or ()
            return
        wide, place = any(map(holds_wide, self.lines.buffers)), 0
        try:
            for place, line in enumerate(self.lines):  # noqa: B007 - used by the error
                value = orjson.loads(line)
                yield exact(line, value) if wide else value
        except orjson.JSONDecodeError:
            self._require_json(place)
            raise

    def some(self, wanted: NDArray[np.bool_]) -> Self:
        """Return some of the records, by a mask."""
        kept = np.flatnonzero(wanted).tolist()
        values, notes = (
            [some[place] for place in kept] if some is not None else None for some in (self.values, self.notes)
        )
        lines = None if self.lines is None else self.lines.at(wanted)
        return replace(self, numbers=self.numbers[kept], values=values, lines=lines, notes=notes)

    def with_notes(self, numbers: NDArray[np.int64], notes: Sequence[Any], default: Any = None) -> Self:
        """Return the records with notes. `numbers` has the numbers, ascending, of the records that have `notes`."""
        places = np.searchsorted(numbers, self.numbers.astype(np.int64))
        are_noted = np.append(numbers, -1)[places] == self.numbers.astype(np.int64)
        found = zip(places.tolist(), are_noted.tolist(), strict=True)
        return replace(self, notes=[notes[place] if is_noted else default for place, is_noted in found])

    def payloads(self) -> ByteRows:
        """Return the records as bytes for run files. Lines are returned unchanged, without a copy.

        RecordError names a record that cannot be encoded, or a line that does not start like JSON.
        """
        if self.lines is not None:
            are_text = are_json_text(self.lines.first_bytes())
            if not are_text.all():
                self._require_json(int(are_text.argmin()))
            return self.lines
        found: list[bytes] = []
        try:
            found.extend(map(payload_of, self.values or ()))
        except RecordError as error:
            raise RecordError(f"{self.url}: record {int(self.numbers[len(found)])}: {error}") from error
        return ByteRows.of(found)

    def _require_json(self, place: int) -> None:
        """Raise RecordError if a line is not JSON. The error has the number and the place of the line in the file."""
        lines = self.lines or ByteRows.lines(b"")
        start = 0 if self.span is None else self.span.start + int(lines.starts[place])
        decode_line(lines[place], self.url, int(self.numbers[place]), start)


class PlacedRecords(Sequence[Any]):
    """The records of a task: of one file, or of the files of a pack."""

    def __init__(self, parts: Sequence[PlacedPart]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, item: Any) -> Any:
        return [record for part in self.parts for record in part.records()][item]

    @property
    def places(self) -> NDArray[np.uint64]:
        """The place of each record: its number in its file, plus `number of the file in the pack << FILE_SHIFT`."""
        found = [part.numbers + (np.uint64(file << FILE_SHIFT)) for file, part in enumerate(self.parts)]
        return np.concatenate(found) if found else np.zeros(0, np.uint64)


class Form(ABC):
    """Reads the records of spans in one form. With `each`, an `Unreadable` replaces a record that cannot be decoded."""

    def require(self, kind: Format, url: str) -> None:
        """Raise UsageError if sources of a format cannot be read in this form."""
        del kind, url

    def fetches(self, kind: OffsetFormat, reader: Reader) -> bool:
        """Return whether `span` only fetches bytes, so that its result decodes them later."""
        return False

    @abstractmethod
    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int, *, each: bool = False) -> Any:
        """Return the records `[start, stop)` of a source with an index."""

    @abstractmethod
    def rows(self, reader: ColumnReader, start: int, stop: int, *, each: bool = False) -> Any:
        """Return the records `[start, stop)` of a columnar source."""

    @abstractmethod
    def split(
        self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None, *, each: bool = False
    ) -> Any:
        """Return the records of a file or a span from its bytes in memory."""

    @abstractmethod
    def of_raw(self, kind: OffsetFormat, url: str, raw: Sequence[RawRecord], *, each: bool = False) -> Any:
        """Return any records of a source from their bytes."""

    @abstractmethod
    def of_values(self, reader: Reader, numbers: NDArray[np.int64], values: Sequence[Any]) -> Any:
        """Return any decoded records of a source. `numbers` are their numbers in the source."""

    @abstractmethod
    def of_table(self, reader: ColumnReader, numbers: NDArray[np.int64], table: pa.Table, *, each: bool = False) -> Any:
        """Return any records of a columnar source from their rows. `numbers` are their numbers in the source."""

    @abstractmethod
    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the records of several sources together."""


class _Records(Form):
    """Records as Python objects: `RecordBlocks` if their format can be decoded in blocks, else a list.

    In a list, an `Unreadable` marks a record that cannot be decoded; in `RecordBlocks`, a pass finds such records.
    """

    def fetches(self, kind: OffsetFormat, reader: Reader) -> bool:
        return gives_blocks(reader) or (kind.ends_at_newlines and fits(reader, DataReader))

    def span(
        self, kind: OffsetFormat, reader: Reader, start: int, stop: int, *, each: bool = False
    ) -> RecordBlocks | list[Any]:
        if each:
            return unreadable(decode_each(kind, reader.read_raw(start, stop)))
        if gives_blocks(reader):
            return RecordBlocks([reader.read_blocks(start, stop)])
        if kind.ends_at_newlines and fits(reader, DataReader):
            span, data = cast(DataReader, reader).read_data(start, stop)
            return RecordBlocks([LineBlocks(kind, data, reader.url, span)])
        return reader.read_span(start, stop)

    def rows(self, reader: ColumnReader, start: int, stop: int, *, each: bool = False) -> list[Any]:
        return unreadable(reader.read_each(start, stop)) if each else reader.read_span(start, stop)

    def split(
        self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None, *, each: bool = False
    ) -> RecordBlocks | list[Any]:
        if each:
            return unreadable(decode_each(kind, kind.split_raw(data, url, span)))
        if kind.ends_at_newlines:
            return RecordBlocks([LineBlocks(kind, data, url, span)])
        return kind.split(data, url, span)

    def of_raw(self, kind: OffsetFormat, url: str, raw: Sequence[RawRecord], *, each: bool = False) -> list[Any]:
        if each:
            return unreadable(decode_each(kind, raw))
        if kind.ends_at_newlines:
            with suppress(RecordError):  # raised below, with the right position
                return list(kind.split(_as_lines(raw), url))
        return [decode_raw(kind, one) for one in raw]

    def of_values(self, reader: Reader, numbers: NDArray[np.int64], values: Sequence[Any]) -> list[Any]:
        del reader, numbers
        return list(values)

    def of_table(
        self, reader: ColumnReader, numbers: NDArray[np.int64], table: pa.Table, *, each: bool = False
    ) -> list[Any]:
        found = reader.decode_each(table, numbers.tolist())
        if each:
            return unreadable(found)
        for record in found:
            if isinstance(record, RecordError):
                raise record
        return found

    def joined(self, parts: Sequence[RecordBlocks | list[Any]]) -> RecordBlocks | list[Any]:
        if not any(isinstance(part, RecordBlocks) for part in parts):
            return list(chain.from_iterable(parts))
        blocks = (part.parts if isinstance(part, RecordBlocks) else [HeldBlock(part)] for part in parts)
        return RecordBlocks(list(chain.from_iterable(blocks)))


class _Tables(Form):
    """Records as the rows of a table; a `PartialTable` if some records cannot be decoded."""

    def require(self, kind: Format, url: str) -> None:
        if not isinstance(kind, ColumnFormat | TableFormat):
            raise _not_as_tables(kind, url)

    def span(
        self, kind: OffsetFormat, reader: Reader, start: int, stop: int, *, each: bool = False
    ) -> pa.Table | PartialTable:
        span, data = cast(DataReader, reader).read_data(start, stop)
        return self.split(kind, data, reader.url, span, each=each)

    def rows(self, reader: ColumnReader, start: int, stop: int, *, each: bool = False) -> pa.Table:
        del each  # damage affects a page of many rows
        return reader.read_batch(start, stop)

    def split(
        self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None, *, each: bool = False
    ) -> pa.Table | PartialTable:
        if not isinstance(kind, TableFormat):
            raise _not_as_tables(kind, url)
        return PartialTable(*kind.split_table_each(data, url, span)) if each else kind.split_table(data, url, span)

    def of_raw(
        self, kind: OffsetFormat, url: str, raw: Sequence[RawRecord], *, each: bool = False
    ) -> pa.Table | PartialTable:
        return self.split(kind, _as_lines(raw), url, each=each)

    def of_values(self, reader: Reader, numbers: NDArray[np.int64], values: Sequence[Any]) -> Any:
        raise _not_as_tables(recognize(reader.url).plain(), reader.url)

    def of_table(
        self, reader: ColumnReader, numbers: NDArray[np.int64], table: pa.Table, *, each: bool = False
    ) -> pa.Table:
        del reader, numbers, each
        return table

    def joined(self, parts: Sequence[pa.Table | PartialTable]) -> pa.Table | PartialTable:
        return PartialTable.joined(parts)


def _as_lines(raw: Sequence[RawRecord]) -> bytes:
    """Return lines. In some formats their bytes include the newline, in others not."""
    if isinstance(raw, RawLines):
        return raw.lines.joined(after=b"\n")
    return b"".join(one.data.removesuffix(b"\n") + b"\n" for one in raw)


def _not_as_tables(kind: Format, url: str) -> UsageError:
    return UsageError(
        f"{url}: {kind.name} cannot be read as Arrow batches; map it with --as records, or convert it to parquet first"
    )


class PlacedForm(Form):
    """Reads the records of spans with their places; see `Form`. A record that cannot be decoded fails its task."""

    def fetches(self, kind: OffsetFormat, reader: Reader) -> bool:
        return isinstance(kind, JsonlFormat)

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int, *, each: bool = False) -> PlacedRecords:
        if isinstance(kind, JsonlFormat):
            span, data = cast(DataReader, reader).read_data(start, stop)
            return PlacedRecords([_lines(data, reader.url, span)])
        records = reader.read_span(start, stop)
        if len(records) == stop - start:
            return PlacedRecords([PlacedPart(reader.url, np.arange(start, stop, dtype=np.uint64), records)])
        return PlacedRecords([_numbered(reader.url, records, reader.read_raw(start, stop))])

    def rows(self, reader: ColumnReader, start: int, stop: int, *, each: bool = False) -> PlacedRecords:
        numbers = np.arange(start, stop, dtype=np.uint64)
        return PlacedRecords([PlacedPart(reader.url, numbers, reader.read_span(start, stop))])

    def split(
        self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None, *, each: bool = False
    ) -> PlacedRecords:
        if isinstance(kind, JsonlFormat):
            return PlacedRecords([_lines(data, url, span or StreamSpan(0, count_lines(data), 0, len(data)))])
        records = kind.split(data, url, span)
        if span is None or len(records) == span.records:
            first = 0 if span is None else span.record
            return PlacedRecords([PlacedPart(url, np.arange(first, first + len(records), dtype=np.uint64), records)])
        return PlacedRecords([_numbered(url, records, kind.split_raw(data, url, span))])

    def of_raw(self, kind: OffsetFormat, url: str, raw: Sequence[RawRecord], *, each: bool = False) -> PlacedRecords:
        del each
        if isinstance(raw, RawLines):
            return PlacedRecords([PlacedPart(url, raw.numbers.astype(np.uint64), None, raw.lines)])
        numbers = np.array([one.record for one in raw], np.uint64)
        if isinstance(kind, JsonlFormat):
            return PlacedRecords([PlacedPart(url, numbers, None, ByteRows.of([one.data for one in raw]))])
        return PlacedRecords([PlacedPart(url, numbers, [decode_raw(kind, one) for one in raw])])

    def of_values(self, reader: Reader, numbers: NDArray[np.int64], values: Sequence[Any]) -> PlacedRecords:
        return PlacedRecords([PlacedPart(reader.url, numbers.astype(np.uint64), values)])

    def of_table(
        self, reader: ColumnReader, numbers: NDArray[np.int64], table: pa.Table, *, each: bool = False
    ) -> PlacedRecords:
        records = _RECORDS.of_table(reader, numbers, table, each=each)
        return PlacedRecords([PlacedPart(reader.url, numbers.astype(np.uint64), records)])

    def joined(self, parts: Sequence[PlacedRecords]) -> PlacedRecords:
        return PlacedRecords([part for records in parts for part in records.parts])


def _lines(data: bytes, url: str, span: StreamSpan) -> PlacedPart:
    """Return the lines of a span from its bytes, without blank lines."""
    lines = ByteRows.lines(data)
    if len(lines) != span.records:
        raise changed_span(url, span)
    numbers = np.arange(span.record, span.record + len(lines), dtype=np.uint64)
    blank = lines.blank()
    if blank.any():
        lines, numbers = lines.at(~blank), numbers[~blank]
    return PlacedPart(url, numbers, None, lines, span)


def _numbered(url: str, records: Sequence[Any], raw: Iterable[RawRecord]) -> PlacedPart:
    return PlacedPart(url, np.array([one.record for one in raw], np.uint64), records)


_RECORDS = _Records()
FORMS: dict[RecordForm, Form] = {"records": _RECORDS, "arrow": _Tables(), "placed": PlacedForm()}


def read_records(read: Callable[[], Any], read_each: Callable[[], Any], *, marks: bool, in_blocks: bool) -> Any:
    """Return the records of a task, in the form that a function takes.

    With `marks`, an `Unreadable` replaces each record that cannot be decoded; `read_each` is called only after `read`
    raised RecordError. `RecordBlocks` become a list unless the function takes blocks (`in_blocks`).
    """
    try:
        records = read()
    except RecordError:
        if not marks:
            raise
        records = read_each()
    if isinstance(records, RecordBlocks) and marks:
        records = records.marking()
    return records if in_blocks else listed(records)


@dataclass(frozen=True, eq=False)
class PartialTable:
    """A table without the records that could not be decoded."""

    table: pa.Table  # the decoded records, in order
    unreadable: Mapping[int, str]  # the error of each other record, by its position among all records
    places: NDArray[np.int64] = field(init=False)  # the positions of the rows of `table` among all records

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", np.delete(np.arange(len(self)), list(self.unreadable)))

    @classmethod
    def joined(cls, parts: Sequence[pa.Table | PartialTable]) -> pa.Table | PartialTable:
        """Return the tables of the files of a pack as one. Raises SourceError if they have different columns."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it

        unreadable: dict[int, str] = {}
        tables: list[pa.Table] = []
        count = 0
        for part in parts:
            if isinstance(part, PartialTable):
                unreadable.update({count + at: error for at, error in part.unreadable.items()})
            tables.append(part.table if isinstance(part, PartialTable) else part)
            count += len(part)
        try:
            table = pa.concat_tables(tables)
        except pa.ArrowInvalid as error:
            raise SourceError(f"the files of a pack have different columns: {error}; leave --pack out") from error
        return cls(table, unreadable) if unreadable else table

    def __len__(self) -> int:
        return self.table.num_rows + len(self.unreadable)

    def rows_at(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows of `table` at some positions among all records, which must not be positions of errors."""
        return np.searchsorted(self.places, np.asarray(positions))
