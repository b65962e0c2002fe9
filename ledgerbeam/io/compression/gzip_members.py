"""Seek points of gzip files with many members, such as one for each record of a WARC, or BGZF.

A member can be decompressed without the data before it, so a seek point at its beginning needs no window. A record that
is one member can be read and decompressed alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from ledgerbeam.errors import SourceError
from ledgerbeam.io.compression.gzip_points import SPACING, cut_while_indexed, points_bytes
from ledgerbeam.io.compression.streams import REQUEST
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

_PIECE = 16 * 1024
"""Bytes that are decompressed at once; the bytes after the end of a member in them are copied."""

_LOOK = 16 * SPACING
"""Decompressed bytes after which the mean size of the members so far decides."""

_TRAILER = 8
_MAGIC = b"\x1f\x8b\x08"
_EXTRA, _NAME, _COMMENT, _CHECKSUM = 4, 8, 16, 2
_MOST_HEADER = 1 << 17


def member_points(
    url: str, options: Options | None = None, *, size: int = 0, listed: FileInfo | None = None
) -> bytes | None:
    """Find the members of a gzip file by decompressing it; give up after the first few if they are long.

    Args:
        url: The file, which is complete.
        options: Storage options.
        size: Least number of decompressed bytes, as far as it is known.
        listed: The listed properties of the source; see `RangeReader`.

    Returns:
        The content of the file of seek points; None if the members have more than 1 MiB on average.

    Raises:
        SourceError: The file is damaged.
        ChangedSourceError: It has less than `size` bytes, or changed since it was listed; also StorageError.
    """
    places: list[int] = []
    starts: list[int] = []
    with RangeReader(url, options, listed=listed) as reader:
        made = 0
        for place, sizes in _Members(reader).each():
            places.append(place)
            starts.append(made)
            for found in sizes:
                made += found
                if made > _LOOK and made > SPACING * len(places):
                    return None
        if made < size:
            raise cut_while_indexed(reader.url, size, made)
        if len(places) < 2:
            return None
        return points_bytes(reader.size, made, np.array(places, np.uint64), np.array(starts, np.uint64))


class _Members:
    """The members of a gzip file, read in order."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._size = reader.size
        self._data = b""
        self._base = self._at = 0

    def each(self) -> Iterator[tuple[int, Iterator[int]]]:
        """Yield the offset of the data of each member, and an iterator over the sizes of its decompressed pieces.

        The iterator must be exhausted before the next member.
        """
        first = True
        while self._at < self._size:
            if not first and self._near(1) == b"\0":  # padding
                self._at += 1
                continue
            first = False
            self._at += _header_length(self._near(_MOST_HEADER), self._reader.url, self._at)
            yield self._at, self._decompressed()

    def _decompressed(self) -> Iterator[int]:
        decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        while not decompressor.eof:
            piece = self._near(_PIECE)
            if not piece:
                return
            try:
                yield len(decompressor.decompress(piece))
            except zlib.error as error:
                raise SourceError(
                    f"{self._reader.url}: the gzip data is damaged at or after byte {self._at:,} of the file "
                    f"({error}); write the file again"
                ) from error
            self._at += len(piece) - len(decompressor.unused_data)
        self._at += _TRAILER

    def _near(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        stop = min(self._at + size, self._size)
        if stop > self._base + len(self._data):
            self._base = self._at
            self._data = self._reader.read(self._at, min(max(self._at + REQUEST, stop), self._size))
        return self._data[self._at - self._base : stop - self._base]


def _header_length(data: bytes, url: str, at: int) -> int:
    """Return the length of the header of a gzip member.

    Args:
        data: Bytes of the file from the beginning of the member on.
        url: The file, for messages.
        at: Offset of the member, for messages.
    """
    flags = data[3] if len(data) > 10 and data.startswith(_MAGIC) else -1
    end = 10
    if flags >= 0 and flags & _EXTRA:
        end += 2 + int.from_bytes(data[10:12], "little")
    for flag in (_NAME, _COMMENT):
        if flags >= 0 and flags & flag:
            end = data.find(b"\0", end) + 1 or len(data) + 1
    end += 2 if flags >= 0 and flags & _CHECKSUM else 0
    if flags < 0 or end > len(data):
        raise SourceError(
            f"{url}: the gzip data is damaged: expected a member at byte {at:,} of the file, found {data[:10]!r}; "
            "write the file again"
        )
    return end
