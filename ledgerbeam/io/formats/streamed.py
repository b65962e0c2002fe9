"""Compressed sources as streams, and records that are decoded block by block.

A compressed source cannot be read by byte offsets. So it is read in two passes. The first one finds the offsets of the
records in the decompressed bytes. The second one reads the records in the same order.

Decoded lines of JSON take up to ten times the memory of their bytes. Records decoded long before their use have left
the processor's cache. So a reader that can decode in blocks returns a `Blocks` in place of a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeGuard, cast, runtime_checkable

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError, RecordError, SourceError
from ledgerbeam.io.compression.streams import Stream, decompressed_pieces
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.format import (
    ColumnFormat,
    Format,
    OffsetFormat,
    Reader,
    StreamedRecords,
    StreamSpan,
    fits,
    is_columnar,
)
from ledgerbeam.io.formats.registry import FileType, recognize
from ledgerbeam.io.index.newlines import count_lines
from ledgerbeam.io.index.reader import RawRecord, runs_of
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import HEAD, require_kind
from ledgerbeam.io.storage.stat import FileInfo

SPAN_BYTES = 4 * 2**20  # bytes of the records that `stream_each` decodes at a time

BLOCK_BYTES = 128 * 1024  # of a decoded block of lines: the block and its records fit in the cache of a core
_NEWLINE = b"\n"


def scan_stream(
    url: str, options: Options | None = None, kind: OffsetFormat | None = None, listed: FileInfo | None = None
) -> StreamedRecords:
    """Read a compressed source once and find its records. Memory: a block, and the result.

    SourceError: the data is damaged, or not of the kind that its name shows; or a record exceeds `base.MOST_RECORD`.
    NotIndexableError: its format cannot be read compressed.
    """
    kind = (recognize(url) if kind is None else FileType(url, kind)).in_one_pass()
    stream = Stream(url, options, listed)
    try:
        require_kind(stream.read(0, HEAD), stream.url, kind.name)
        return kind.scan(stream)
    finally:
        stream.close()


class SpanReader:
    """Reader of the spans of a compressed source in one pass. Memory: a span and a block.

    A context manager. After a span that cannot be decoded, the next span can be read. After damage of the compressed
    data, no span can.
    """

    def __init__(
        self,
        url: str,
        options: Options | None = None,
        kind: OffsetFormat | None = None,
        *,
        listed: FileInfo | None = None,
    ) -> None:
        self.url = url
        self._format = recognize(url).in_one_pass() if kind is None else kind
        self._stream = Stream(url, options, listed)
        self._held: tuple[StreamSpan, bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, span: StreamSpan) -> list[Any]:
        """Read a span at or after the end of the previous one.

        ArchiveError: the source changed since the scan. RecordError: a record is damaged; the message has its range.
        """
        return self._format.split(self.read_data(span), self.url, span)

    def read_raw(self, span: StreamSpan) -> list[RawRecord]:
        """Read the raw bytes of the records of a span: the last span, or a later one. Errors are those of `read`."""
        return self._format.split_raw(self.read_data(span), self.url, span)

    def read_data(self, span: StreamSpan) -> bytes:
        """Return the bytes of a span, and keep them, since a stream cannot seek back. Errors are those of `read`."""
        if self._held is not None and self._held[0] == span:
            return self._held[1]
        self._held = None
        data = self._stream.read(span.start, span.stop)
        if len(data) < span.stop - span.start:
            raise ArchiveError(
                f"{self.url}: expected {span.stop} bytes when decompressed, found {self._stream.reached}; the source "
                "has changed, run the job again"
            )
        self._held = span, data
        return data


def stream_each(url: str, options: Options | None, kind: OffsetFormat, listed: FileInfo | None = None) -> Iterator[Any]:
    """Yield the records of a source, compressed or not, in order.

    The source is read twice: to find the records, and to decode them. So the command of a pipe runs twice.
    """
    found = scan_stream(url, options, kind, listed)
    offsets = found.offsets
    with SpanReader(url, options, found.format, listed=listed) as reader:
        record, last = 0, len(offsets) - 1
        while record < last:
            reach = int(np.searchsorted(offsets, offsets[record] + np.uint64(SPAN_BYTES), side="right")) - 1
            stop = min(max(reach, record + 1), last)
            yield from reader.read(StreamSpan(record, stop - record, int(offsets[record]), int(offsets[stop])))
            record = stop


def split_source(data: bytes, url: str, configured: Iterable[Format] = ()) -> list[Any]:
    """Decode a whole source in memory, compressed or not.

    SourceError: the data is damaged, exceeds `base.MOST_RECORD` when decompressed, or needs an index. UsageError: the
    name has no known format, or the compression needs a package that is not installed.
    """
    kind, data = decompressed_source(data, url, configured)
    if is_columnar(kind):
        reader = kind.open_bytes(data, url)
        return reader.read_span(0, len(reader))
    return kind.split(data, url)


def split_source_raw(data: bytes, url: str, configured: Iterable[Format] = ()) -> list[RawRecord]:
    """Return the raw bytes of the records of a whole source in memory; errors are those of `split_source`."""
    kind, data = decompressed_source(data, url, configured)
    if is_columnar(kind):
        reader = kind.open_bytes(data, url)
        return reader.read_raw(0, len(reader))
    return kind.split_raw(data, url)


def decode_each(kind: OffsetFormat, records: Iterable[RawRecord]) -> list[Any]:
    """Decode records one by one, with a `RecordError` in place of each record that cannot be decoded."""
    decoded: list[Any] = []
    for raw in records:
        try:
            decoded.append(decode_raw(kind, raw))
        except RecordError as error:
            decoded.append(error)
    return decoded


def decode_raw(kind: OffsetFormat, raw: RawRecord) -> Any:
    """Decode a single record, or raise RecordError."""
    (record,) = kind.split(raw.data, raw.url, StreamSpan(raw.record, 1, raw.start, raw.stop))
    return record


def decompressed_source(
    data: bytes, url: str, configured: Iterable[Format]
) -> tuple[OffsetFormat | ColumnFormat, bytes]:
    """Return format and decompressed content of a whole source in memory; errors are those of `split_source`."""
    found = recognize(url, configured)
    if found.columns() is None and found.compression is not None:
        plain = bytearray()
        for block in decompressed_pieces(iter([data]), found.compression.name, url):
            plain += block
            if len(plain) > base.MOST_RECORD:
                raise SourceError(
                    f"{url}: expected at most {base.MOST_RECORD:,} bytes when decompressed, found more; leave --pack "
                    "out"
                )
        data = bytes(plain)
    return cast("OffsetFormat | ColumnFormat", found.format), data


class Blocks(Protocol):
    """Consecutive records whose bytes are in memory. Each pass decodes them again. Picklable."""

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records in order, in lists. With `each`, a RecordError replaces each record that cannot be decoded.

        IndexMismatchError: the records have other boundaries than in the index.
        """


