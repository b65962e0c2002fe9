"""The forms in which the records of a task are read: Python objects, a table, or with their places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ledgerbeam.errors import UsageError
from ledgerbeam.io import ColumnFormat, ColumnReader, Format, OffsetFormat, Reader
from ledgerbeam.io.columns.partial import PartialTable
from ledgerbeam.io.formats.blocks import DataReader, HeldBlock, LineBlocks, gives_blocks
from ledgerbeam.io.formats.format import StreamSpan, TableFormat, fits
from ledgerbeam.io.formats.streamed import decode_each
from ledgerbeam.sources.blocks import RecordBlocks
from ledgerbeam.sources.kind import unreadable
from ledgerbeam.sources.placed import PlacedForm

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


RecordForm: TypeAlias = Literal["records", "arrow", "placed"]
"""Form of the records of a task: Python objects, a `pyarrow.Table` whose rows are the records, or `PlacedRecords`."""

OnError: TypeAlias = Literal["fail", "reject"]
"""Action for a record that cannot be decoded or used."""

ARROW_ROWS = 65_536
"""Default for the largest number of rows of an Arrow batch, as in pyarrow."""

ARROW_OUTPUTS = ("jsonl", "parquet", "arrow")
"""Formats that can be written from Arrow batches."""


class Form(Protocol):
    """Reads the records of spans in one form. The methods with ``each`` mark records that cannot be decoded."""

    def require(self, kind: Format, url: str) -> None:
        """Raise UsageError if sources of a format cannot be read in this form."""

    def fetches(self, kind: OffsetFormat, reader: Reader) -> bool:
        """Return whether `span` only fetches bytes, so that its result decodes them later."""

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> Any:
        """Return the records `[start, stop)` of a source with an index."""

    def span_each(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> Any:
        """Return the records of `span`, with marks for records that cannot be decoded."""

    def rows(self, reader: ColumnReader, start: int, stop: int) -> Any:
        """Return the records `[start, stop)` of a columnar source."""

    def rows_each(self, reader: ColumnReader, start: int, stop: int) -> Any:
        """Return the records of `rows`, with marks for records that cannot be decoded."""

    def split(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> Any:
        """Return consecutive records from bytes in memory."""

    def split_each(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> Any:
        """Return the records of `split`, with marks for records that cannot be decoded."""

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the records of several sources together."""


class _Records:
    """Records as Python objects: `RecordBlocks` if their format can be decoded in blocks, else a list.

    In a list, an `Unreadable` marks a record that cannot be decoded; in `RecordBlocks`, a pass finds such records.
    """

    def require(self, kind: Format, url: str) -> None:
        del kind, url

    def fetches(self, kind: OffsetFormat, reader: Reader) -> bool:
        return gives_blocks(reader) or (kind.ends_at_newlines and fits(reader, DataReader))

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> RecordBlocks | list[Any]:
        if gives_blocks(reader):
            return RecordBlocks([reader.read_blocks(start, stop)])
        if kind.ends_at_newlines and fits(reader, DataReader):
            span, data = _data(reader, start, stop)
            return RecordBlocks([LineBlocks(kind, data, reader.url, span)])
        return reader.read_span(start, stop)

    def span_each(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> list[Any]:
        return unreadable(decode_each(kind, reader.read_raw(start, stop)))

    def rows(self, reader: ColumnReader, start: int, stop: int) -> list[Any]:
        return reader.read_span(start, stop)

    def rows_each(self, reader: ColumnReader, start: int, stop: int) -> list[Any]:
        return unreadable(reader.read_each(start, stop))

    def split(
        self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None
    ) -> RecordBlocks | list[Any]:
        if kind.ends_at_newlines:
            return RecordBlocks([LineBlocks(kind, data, url, span)])
        return kind.split(data, url, span)

    def split_each(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        return unreadable(decode_each(kind, kind.split_raw(data, url, span)))

    def joined(self, parts: Sequence[RecordBlocks | list[Any]]) -> RecordBlocks | list[Any]:
        if not any(isinstance(part, RecordBlocks) for part in parts):
            return list(chain.from_iterable(parts))
        blocks = (part.parts if isinstance(part, RecordBlocks) else [HeldBlock(part)] for part in parts)
        return RecordBlocks(list(chain.from_iterable(blocks)))


class _Tables:
    """Records as the rows of a table; a `PartialTable` marks those that cannot be decoded."""

    def require(self, kind: Format, url: str) -> None:
        if not isinstance(kind, ColumnFormat | TableFormat):
            raise _not_as_tables(kind, url)

    def fetches(self, kind: OffsetFormat, reader: Reader) -> bool:
        del kind, reader
        return False

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> pa.Table:
        span, data = _data(reader, start, stop)
        return self.split(kind, data, reader.url, span)

    def span_each(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> PartialTable:
        span, data = _data(reader, start, stop)
        return self.split_each(kind, data, reader.url, span)

    def rows(self, reader: ColumnReader, start: int, stop: int) -> pa.Table:
        return reader.read_batch(start, stop)

    def rows_each(self, reader: ColumnReader, start: int, stop: int) -> pa.Table:
        return reader.read_batch(start, stop)  # damage affects a page of many rows

    def split(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        return self._of(kind, url).split_table(data, url, span)

    def split_each(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> PartialTable:
        return PartialTable(*self._of(kind, url).split_table_each(data, url, span))

    def joined(self, parts: Sequence[pa.Table | PartialTable]) -> pa.Table | PartialTable:
        return PartialTable.joined(parts)

    def _of(self, kind: OffsetFormat, url: str) -> TableFormat:
        if not isinstance(kind, TableFormat):
            raise _not_as_tables(kind, url)
        return kind


def _not_as_tables(kind: Format, url: str) -> UsageError:
    return UsageError(
        f"{url}: {kind.name} cannot be read as Arrow batches; map it with --as records, or convert it to parquet first"
    )


def _data(reader: Any, start: int, stop: int) -> tuple[StreamSpan, bytes]:
    found: tuple[StreamSpan, bytes] = reader.read_data(start, stop)
    return found


FORMS: dict[RecordForm, Form] = {"records": _Records(), "arrow": _Tables(), "placed": PlacedForm()}
