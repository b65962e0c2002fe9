"""The decompressed bytes of a source by position: where the readers of records need not know of compression."""

from __future__ import annotations

import time
from typing import Any

from ledgerbeam.errors import ChangedSourceError, SourceError, StorageError
from ledgerbeam.io.compression.gzip_points import load_gzip_table, points_mismatch, points_url
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.compression.zstd_table import SeekTable, load_zstd_table
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat

__all__ = ["ContentReader", "open_content"]

_KEPT = 8 * 1024 * 1024


def open_content(
    url: str,
    index: str,
    options: Options | None = None,
    size: int | None = None,
    listed: FileInfo | None = None,
) -> RangeReader:
    """Open a source for reading by position: a compressed one, as its name tells, by its decompressed bytes.

    Args:
        url: The source.
        index: Where its index lies; the seek points of a gzip file lie beside it.
        options: Storage options of both.
        size: Size of the source as it is stored, if it is known.
        listed: What was listed; see `RangeReader`.
    """
    compression = split_compression(url).compression
    if compression is not None and compression.seekable:
        return ContentReader(url, index, options, size, listed)
    return RangeReader(url, options, size, listed)


def is_older(made: FileInfo, source: FileInfo) -> bool:
    """Return whether what was made of a source is older than it, as far as times show.

    A source whose time lies ahead of the clock is newer than anything that can be made of it, so its time says nothing.
    """
    return bool(made.modified_ns) and made.modified_ns < source.modified_ns <= time.time_ns()


class ContentReader(RangeReader):
    """Positional reads of the decompressed bytes of a gzip or seekable Zstandard file.

    A range is decompressed from the seek point before it. The last segment that was read is kept, if it has at most
    8 MiB, so that neighbours cost one. May be pickled, shared by threads and used after a fork, as every
    `RangeReader`. Nothing is read before it is needed; then the table of the seek points is loaded once.

    Args:
        url: The file.
        index: Where its index lies.
        options: Storage options.
        stored: Size of the file in bytes, if it is known.
        listed: What was listed of the file; see `RangeReader`.
    """

    __slots__ = ("_index", "_is_gzip", "_kept", "_points", "_source", "_table")

    def __init__(
        self,
        url: str,
        index: str,
        options: Options | None = None,
        stored: int | None = None,
        listed: FileInfo | None = None,
    ) -> None:
        points = RangeReader(points_url(index), options)  # first: what is not whole cannot be closed
        self._source, self._points = RangeReader(url, options, stored, listed), points
        super().__init__(url, options)
        self._local = False  # no byte of it can be read as it lies in the file
        self._index = index
        compression = split_compression(url).compression
        self._is_gzip = compression is not None and compression.name == "gzip"
        self._table: SeekTable | None = None
        self._kept: tuple[int, bytes] = (-1, b"")

    def __repr__(self) -> str:
        return f"ContentReader({self.url!r}, {self._index!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.url, self._index, self._source)

    @property
    def size(self) -> int:
        """Length of the decompressed bytes.

        Raises:
            IndexNotFoundError: A gzip file has no seek points.
            IndexMismatchError: They are damaged, or those of another file.
            NotIndexableError: A Zstandard file has no seek table.
            SourceError: Its seek table is damaged.
        """
        return int(self._loaded().starts[-1])

    def check(self, source: FileInfo) -> None:
        """Check that the seek points are not older than the file.

        Raises:
            IndexMismatchError: They are; also the errors of `size`.
        """
        self._loaded()
        if self._is_gzip:
            points = stat(self._points.url, self.options)
            if is_older(points, source):
                seconds = (source.modified_ns - points.modified_ns) / 1e9
                raise points_mismatch(self._points, self._source, f"they are {seconds:.3f} s older")

    def close(self) -> None:
        """Close both files, if they are open, and forget what was kept."""
        self._kept = (-1, b"")
        self._source.close()
        self._points.close()

    def _loaded(self) -> SeekTable:
        table = self._table
        if table is None:
            table = load_gzip_table(self._points, self._source) if self._is_gzip else load_zstd_table(self._source)
            self._table = table
        return table

    def _fetch(self, starts: list[int], stops: list[int]) -> list[bytes]:
        return [self._content(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def _content(self, start: int, stop: int) -> bytes:
        bounds = self._loaded().starts
        stop = min(stop, int(bounds[-1]))
        number = int(bounds.searchsorted(start, "right")) - 1
        parts = []
        while start < stop:
            first, last = int(bounds[number]), int(bounds[number + 1])
            end = min(stop, last)
            parts.append(self._part(number, start - first, end - first, last - first))
            start, number = end, number + 1
        return b"".join(parts)

    def _part(self, number: int, start: int, stop: int, size: int) -> bytes:
        """Return a range of a segment of `size` bytes."""
        kept, data = self._kept  # one read of one name: another thread may set it
        if kept == number:
            return data[start:stop]
        if size <= _KEPT:
            data = self._decompress(number, 0, size, size)
            self._kept = (number, data)
            return data[start:stop]
        return self._decompress(number, start, stop, size)

    def _decompress(self, number: int, start: int, stop: int, size: int) -> bytes:
        parts = []
        made = 0
        try:
            for block in self._loaded().blocks(number, self._source):
                parts.append(block[max(0, start - made) : max(0, stop - made)])
                made += len(block)
                if made > size or (made >= stop and stop < size):
                    break
                if made == size and self._is_gzip:
                    break  # in the middle of the data; of a Zstandard frame the checksum is still to come
        except SourceError as error:
            raise SourceError(f"{error}{self._hint()}") from error
        if made > size or made < stop:
            found = f"more than {size:,}" if made > size else f"{made:,}"
            raise SourceError(
                f"{self.url}: expected {size:,} decompressed bytes between two seek points, found {found}: it is "
                f"damaged; write the file again.{self._hint()}"
            )
        return b"".join(parts)

    def _hint(self) -> str:
        if not self._is_gzip:
            return ""
        return f" If the file is whole, its seek points {self._points.url} are not: ledgerbeam index --force {self.url}"

    def _short(self, start: int, stop: int, got: int) -> StorageError:
        return ChangedSourceError(
            f"{self.url}: expected {stop - start} bytes at [{start}, {stop}) of the decompressed data, found {got}; it "
            f"ends at {self.size}. It was replaced after it was listed or indexed: index it again and run again"
        )


def _restore(url: str, index: str, source: RangeReader) -> ContentReader:
    reader = ContentReader(url, index, source.options)
    reader._source = source  # noqa: SLF001 - it knows what was listed
    return reader