@runtime_checkable
class BlockedReader(Protocol):
    """A reader that can return its records in blocks."""

    def read_blocks(self, start: int, stop: int) -> Blocks:
        """Read the records `[start, stop)` with one ranged read of the index and one of the source."""


@runtime_checkable
class DataReader(Protocol):
    """A reader that can return the bytes of its records."""

    def read_data(self, start: int, stop: int) -> tuple[StreamSpan, bytes]:
        """Return the checked bytes of the records `[start, stop)`, and their span."""


@runtime_checkable
class ScatteredReader(Protocol):
    """A reader that reads scattered records together."""

    def read_raw_some(self, numbers: NDArray[np.int64]) -> Sequence[RawRecord]:
        """Return what `read_raw` returns for some records, given by ascending numbers.

        Neighbours share a request. The bytes that are read between the records of a remote source are at most a tenth
        of their bytes.
        """


def raw_of(reader: Reader, numbers: NDArray[np.int64]) -> Sequence[RawRecord]:
    """Return the bytes of some records of a source, given by ascending numbers, without blank lines."""
    if fits(reader, ScatteredReader):
        found: Sequence[RawRecord] = cast(ScatteredReader, reader).read_raw_some(numbers)
        return found
    return [raw for start, stop in runs_of(numbers) for raw in reader.read_raw(start, stop)]


def gives_blocks(reader: object) -> TypeGuard[BlockedReader]:
    """Return whether a reader is a `BlockedReader`."""
    return fits(reader, BlockedReader)


@dataclass(frozen=True)
class HeldBlock:
    """Decoded records as one block."""

    records: list[Any]

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records; see `Blocks`."""
        del each
        yield self.records


@dataclass(frozen=True)
class LineBlocks:
    """Consecutive whole records of a format with `ends_at_newlines`: all records of a source, or of a span."""

    format: OffsetFormat
    data: bytes
    url: str
    span: StreamSpan | None = None

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records; see `Blocks`."""
        kind, url, records = self.format, self.url, 0
        for block, span in self._cut():
            records += span.records
            try:
                yield kind.split(block, url, span)
            except RecordError:
                if not each:
                    raise
                yield decode_each(kind, kind.split_raw(block, url, span))
        if self.span is not None and records != self.span.records:
            raise base.changed_span(url, self.span)

    def _cut(self) -> Iterator[tuple[bytes, StreamSpan]]:
        data, stop = self.data, len(self.data)
        record, first = (0, 0) if self.span is None else (self.span.record, self.span.start)
        begin = 0
        while begin < stop:
            end = data.find(_NEWLINE, begin + BLOCK_BYTES) + 1 or stop
            block = data[begin:end]
            records = count_lines(block)
            yield block, StreamSpan(record, records, first + begin, first + end)
            record, begin = record + records, end
