"""Seek points of gzip files, at which decompression can start, in the file format of the library `indexed_gzip`.

Deflate data refers to the previous 32 KiB of decompressed data, and its blocks start at any bit. A seek point is the
start of a block, together with these 32 KiB, the window. The file (`GZIDX`, version 1, little-endian):

    5s magic, u8 version, u8 flags, u64 size of the gzip file, u64 decompressed size, u32 spacing, u32 window bytes, u32
    points; for each: u64 offset in the file, u64 offset in the decompressed bytes, u8 bits of the byte before the
    offset that belong to the block, u8 whether it has a window; then the windows.

The library writes the points. Reading needs no library, and loads one window at a time.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ledgerbeam._base.extensions import import_extra
from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam._base.names import INDEX_ENDING, beside
from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    LedgerbeamError,
    SourceError,
    SourceNotFoundError,
)
from ledgerbeam.io.compression.streams import REQUEST, DeflateFrame, decompressed_pieces
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader, SizedFile
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url, index_again

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


SPACING = 1 << 20  # least number of decompressed bytes between two seek points
_MOST_WINDOWS = 2048  # limits memory and file size to 64 MiB, up to 256 GiB of data
_MOST_SPACING = 128 << 20  # from 1 GiB on the library overflows and the process dies
looks_like_points = re.compile(rb"GZIDX|\Z").match  # test for files of seek points; see `Looks`
_HEADER = struct.Struct("<5sBBQQIII")
_POINT = [("place", "<u8"), ("start", "<u8"), ("bits", "u1"), ("has_window", "u1")]
_ANY_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # RFC 1952, section 2.3: deflate, without optional fields
_TRAILER = 8  # checksum and size, after the deflate data of a gzip member


@dataclass
class GzipTable:
    """The seek points of a gzip file. A segment is the data between two of them."""

    starts: NDArray[np.int64]  # offset of each segment in the decompressed bytes, and the end of the last: increasing
    places: NDArray[np.int64]  # offset of each segment in the gzip file, and the end of the last
    bits: NDArray[np.uint8]  # for each segment the number of bits of the byte before its offset that belong to it
    points: RangeReader  # the file of points
    windows: NDArray[np.int64]  # offset of the window of each segment in the file of points; -1 for none
    window: int  # bytes of a window

    def extent(self, number: int) -> tuple[int, int]:
        """Return the byte range of a segment in the file. The segment may start at any bit of the first byte."""
        return int(self.places[number]) - int(self.bits[number] > 0), int(self.places[number + 1])

    def blocks(self, number: int, pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
        """Decompress a segment, in blocks. `pieces` may have more data after it. SourceError if they are damaged."""
        bits, at = int(self.bits[number]), int(self.windows[number])
        window = b"" if at < 0 else self.points.read(at, at + self.window)
        if bits:
            pieces = chain([_aligned(next(pieces), bits)], pieces)
        frame = _WholeMember() if self._is_whole(number) else _MemberRest(window)
        return decompressed_pieces(pieces, "gzip", url, frame=frame, at=int(self.places[number]))

    def _is_whole(self, number: int) -> bool:
        """Return whether a segment consists of whole members. Only the start of a member needs no window."""
        return bool((self.windows[number : number + 2] < 0).all())


class _MemberRest(DeflateFrame):
    """The rest of a gzip member after a seek point: deflate data without a header."""

    def __init__(self, window: bytes) -> None:
        super().__init__(lambda: zlib.decompressobj(-zlib.MAX_WBITS, zdict=window))
        self._after = b""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        if self._decompressor.eof:
            self._after += data
            return
        yield from super().feed(data)
        self._after = self._decompressor.unused_data

    @property
    def ended(self) -> bool:
        return self._decompressor.eof and len(self._after) >= _TRAILER

    @property
    def rest(self) -> bytes:
        return self._after[_TRAILER:]


class _WholeMember(DeflateFrame):
    """A whole gzip member without its header. zlib compares the checksum before the last bytes are yielded."""

    def __init__(self) -> None:
        super().__init__()
        self._decompressor.decompress(_ANY_HEADER)
        self._last = b""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        for block in super().feed(data):
            if self._last:
                yield self._last
            self._last = block
        if self.ended and self._last:
            yield self._last


def _aligned(data: bytes, bits: int) -> bytes:
    """Return deflate data that starts inside a byte in a form for zlib. `bits` bits of the first byte belong to it.

    zlib starts only at the first bit of a byte. So empty deflate blocks are put before the data, and end just before
    its first bit. Empty blocks have 10 bits; if the number of bits before the data is odd, one of them has 91 bits.
    """
    free = 8 - bits
    value, length = _EMPTY_OF_91_BITS if free % 2 else (0, 0)
    while length % 8 != free:
        value |= _EMPTY_OF_10_BITS << length
        length += 10
    value |= data[0] >> free << length
    return value.to_bytes(length // 8 + 1, "little") + data[1:]


def _from_bits(*fields: tuple[int, int]) -> tuple[int, int]:
    """Pack pairs (value, bits), least significant bit first. Return the packed value and its bits."""
    value = length = 0
    for field, bits in fields:
        value |= field << length
        length += bits
    return value, length


_EMPTY_OF_10_BITS = 0b10  # not the last block, fixed codes, and seven zeros, the end of the block

# RFC 1951, 3.2.7: not the last block, dynamic codes: 257 literals, 1 distance, 18 code lengths. Only the 2nd code
# length (a run of 11 or more zeros) and the 18th (the length 1) are used, with the codes 1 and 0. They encode 138 + 117
# zeros, and the length 1 for the literal 255, for the end of the block and for a distance. The end of the block has the
# code 1.
_EMPTY_OF_91_BITS = _from_bits(
    *((0, 1), (2, 2), (0, 5), (0, 5), (14, 4)),
    *((int(position in (2, 17)), 3) for position in range(18)),
    *((1, 1), (138 - 11, 7), (1, 1), (117 - 11, 7)),
    *((0, 1), (0, 1), (0, 1)),
    (1, 1),
)


def load_gzip_table(points: RangeReader, source: RangeReader) -> GzipTable:
    """Read the seek points of a gzip file without their windows: two requests. A point takes 25 bytes of memory.

    Raises:
        IndexNotFoundError: The file of points does not exist.
        IndexMismatchError: The points are damaged, or belong to another gzip file.
    """
    try:
        size = points.size
    except SourceNotFoundError as error:
        raise IndexNotFoundError(
            f"{source.url} has no seek points: expected {points.url}. Build them: {index_again(source.url)}"
        ) from error
    head = points.read(0, min(size, _HEADER.size))
    if len(head) < _HEADER.size or head[:6] != b"GZIDX\x01":
        raise points_mismatch(points, source, f"expected GZIDX, version 1, found {head[:6]!r}")
    _, _, _, compressed, total, _, window, count = _HEADER.unpack(head)
    if compressed != source.size:
        raise points_mismatch(points, source, f"expected a gzip file of {compressed:,} bytes, found {source.size:,}")
    windows_at = _HEADER.size + count * np.dtype(_POINT).itemsize
    if windows_at > size:
        raise points_mismatch(points, source, f"expected {windows_at:,} bytes or more for its points, found {size:,}")
    found = np.frombuffer(points.read(_HEADER.size, windows_at), _POINT)
    has_window = found["has_window"] != 0
    if size != (whole := windows_at + int(has_window.sum()) * window):
        raise points_mismatch(points, source, f"expected {whole:,} bytes by its table of points, found {size:,}")
    windows = np.where(has_window, windows_at + (np.cumsum(has_window) - 1) * window, -1)
    limit = max(compressed, total) + 1
    if (found["place"] > limit).any() or (found["start"] > limit).any() or (found["bits"] > 7).any():
        raise points_mismatch(points, source, "a point is outside of the gzip file")
    starts = np.append(found["start"].astype(np.int64), total)
    places = np.append(found["place"].astype(np.int64), compressed)
    if starts[0] or (np.diff(starts) < 0).any() or (np.diff(places) < 0).any() or places[0] < 1:
        raise points_mismatch(points, source, "the points are not in order")
    kept = np.flatnonzero(np.diff(starts))  # the others are ends of members and empty members
    edges = np.append(kept, kept[-1] + 1) if len(kept) else np.zeros(1, np.intp)
    return GzipTable(starts[edges], places[edges], found["bits"][kept], points, windows[kept], window)


def points_mismatch(points: RangeReader, source: RangeReader, what: str) -> IndexMismatchError:
    """Return an error that names the seek points, the source and the remedy."""
    return IndexMismatchError(
        f"the seek points {points.url} do not fit {source.url}: {what}. Rebuild them: {index_again(source.url)}"
    )


def gzip_points(
    url: str, options: Options | None = None, *, size: int = 0, spacing: int = SPACING, listed: FileInfo | None = None
) -> bytes:
    """Find the seek points of a gzip file by decompressing all of it; return the bytes of the file of points.

    Points are at least `spacing` decompressed bytes apart, which must be more than 32768. `ChangedSourceError`: the
    decompressed data has less than `size` bytes.
    """
    library = import_extra("indexed_gzip", "seekable", "Seek points of gzip files need a package that is not installed")
    found = io.BytesIO()
    with (
        RangeReader(url, options, listed=listed) as reader,
        _File(reader) as raw,
        io.BufferedReader(raw, REQUEST) as file,
    ):
        try:
            with library.IndexedGzipFile(fileobj=file, spacing=gzip_spacing(size, spacing)) as indexed:
                indexed.build_full_index()
                indexed.export_index(fileobj=found)
        except MemoryError:
            raise
        except Exception as error:  # the library raises its own errors, also for failed reads
            if raw.error is not None:
                raise raw.error from error
            raise SourceError(f"{reader.url}: the gzip data is damaged ({error}); write the file again") from error
    if (total := _HEADER.unpack_from(found.getbuffer())[4]) < size:
        raise cut_while_indexed(reader.url, size, total)
    return found.getvalue()


def cut_while_indexed(url: str, size: int, total: int) -> ChangedSourceError:
    """Return the error for a file that was cut while it was indexed, from `size` to `total` decompressed bytes."""
    return ChangedSourceError(
        f"{url}: expected {size:,} decompressed bytes, found {total:,}: the file was cut while it was indexed; index "
        "it again when it is complete"
    )


def gzip_spacing(size: int, spacing: int = SPACING) -> int:
    """Return the distance of seek points. It grows with the source, so that all windows take at most 64 MiB."""
    return min(max(spacing, size // _MOST_WINDOWS), _MOST_SPACING)


class _File(SizedFile):
    def __init__(self, reader: RangeReader) -> None:
        super().__init__(reader.size)
        self.error: LedgerbeamError | None = None
        self._reader = reader

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        start = min(self._place, self._size)
        try:
            data = self._reader.read(start, min(start + len(view), self._size))
        except LedgerbeamError as error:
            self.error = error
            raise
        view[: len(data)] = data
        self._place = start + len(data)
        return len(data)


POINTS_ENDING = ".gzidx"  # suffix of the names of files of seek points


def points_url(index: str) -> str:
    """Return the URL of the seek points of a gzip file: beside its index, with `.gzidx` in place of `.idx`."""
    return beside(canonical_url(index).removesuffix(INDEX_ENDING), POINTS_ENDING)


_PIECE = 16 * 1024  # bytes that are decompressed at once; the bytes after the end of a member in them are copied
_LOOK = 16 * SPACING  # decompressed bytes after which the mean size of the members so far decides
_MAGIC = b"\x1f\x8b\x08"
_EXTRA, _NAME, _COMMENT, _CHECKSUM = 4, 8, 16, 2
_MOST_HEADER = 1 << 17


def member_points(
    url: str, options: Options | None = None, *, size: int = 0, listed: FileInfo | None = None
) -> bytes | None:
    """Find the members of a gzip file by decompressing it; return the bytes of a file of seek points at all members.

    If the first few members have more than 1 MiB on average, return None without reading the others.
    `ChangedSourceError`: the decompressed data has less than `size` bytes.
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
        points = np.zeros(len(places), _POINT)  # starts of members need no windows
        points["place"], points["start"] = places, starts
        head = _HEADER.pack(b"GZIDX", 1, 0, reader.size, made, SPACING, 1 << 15, len(points))
        return head + points.tobytes()


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
            if not (piece := self._near(_PIECE)):
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
        """Return the next `size` bytes, fewer at the end of the file. The position does not change."""
        stop = min(self._at + size, self._size)
        if stop > self._base + len(self._data):
            self._base = self._at
            self._data = self._reader.read(self._at, min(max(self._at + REQUEST, stop), self._size))
        return self._data[self._at - self._base : stop - self._base]


def _header_length(data: bytes, url: str, at: int) -> int:
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
