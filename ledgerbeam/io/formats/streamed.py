"""Records of a compressed source: found in one pass from its begin, read by spans in another.

A compressed source has no byte offsets to read by. What a pass over it finds are places in the decompressed bytes: of
use to who reads from the begin again, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from ledgerbeam.errors import ArchiveError, NotIndexableError, RecordError, SourceError, UsageError
from ledgerbeam.io.compression.streams import Stream, compression_of, decompressed, decompressed_pieces, plain_name
from ledgerbeam.io.formats.registry import FORMATS, format_of
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.jsonl.reader import decode_lines
from ledgerbeam.io.jsonl.values import holds_wide
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, group_key, group_pairs
from ledgerbeam.io.tar.plain_headers import PlainHeaderScan, Run
from ledgerbeam.io.tar.sample import take_sample
from ledgerbeam.io.tar.walk import walk_bytes, walk_source

__all__ = ["MOST_RECORD", "SpanReader", "StreamSpan", "StreamedRecords", "is_streamed", "scan_stream", "split_source"]

MOST_RECORD = 1 << 30
"""Bytes of a record of a compressed source, at most: more is taken for damage, or for a bomb."""

_MOST_HEADER = 1 << 24


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """Consecutive records of a compressed source.

    Attributes:
        record: Number of the first one.
        records: How many there are.
        start: Where they begin in the decompressed bytes.
        stop: Where they end.
    """

    record: int
    records: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StreamedRecords:
    """What a pass over a compressed source found.

    Attributes:
        offsets: Where each record begins in the decompressed bytes, and where the last one ends: `N + 1`, u64.
        paired: Whether the samples of a tar are pairs.
    """

    offsets: Offsets
    paired: bool = False


def is_streamed(url: str) -> bool:
    """Tells by name whether a source can be read as a stream only: compressed JSONL or tar."""
    if compression_of(url) is None or url.startswith("pipe:"):
        return False
    try:
        return format_of(plain_name(url)).name in ("jsonl", "tar")
    except UsageError:
        return False


def scan_stream(
    url: str, options: Options | None = None, group: Grouping = "auto", listed: FileInfo | None = None
) -> StreamedRecords:
    """Reads a compressed source once and finds its records; memory is a block and what the result takes.

    Args:
        url: The source.
        options: Storage options.
        group: How members of a tar make up samples.
        listed: What was listed; see `RangeReader`.

    Raises:
        ChangedSourceError: It is not what was listed.
        SourceError: The data is cut off or damaged.
        RecordError: A record has more than `MOST_RECORD` bytes.
        ArchiveError: The archive in it is damaged, or its members do not group so.
        NotIndexableError: Neither JSONL nor tar is in it.
        SourceNotFoundError: There is no such source; also StorageError.
    """
    kind = format_of(plain_name(url)).name
    if kind == "jsonl":
        return StreamedRecords(_lines(url, options, listed))
    if kind != "tar":
        raise NotIndexableError(f"{url}: only JSONL and tar are read compressed; decompress it.")
    stream = Stream(url, options, listed)
    try:
        members = walk_source(_StreamHeaders(stream), url)
        paired = group == "pairs" or (group == "auto" and are_pairs(members.names))
        starts = group_pairs(members, url) if paired else group_key(members, url)
        found = np.append(members.header_offset[starts], np.array([members.end], np.uint64))
        stream.drain()
    finally:
        stream.close()
    lengths = np.diff(found)
    if len(lengths) and int(lengths.max()) > MOST_RECORD:
        number = int(lengths.argmax())
        raise _too_long(url, number, int(found[number]), int(lengths[number]))
    return StreamedRecords(found, paired)


class SpanReader:
    """Reads spans of a compressed source in one pass; memory is a span and a block.

    A context manager. A span that cannot be decoded does not keep from reading the next; damage of the compressed data
    does.

    Args:
        url: The source.
        options: Storage options.
        group: How the members of a sample are named.
        paired: As in `StreamedRecords`.
        listed: What was listed; see `RangeReader`.
    """

    def __init__(
        self,
        url: str,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        paired: bool = False,
        listed: FileInfo | None = None,
    ) -> None:
        self.url = url
        self._is_tar = format_of(plain_name(url)).name == "tar"
        self._group: Grouping = group
        self._paired = paired
        self._stream = Stream(url, options, listed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, span: StreamSpan) -> list[Any]:
        """Reads a span, one that begins where the last one ended or after it.

        Returns:
            The records; blank lines are left out.

        Raises:
            ArchiveError: The source is not what it was when it was scanned; also the errors of `scan_stream`.
            RecordError: A line that cannot be decoded; its byte range is that of the decompressed text.
        """
        data = self._stream.read(span.start, span.stop)
        if len(data) < span.stop - span.start:
            raise ArchiveError(
                f"{self.url}: expected {span.stop} bytes when decompressed, found {self._stream.reached}; it has "
                "changed, run the job again."
            )
        if self._is_tar:
            return _samples(data, self.url, span, self._group, self._paired)
        return _decoded_lines(data, self.url, span)


def split_source(data: bytes, url: str, group: Grouping = "auto") -> list[Any]:
    """Decodes a whole source that is in memory, compressed or not.

    Args:
        data: The content as it is stored.
        url: The source; its name tells format and compression.
        group: How members of a tar make up samples.

    Raises:
        RecordError: A line that cannot be decoded; also ArchiveError, of a tar.
        SourceError: The compressed data is damaged, or more than `MOST_RECORD` bytes when decompressed; or the format
            needs an index to tell records apart.
        UsageError: The name tells no known format, or the compression takes a package that is not installed.
    """
    compression = compression_of(url)
    name = format_of(url if compression is None else plain_name(url)).name
    if name not in FORMATS:
        raise SourceError(f"{url}: a source of {name} cannot be read without its .idx; leave --pack out.")
    if compression is not None:
        plain = bytearray()
        for block in decompressed_pieces(iter([data]), compression, url):
            plain += block
            if len(plain) > MOST_RECORD:
                raise SourceError(
                    f"{url}: expected at most {MOST_RECORD:,} bytes when decompressed, found more; leave --pack out."
                )
        data = bytes(plain)
    return FORMATS[name].split(data, url, group=group)


def _lines(url: str, options: Options | None, listed: FileInfo | None) -> Offsets:
    parts = [np.zeros(1, np.uint64)]
    size = last = 0
    records = 0
    for block in decompressed(url, options, listed):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10).astype(np.uint64) + np.uint64(size + 1)
        size += len(block)
        if len(ends):
            parts.append(ends)
            records += len(ends)
            last = int(ends[-1])
        if size - last > MOST_RECORD:
            raise _too_long(url, records, last, size - last)
    if size > last:
        parts.append(np.array([size], np.uint64))
    return np.concatenate(parts)


def _too_long(url: str, record: int, start: int, length: int) -> RecordError:
    return RecordError(
        f"{url}: record {record}, which begins at byte {start:,} of the decompressed data, has at least {length:,} "
        f"bytes; expected at most {MOST_RECORD:,}. If it is no damage, decompress the file."
    )


def _decoded_lines(data: bytes, url: str, span: StreamSpan) -> list[Any]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if len(lines) != span.records:
        raise _changed(url, span)
    return decode_lines(lines, url, span.record, span.start, wide=holds_wide(data))


def _samples(data: bytes, url: str, span: StreamSpan, group: Grouping, paired: bool) -> list[Any]:
    members = walk_bytes(data, url)
    starts = group_pairs(members, url) if paired else group_key(members, url)
    bounds = [*members.header_offset[starts].tolist(), members.end]
    if len(starts) != span.records or bounds[0]:
        raise _changed(url, span)
    return [take_sample(data, 0, start, stop, url=url, group=group).sample for start, stop in pairwise(bounds)]


def _changed(url: str, span: StreamSpan) -> ArchiveError:
    return ArchiveError(
        f"{url}: expected records [{span.record}, {span.record + span.records}) in bytes [{span.start}, {span.stop}) "
        "of the decompressed data, found others; it has changed, run the job again."
    )


class _StreamHeaders:
    """A compressed archive as a walk needs it: where it ends is not known before its end."""

    def __init__(self, stream: Stream) -> None:
        self.size = 1 << 62 if stream.read(0, 1) else 0
        self._stream = stream
        self._scan = PlainHeaderScan()

    def read(self, position: int, size: int) -> bytes:
        if size > _MOST_HEADER:
            raise ArchiveError(
                f"{self._stream.url}: the extension header at byte {position} of the decompressed data has {size:,} "
                f"bytes; expected at most {_MOST_HEADER:,}."
            )
        data = self._stream.read(position, position + size)
        if self._stream.reached < position:
            raise ArchiveError(
                f"{self._stream.url}: the archive is cut off: expected a member to end at byte {position} of the "
                f"decompressed data, found the end at {self._stream.reached}; write it again."
            )
        return data

    def headers(self, position: int) -> Run:
        data, base = self._stream.window(position)
        return self._scan.scan_bytes_headers(data, position - base)

    def moved(self, distance: float, small: float) -> None:
        """Changes nothing: a stream is read in one way only."""
