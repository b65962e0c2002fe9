"""In which form the records of a task are read: as a list of them, or as a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ledgerbeam.errors import UsageError
from ledgerbeam.io import ColumnFormat, ColumnReader, Format, OffsetFormat, Reader, StreamSpan
from ledgerbeam.io.columns.partial import PartialTable
from ledgerbeam.io.formats.format import TableFormat
from ledgerbeam.io.formats.streamed import decode_each
from ledgerbeam.sources.kind import unreadable

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa

__all__ = ["ARROW_OUTPUTS", "ARROW_ROWS", "FORMS", "Form", "OnError", "RecordForm"]

RecordForm: TypeAlias = Literal["records", "arrow"]
"""What the records of a task are: a list, or a `pyarrow.Table`, of which each row is a record."""

OnError: TypeAlias = Literal["fail", "reject"]
"""What becomes of a record that cannot be used."""

ARROW_ROWS = 65_536
"""Rows of an Arrow batch, at most, if nothing is said: as many as pyarrow itself reads at once."""

ARROW_OUTPUTS = ("jsonl", "parquet", "arrow")
"""Formats in which Arrow batches are written."""


class Form(Protocol):
    """Reads the records of spans in one form. The methods with ``each`` say of each record what is wrong with it."""

    def require(self, kind: Format, url: str) -> None:
        """Check that sources of a format can be read so. Raises UsageError."""

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> Any:
        """Return the records `[start, stop)` of a source with an index."""

    def span_each(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> Any:
        """Return what `span` does, with what cannot be decoded marked."""

    def rows(self, reader: ColumnReader, start: int, stop: int) -> Any:
        """Return the records `[start, stop)` of a source of columns."""

    def rows_each(self, reader: ColumnReader, start: int, stop: int) -> Any:
        """Return what `rows` does, with what cannot be decoded marked."""

    def split(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> Any:
        """Return consecutive records that are in memory."""

    def split_each(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> Any:
        """Return what `split` does, with what cannot be decoded marked."""

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the records of several sources as those of one task."""


class _Records:
    """Records are Python objects in a list, with an `Unreadable` in the place of what cannot be decoded."""

    def require(self, kind: Format, url: str) -> None:
        del kind, url

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> list[Any]:
        del kind
        return reader.read_span(start, stop)

    def span_each(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> list[Any]:
        return unreadable(decode_each(kind, reader.read_raw(start, stop)))

    def rows(self, reader: ColumnReader, start: int, stop: int) -> list[Any]:
        return reader.read_span(start, stop)

    def rows_each(self, reader: ColumnReader, start: int, stop: int) -> list[Any]:
        return unreadable(reader.read_each(start, stop))

    def split(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        return kind.split(data, url, span)

    def split_each(self, kind: OffsetFormat, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        return unreadable(decode_each(kind, kind.split_raw(data, url, span)))

    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        return list(chain.from_iterable(parts))


class _Tables:
    """Records are the rows of a table; a `PartialTable` says what cannot be decoded."""

    def require(self, kind: Format, url: str) -> None:
        if not isinstance(kind, ColumnFormat | TableFormat):
            raise _not_as_tables(kind, url)

    def span(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> pa.Table:
        span, data = _data(reader, start, stop)
        return self.split(kind, data, reader.url, span)

    def span_each(self, kind: OffsetFormat, reader: Reader, start: int, stop: int) -> PartialTable:
        span, data = _data(reader, start, stop)
        return self.split_each(kind, data, reader.url, span)

    def rows(self, reader: ColumnReader, start: int, stop: int) -> pa.Table:
        return reader.read_batch(start, stop)

    def rows_each(self, reader: ColumnReader, start: int, stop: int) -> pa.Table:
        return reader.read_batch(start, stop)  # what is damaged is a page of many rows

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
        f"{url}: {kind.name} is not read as Arrow batches; map it with --as records, or convert it to parquet first"
    )


def _data(reader: Any, start: int, stop: int) -> tuple[StreamSpan, bytes]:
    found: tuple[StreamSpan, bytes] = reader.read_data(start, stop)
    return found


FORMS: dict[RecordForm, Form] = {"records": _Records(), "arrow": _Tables()}
