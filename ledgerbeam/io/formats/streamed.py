"""Compressed sources: their records are found in one pass from the beginning, and read by spans in another.

A compressed source has no byte offsets to read by. What a pass finds are places in the decompressed bytes, which a
later pass meets in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self, cast

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import ArchiveError, NotIndexableError, RecordError, SourceError
from ledgerbeam.io.compression.streams import Stream, decompressed_pieces
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.format import ColumnFormat, Format, OffsetFormat, StreamedRecords, StreamSpan, is_columnar
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import HEAD, require_kind
from ledgerbeam.io.storage.stat import FileInfo

SPAN_BYTES = 4 * 2**20
"""Bytes of the records that `stream_each` decodes at a time."""


def scan_stream(
    url: str,
    options: Options | None = None,
    kind: OffsetFormat | None = None,
    listed: FileInfo | None = None,
) -> StreamedRecords:
    """Read a compressed source once and find its records; memory is a block and what the result takes.

    Args:
        url: The source.
        options: Storage options.
        kind: Its format. Default: that of its name.
        listed: What was listed; see `RangeReader`.

    Raises:
        ChangedSourceError: It is not what was listed.
        SourceError: The data is cut off or damaged, or of another kind than its name says.
        RecordError: A record has more than `base.MOST_RECORD` bytes.
        NotIndexableError: Its format is not read compressed.
        SourceNotFoundError: There is no such source; also StorageError.
    """
    if kind is None:
        kind = recognize(url).in_one_pass()
    if not kind.is_streamable:
        raise NotIndexableError(f"{url}: {kind.name} is not read compressed; decompress it")
    stream = Stream(url, options, listed)
    try:
        require_kind(stream.read(0, HEAD), stream.url, kind.name)
        return kind.scan(stream)
    finally:
        stream.close()


class SpanReader:
    """Reads spans of a compressed source in one pass; memory is a span and a block.

    A context manager. After a span that cannot be decoded the next can be read; after damage of the compressed data
    none can.

    Args:
        url: The source.
        options: Storage options.
        kind: The format that `scan_stream` returned. Default: that of the name.
        listed: What was listed; see `RangeReader`.
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
        """Read a span, one that begins where the last one ended or after it.

        Returns:
            The records; blank lines are left out.

        Raises:
            ArchiveError: The source is not what it was when it was scanned; also the errors of `scan_stream`.
            RecordError: A record that cannot be decoded; its byte range is that of the decompressed data.
        """
        return self._format.split(self.read_data(span), self.url, span)

    def read_raw(self, span: StreamSpan) -> list[RawRecord]:
        """Read the bytes of the records of a span, the one that was read last or one behind it.

        Raises:
            ArchiveError: As `read`; also the errors of `scan_stream`.
        """
        return self._format.split_raw(self.read_data(span), self.url, span)

    def read_data(self, span: StreamSpan) -> bytes:
        """Return the bytes of a span; those of the last one are held, for a stream does not go back.

        Raises:
            ArchiveError: As `read`; also the errors of `scan_stream`.
        """
        if self._held is not None and self._held[0] == span:
            return self._held[1]
        self._held = None
        data = self._stream.read(span.start, span.stop)
        if len(data) < span.stop - span.start:
            raise ArchiveError(
                f"{self.url}: expected {span.stop} bytes when decompressed, found {self._stream.reached}; it has "
                "changed, run the job again"
            )
        self._held = span, data
        return data


def stream_each(url: str, options: Options | None, kind: OffsetFormat, listed: FileInfo | None = None) -> Iterator[Any]:
    """Yield the records of a source in order. The source is read twice: to find its records, and to decode them.

    Args:
        url: The source, compressed or not; or a pipe, whose command runs twice.
        options: Storage options.
        kind: Its format.
        listed: What was listed; see `RangeReader`.

    Raises:
        ChangedSourceError: It is not what was listed.
        SourceError: A record cannot be decoded, or the data is damaged.
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
    """Decode a whole source that is in memory, compressed or not.

    Args:
        data: The content as it is stored.
        url: The source; its name shows format and compression.
        configured: As of `recognize`.

    Raises:
        RecordError: A record that cannot be decoded; also ArchiveError.
        SourceError: The compressed data is damaged, or more than `base.MOST_RECORD` bytes when decompressed; or the
            format needs an index to separate records.
        UsageError: The name has no known format, or the compression takes a package that is not installed.
    """
    kind, data = decompressed_source(data, url, configured)
    if is_columnar(kind):
        reader = kind.open_bytes(data, url)
        return reader.read_span(0, len(reader))
    return kind.split(data, url)


def split_source_raw(data: bytes, url: str, configured: Iterable[Format] = ()) -> list[RawRecord]:
    """Return the records of a whole source that is in memory, undecoded.

    Args and errors are those of `split_source`.
    """
    kind, data = decompressed_source(data, url, configured)
    if is_columnar(kind):
        reader = kind.open_bytes(data, url)
        return reader.read_raw(0, len(reader))
    return kind.split_raw(data, url)


def decode_each(kind: OffsetFormat, records: Iterable[RawRecord]) -> list[Any]:
    """Decode records one by one, with a `RecordError` in the place of each that cannot be."""
    decoded: list[Any] = []
    for raw in records:
        try:
            decoded.append(decode_raw(kind, raw))
        except RecordError as error:
            decoded.append(error)
    return decoded


def decode_raw(kind: OffsetFormat, raw: RawRecord) -> Any:
    """Decode a record by itself.

    Raises:
        RecordError: It cannot be decoded.
    """
    (record,) = kind.split(raw.data, raw.url, StreamSpan(raw.record, 1, raw.start, raw.stop))
    return record


def decompressed_source(
    data: bytes, url: str, configured: Iterable[Format]
) -> tuple[OffsetFormat | ColumnFormat, bytes]:
    """Return the format of a whole source that is in memory, and its content without its compression.

    Args and errors are those of `split_source`.
    """
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
