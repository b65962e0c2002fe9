"""Formats of lines: a record is a JSON value, or a string of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.base import IndexedFormat, LineFormat, changed_span, find_line_ends, offsets_of_ends
from ledgerbeam.io.formats.format import Reader, ShardFile, StreamedRecords, StreamSpan
from ledgerbeam.io.formats.streamed import decode_each
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import build_jsonl_index, count_lines
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.json_values import holds_wide
from ledgerbeam.io.lines.jsonl import JsonLines, JsonlReader, decode_lines, encode_jsonl, raw_lines
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import HEAD, require_lines
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from ledgerbeam.io.lines.jsonl_tables import JsonTables


_ONE_LINE = 2  # offsets of a file with one line
_MOST = 2**30  # bytes of lines in a chunk; 32-bit offsets count less than twice as many


@dataclass(frozen=True)
class JsonlFormat(IndexedFormat):
    """JSON lines.

    Attributes:
        threads: Number of threads that find the lines of one source.
        schema: Schema of tables, in JSON as `ledgerbeam schema` prints it. Without it, lines cannot be read as tables.
    """

    name = "jsonl"
    suffixes = (".jsonl", ".json", ".ndjson")
    ends_at_newlines = True

    threads: int = 1
    schema: str | None = None

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Find the offsets of all lines; see `OffsetFormat`."""
        offsets = build_jsonl_index(url, options, threads=self.threads, listed=listed, name=self.name)
        if len(offsets) == _ONE_LINE:
            with RangeReader(url, options, listed=listed) as reader:
                require_lines(reader.read(0, min(HEAD, reader.size)), reader.url)
        return offsets

    def _reader(self, *source: Any, **how: Any) -> Reader:
        return JsonlReader(*source, **how)

    def scan(self, stream: Stream) -> StreamedRecords:
        """Find the lines of a compressed source in one pass; see `OffsetFormat`."""
        head = stream.read(0, HEAD)
        offsets = offsets_of_ends(
            find_line_ends, stream.blocks(), stream.url, ends_with_source=True, most=base.MOST_RECORD
        )
        if len(offsets) == _ONE_LINE:
            require_lines(head, stream.url)
        return StreamedRecords(offsets, self)

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        """Decode consecutive lines that are in memory, without blank lines; see `OffsetFormat`."""
        lines, record, start = _lines(data, url, span)
        return decode_lines(lines, url, record, start, wide=holds_wide(data))

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        """Return consecutive lines that are in memory, without blank lines; see `OffsetFormat`."""
        lines, record, start = _lines(data, url, span)
        return raw_lines(lines, url, record, start)

    def split_table(self, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        """Return consecutive lines that are in memory as rows of a table, without blank lines; see `TableFormat`.

        Raises:
            UsageError: There is no schema; also the errors of `split`.
        """
        tables = self._tables(url)
        if span is not None and count_lines(data) != span.records:
            raise changed_span(url, span)
        try:
            return tables.table(data)
        except RecordError:
            for raw in self.split_raw(data, url, span):
                tables.one(raw)  # raises the error of the first line that does not fit
            raise

    def split_table_each(
        self, data: bytes, url: str, span: StreamSpan | None = None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return the lines that fit the schema as rows, and the errors of the others; see `TableFormat`."""
        return self._tables(url).each(self.split_raw(data, url, span))

    def _tables(self, url: str) -> JsonTables:
        from ledgerbeam.io.lines.jsonl_tables import tables_of  # noqa: PLC0415 - only jobs of Arrow batches import it

        if self.schema is None:
            raise UsageError(f"{url}: JSON lines need a schema to be read as tables; pass JsonlFormat(schema=...)")
        return tables_of(self.schema)

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Encode values as the files of a shard. `JsonLines` are already encoded."""
        data, offsets = encode_jsonl(records)
        return self.shard(data, offsets, nulled=records.nulled if isinstance(records, JsonLines) else 0)


def _lines(data: bytes, url: str, span: StreamSpan | None) -> tuple[list[bytes], int, int]:
    """Return lines without newlines, and the number and the offset of the first one."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if span is None:
        return lines, 0, 0
    if len(lines) != span.records:
        raise changed_span(url, span)
    return lines, span.record, span.start


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Lines of text in UTF-8. A record is a line without its newline; blank lines are records too."""

    name = "text"
    suffixes = (".txt",)

    def decode(self, data: bytes) -> str:
        """Return the text of a line. ValueError if it is not UTF-8."""
        return str(data.removesuffix(b"\n"), "utf-8")

    def split_table(self, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        """Return consecutive lines that are in memory as a table with the column `text`; see `TableFormat`."""
        table = _lines_table(data)
        if table is None:
            self.split(data, url, span)  # raises an error with the number of the line
            raise RecordError(f"{url}: expected lines in UTF-8, found other bytes; correct them and index again")
        if span is not None and table.num_rows != span.records:
            raise changed_span(url, span)
        return table

    def split_table_each(
        self, data: bytes, url: str, span: StreamSpan | None = None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return the lines in UTF-8 as rows, and the errors of the others; see `TableFormat`."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs of Arrow batches import it

        found = decode_each(self, self.split_raw(data, url, span))
        errors = {position: str(one) for position, one in enumerate(found) if isinstance(one, RecordError)}
        texts = pa.array([one for one in found if isinstance(one, str)], pa.string())
        return pa.table({"text": texts}), errors

    def encode_record(self, record: Any) -> bytes:
        """Return a string as a line. ValueError: it is not a string, has a newline, or cannot be encoded in UTF-8."""
        if not isinstance(record, str):
            raise ValueError(
                f"expected a string, found {type(record).__name__}; text files have only strings: make strings with a "
                "function (ledgerbeam map), or write another format (--to jsonl)"
            )
        if "\n" in record:
            raise ValueError(
                f"expected a string without newlines, found {record!r:.80}; replace them with a function (ledgerbeam "
                "map), or write another format (--to jsonl)"
            )
        return record.encode() + b"\n"


def _lines_table(data: bytes) -> pa.Table | None:
    """Return lines, without their newlines, as a table; None if the bytes are not UTF-8."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of Arrow batches import it
    import pyarrow.compute as pc  # noqa: PLC0415

    chunks: list[pa.Array] = []
    start = 0
    while start < len(data) or not chunks:
        stop = len(data) if len(data) - start <= _MOST else data.rfind(b"\n", start, start + _MOST) + 1 or len(data)
        piece = data[start:stop] if start or stop < len(data) else data
        try:
            whole = pa.array([piece], pa.large_binary()).cast(pa.large_string())
            lines = pc.split_pattern(whole, "\n").flatten()
        except pa.ArrowInvalid:
            return None
        if not piece or piece.endswith(b"\n"):
            lines = lines.slice(0, len(lines) - 1)  # nothing follows the last newline
        chunks.append(lines.cast(pa.string()))
        start = stop
    return pa.table({"text": pa.chunked_array(chunks, pa.string())})
