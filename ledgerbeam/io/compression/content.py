"""Decompressed bytes of a source, read by position. A segment of a file is decompressed without earlier segments.

A file in the Zstandard seekable format has many frames, and at its end a skippable frame with a table of their sizes
(`contrib/seekable_format/zstd_seekable_compression_format.md` of facebook/zstd): for each frame the compressed and the
decompressed size as little-endian u32 and, with a flag, a checksum; then the number of frames, the flags and a magic
number. `gzip_points` has the table of gzip files.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ChangedSourceError, NotIndexableError, SourceError, StorageError
from ledgerbeam.io.compression.gzip_points import GzipTable, load_gzip_table, points_mismatch, points_url
from ledgerbeam.io.compression.streams import REQUEST, decompressed_pieces, split_compression, whole_zstd_frame
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import index_again

_KEPT = 8 * 1024 * 1024  # bytes that a reader keeps; of a longer segment only the requested part is decompressed
_FOOTER = 9
_HEADER = 8
_MAGIC_FOOTER = 0x8F92EAB1
_MAGIC_HEADER = 0x184D2A5E
_CHECKSUMS = 0x80
_RESERVED = 0x7C
_NEAR_END = 64 * 1024  # bytes at the end of a file that the first request reads, with the table if it fits


def open_content(
    url: str, index: str, options: Options | None = None, size: int | None = None, listed: FileInfo | None = None
) -> RangeReader:
    """Open a source for reading by position. If it is compressed, by its name, positions count decompressed bytes.

    The seek points of a gzip file are beside its index. `size` is the size of the file, if the caller has it.
    """
    if (compression := split_compression(url).compression) is not None and compression.seekable:
        return ContentReader(url, index, options, size, listed)
    return RangeReader(url, options, size, listed)


def is_older(made: FileInfo, source: FileInfo) -> bool:
    """Return whether the modification times show that a file made from a source is older than the source.

    If the time of the source is in the future, the times show nothing, and the result is False.
    """
    return bool(made.modified_ns) and made.modified_ns < source.modified_ns <= time.time_ns()


def age_fault(made: FileInfo, source: FileInfo) -> str | None:
    """Return an error message if a file `is_older` than the source that it was made from; else None."""
    if not is_older(made, source):
        return None
    seconds = (source.modified_ns - made.modified_ns) / 1e9
    return f"expected a file newer than its source, found one {seconds:.3f} s older"


class ContentReader(RangeReader):
    """Positional reads of the decompressed bytes of a gzip or seekable Zstandard file.

    A range is decompressed from the seek point before it; from a store with one request. The last 8 MiB of decompressed
    segments, the data between seek points, are kept, so that neighbouring reads are cheap. Like every `RangeReader` it
    may be pickled, shared by threads and used after a fork. The first read loads the table of the seek points.
    """

    __slots__ = ("_bounds", "_index", "_is_gzip", "_kept", "_points", "_source", "_table")

    def __init__(
        self,
        url: str,
        index: str,
        options: Options | None = None,
        stored: int | None = None,
        listed: FileInfo | None = None,
    ) -> None:
        points = RangeReader(points_url(index), options)  # first, since it may raise
        self._source, self._points = RangeReader(url, options, stored, listed), points
        super().__init__(url, options)
        self._local = False  # its bytes cannot be read directly from the file
        self._index = index
        compression = split_compression(url).compression
        self._is_gzip = compression is not None and compression.name == "gzip"
        self._table: SeekTable | None = None
        self._bounds: memoryview[int] | tuple[int, ...] = ()
        self._kept = _Segments()

    def __repr__(self) -> str:
        return f"ContentReader({self.url!r}, {self._index!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source
        return type(self), (self.url, self._index, self.options, source._size, source.listed)  # noqa: SLF001 - our own

    @property
    def size(self) -> int:
        """Length of the decompressed bytes.

        Raises:
            IndexNotFoundError: A gzip file has no seek points.
            IndexMismatchError: The seek points are damaged, or belong to another file.
            NotIndexableError: A Zstandard file has no seek table.
            SourceError: The seek table of a Zstandard file is damaged.
        """
        return int(self._loaded().starts[-1])

    def check(self, source: FileInfo) -> None:
        """Raise IndexMismatchError if the seek points are older than the file; also the errors of `size`."""
        self._loaded()
        if self._is_gzip and (fault := age_fault(stat(self._points.url, self.options), source)):
            raise points_mismatch(self._points, self._source, fault)

    def close(self) -> None:
        """Close both files and drop the kept segments."""
        self._kept = _Segments()
        self._source.close()
        self._points.close()

    def read(self, start: int, stop: int) -> bytes:
        """Read exactly the decompressed bytes `[start, stop)`; see `RangeReader`."""
        bounds = self._bounds
        number = bisect_right(bounds, start) - 1
        if 0 <= number < len(bounds) - 1 and start < stop <= bounds[number + 1]:  # the common case: one segment
            data = self._kept.get(number) or self._segment(number)
            if data is not None:
                first = bounds[number]
                return data[start - first : stop - first]
        return super().read(start, stop)

    def _segment(self, number: int) -> bytes | None:
        """Decompress and keep a segment; return None if it is too long to keep."""
        size = self._bounds[number + 1] - self._bounds[number]
        begin, end = self._loaded().extent(number)
        if size > _KEPT or end - begin > REQUEST:
            return None
        return self._part(number, iter((self._source.read(begin, end),)), 0, size)

    def _loaded(self) -> SeekTable:
        if (table := self._table) is None:
            table = load_gzip_table(self._points, self._source) if self._is_gzip else load_zstd_table(self._source)
            self._bounds = table.starts.data
            self._table = table
        return table

    def _fetch(self, starts: list[int], stops: list[int]) -> list[bytes]:
        _ = self._loaded()
        end = self._bounds[-1]
        ranges = [(start, min(stop, end)) for start, stop in zip(starts, stops, strict=True)]
        stored = self._stored(ranges)
        return [self._content(start, stop, *found) for (start, stop), found in zip(ranges, stored, strict=True)]

    def _missing(self, start: int, stop: int) -> tuple[int, int]:
        """Return the segments of a range that are not kept, as their first number and one past their last."""
        bounds, kept = self._bounds, self._kept
        first, last = bisect_right(bounds, start) - 1, bisect_right(bounds, stop - 1)
        if start >= stop:
            return 0, 0
        while first < last and first in kept:
            first += 1
        while first < last and last - 1 in kept:
            last -= 1
        return first, last

    def _stored(self, ranges: list[tuple[int, int]]) -> list[tuple[int, memoryview]]:
        """Return for each range the offset of its compressed bytes, and these bytes; no bytes if they are too many."""
        extent = self._loaded().extent
        extents = []
        for start, stop in ranges:
            first, last = self._missing(start, stop)
            begin, end = (extent(first)[0], extent(last - 1)[1]) if first < last else (0, 0)
            extents.append((begin, end) if end - begin <= REQUEST + 2 * (stop - start) else (0, 0))
        if len(extents) == 1:
            found = [self._source.read(*extents[0])]
        else:
            found = self._source.read_many([begin for begin, _ in extents], [end for _, end in extents])
        return [(begin, memoryview(data)) for (begin, _), data in zip(extents, found, strict=True)]

    def _content(self, start: int, stop: int, at: int, stored: memoryview) -> bytes:
        """Return the decompressed bytes of a range. `stored` has compressed bytes from the offset `at` of the file."""
        bounds = self._bounds
        number = bisect_right(bounds, start) - 1
        parts = []
        while start < stop:
            first, last = bounds[number], bounds[number + 1]
            end = min(stop, last)
            if (kept := self._kept.get(number)) is None:
                kept = self._part(number, self._pieces(number, at, stored), start - first, end - first)
            else:
                kept = kept[start - first : end - first]
            parts.append(kept)
            start, number = end, number + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, number: int, pieces: Iterator[bytes], start: int, stop: int) -> bytes:
        """Return the decompressed bytes of a range of a segment; keep the segment unless it is too long."""
        if (size := self._bounds[number + 1] - self._bounds[number]) > _KEPT:
            return self._decompress(number, pieces, start, stop)
        data = self._decompress(number, pieces, 0, size)
        self._kept.put(number, data)
        return data[start:stop]

    def _pieces(self, number: int, at: int, stored: memoryview) -> Iterator[bytes]:
        """Return the compressed bytes of a segment, from `stored` if it holds them, else read in pieces."""
        start, stop = self._loaded().extent(number)
        if at <= start and stop <= at + len(stored):
            return iter((bytes(stored[start - at : stop - at]),))
        return self._source.blocks(REQUEST, start=start, stop=stop)

    def _decompress(self, number: int, pieces: Iterator[bytes], start: int, stop: int) -> bytes:
        size = self._bounds[number + 1] - self._bounds[number]
        parts = []
        made = 0
        try:
            for block in self._loaded().blocks(number, pieces, self.url):
                parts.append(block[max(0, start - made) : max(0, stop - made)])
                made += len(block)
                if made > size or (made >= stop and stop < size):
                    break
                if made == size and self._is_gzip:
                    break  # for a Zstandard frame the checksum follows
        except SourceError as error:
            raise SourceError(f"{error}{self._hint()}") from error
        if made > size or made < stop:
            found = f"more than {size:,}" if made > size else f"{made:,}"
            raise SourceError(
                f"{self.url}: expected {size:,} decompressed bytes between two seek points, found {found}: the file is "
                f"damaged; write it again.{self._hint()}"
            )
        return b"".join(parts)

    def _hint(self) -> str:
        if not self._is_gzip:
            return ""
        return f" If the file is good, its seek points {self._points.url} are damaged: {index_again(self.url)}"

    def _short(self, start: int, stop: int, got: int) -> StorageError:
        return ChangedSourceError(
            f"{self.url}: expected {stop - start} bytes at [{start}, {stop}) of the decompressed data, found {got}; it "
            f"ends at {self.size}. The file was replaced after it was listed or indexed; index it and run again"
        )


class _Segments(dict[int, bytes]):
    """The last 8 MiB of decompressed segments; safe to share between threads."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 0
        self._turn = threading.Lock()

    def put(self, number: int, data: bytes) -> None:
        """Keep a segment, unless another thread holds the lock, or held it when this process was forked."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if number not in self:
                self[number] = data
                self._size += len(data)
                while self._size > _KEPT:
                    self._size -= len(self.pop(next(iter(self))))
        finally:
            self._turn.release()


@dataclass
class ZstdTable:
    """The frames of a file in the Zstandard seekable format. A segment is a frame."""

    starts: NDArray[np.int64]  # offset of each frame in the decompressed bytes, and the end of the last: increasing
    places: memoryview[int]  # offset of each frame in the file, and the end of the last; faster than an array

    def extent(self, number: int) -> tuple[int, int]:
        """Return the byte range of a frame in the file, with the empty frames after it."""
        return self.places[number], self.places[number + 1]

    def blocks(self, number: int, pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
        """Decompress a frame, in blocks. `pieces` may have more data after it. SourceError if they are damaged."""
        start, stop = self.extent(number)
        first = next(pieces, b"")
        whole = None
        if len(first) == stop - start:
            whole = whole_zstd_frame(first, int(self.starts[number + 1] - self.starts[number]))
        if whole is not None:
            return iter([whole])
        return decompressed_pieces(chain([first], pieces), "zstd", url, at=start)


SeekTable: TypeAlias = ZstdTable | GzipTable  # each segment can be decompressed without the earlier ones


def load_zstd_table(source: RangeReader) -> ZstdTable:
    """Read the seek table at the end of a Zstandard file: one or two requests. A frame takes 16 bytes of memory.

    Raises:
        NotIndexableError: The file has no seek table.
        SourceError: The seek table is damaged, or does not fit this file.
    """
    size = source.size
    end = source.read(max(0, size - _NEAR_END), size)
    footer = end[-_FOOTER:]
    if len(footer) < _FOOTER or int.from_bytes(footer[5:], "little") != _MAGIC_FOOTER:
        raise NotIndexableError(
            f"{source.url}: this Zstandard file has no seek table, so it can only be read from its beginning, as map, "
            "convert and tokenize do. Write it in the seekable format, e.g. with pyzstd.SeekableZstdFile, or "
            "decompress it: unzstd"
        )
    count, flags = int.from_bytes(footer[:4], "little"), footer[4]
    entry = 12 if flags & _CHECKSUMS else 8
    length = _HEADER + count * entry + _FOOTER
    if flags & _RESERVED or length > size:
        raise _damaged(
            source.url, f"{count:,} frames with the flags {flags:#x}, which a file of {size:,} bytes cannot have"
        )
    table = (end if length <= len(end) else source.read(size - length, size))[-length:-_FOOTER]
    if int.from_bytes(table[:4], "little") != _MAGIC_HEADER or int.from_bytes(table[4:8], "little") != length - _HEADER:
        raise _damaged(source.url, f"no skippable frame of its size at byte {size - length:,}")
    sizes = np.frombuffer(table, "<u4", offset=_HEADER).reshape(count, entry // 4)[:, :2].astype(np.int64)
    ends = np.cumsum(sizes, axis=0)
    if count and int(ends[-1, 0]) != size - length:
        found = f"frames of {int(ends[-1, 0]):,} bytes in total before its beginning at byte {size - length:,}"
        raise _damaged(source.url, found)
    kept = np.flatnonzero(sizes[:, 1])  # empty frames contain no records
    begins = ends - sizes
    stops = ends[kept[-1:]]
    return ZstdTable(
        np.concatenate([begins[kept, 1], stops[:, 1] if len(kept) else np.zeros(1, np.int64)]),
        np.concatenate([begins[kept, 0], stops[:, 0] if len(kept) else np.zeros(1, np.int64)]).data,
    )


def zstd_table_bytes(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Return the seek table of frames with these compressed and decompressed sizes, as bytes, without checksums."""
    table = np.array(sizes, "<u4").tobytes()
    footer = len(sizes).to_bytes(4, "little") + b"\0" + _MAGIC_FOOTER.to_bytes(4, "little")
    length = len(table) + len(footer)
    return _MAGIC_HEADER.to_bytes(4, "little") + length.to_bytes(4, "little") + table + footer


def _damaged(url: str, found: str) -> SourceError:
    return SourceError(f"{url}: the seek table at its end is damaged: found {found}; write the file again")
