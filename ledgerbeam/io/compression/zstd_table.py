"""Tables of the positions at which decompression can start, and the table of the Zstandard seekable format.

A file in the Zstandard seekable format has many frames, and at its end a skippable frame with a table of their sizes
(`contrib/seekable_format/zstd_seekable_compression_format.md` of facebook/zstd): for each frame the compressed and the
decompressed size as little-endian u32 and, with a flag, a checksum; then the number of frames, the flags and a magic
number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import NotIndexableError, SourceError
from ledgerbeam.io.compression.streams import decompressed_pieces, whole_zstd_frame
from ledgerbeam.io.storage.ranges import RangeReader

_FOOTER = 9
_HEADER = 8
_MAGIC_FOOTER = 0x8F92EAB1
_MAGIC_HEADER = 0x184D2A5E
_CHECKSUMS = 0x80
_RESERVED = 0x7C
_NEAR_END = 64 * 1024  # read at once, with the table if it fits


class SeekTable(Protocol):
    """The segments of a compressed file: each can be decompressed without those before it."""

    starts: NDArray[np.int64]
    """Offset of each segment in the decompressed bytes, and the end of the last: increasing, from 0."""

    def extent(self, number: int) -> tuple[int, int]:
        """Return the byte range of a segment in the file; it follows the range of the previous segment."""

    def blocks(self, number: int, pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
        """Decompress a segment, in blocks; the result may extend beyond it. SourceError if the bytes are damaged."""


class ZstdTable:
    """The frames of a file in the Zstandard seekable format. A segment is a frame.

    Args:
        places: Offset of each frame in the file, and the end of the last.
    """

    def __init__(self, starts: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        self.starts = starts
        self._places = places.data  # reading single numbers is faster than from an array

    def extent(self, number: int) -> tuple[int, int]:
        """Return the byte range of a frame in the file, with the empty frames after it."""
        return self._places[number], self._places[number + 1]

    def blocks(self, number: int, pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
        """Decompress a frame."""
        start, stop = self.extent(number)
        first = next(pieces, b"")
        whole = None
        if len(first) == stop - start:
            whole = whole_zstd_frame(first, int(self.starts[number + 1] - self.starts[number]))
        if whole is not None:
            return iter([whole])
        return decompressed_pieces(chain([first], pieces), "zstd", url, at=start)


def load_zstd_table(source: RangeReader) -> ZstdTable:
    """Read the seek table at the end of a Zstandard file: one or two requests, 16 bytes of memory for each frame.

    Raises:
        NotIndexableError: The file has none.
        SourceError: It is damaged, or does not fit this file.
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
        raise _damaged(source.url, f"{count:,} frames and flags {flags:#x} in a file of {size:,} bytes")
    table = (end if length <= len(end) else source.read(size - length, size))[-length:-_FOOTER]
    if int.from_bytes(table[:4], "little") != _MAGIC_HEADER or int.from_bytes(table[4:8], "little") != length - _HEADER:
        raise _damaged(source.url, f"no frame that holds it at byte {size - length:,}")
    sizes = np.frombuffer(table, "<u4", offset=_HEADER).reshape(count, entry // 4)[:, :2].astype(np.int64)
    ends = np.cumsum(sizes, axis=0)
    if count and int(ends[-1, 0]) != size - length:
        found = f"frames of {int(ends[-1, 0]):,} bytes before its beginning at byte {size - length:,}"
        raise _damaged(source.url, found)
    kept = np.flatnonzero(sizes[:, 1])  # empty frames contain no records
    begins = ends - sizes
    stops = ends[kept[-1:]]
    return ZstdTable(
        np.concatenate([begins[kept, 1], stops[:, 1] if len(kept) else np.zeros(1, np.int64)]),
        np.concatenate([begins[kept, 0], stops[:, 0] if len(kept) else np.zeros(1, np.int64)]),
    )


def zstd_table_bytes(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Return the seek table of frames with these compressed and decompressed sizes. The frames have the checksums."""
    table = np.array(sizes, "<u4").tobytes()
    footer = len(sizes).to_bytes(4, "little") + b"\0" + _MAGIC_FOOTER.to_bytes(4, "little")
    length = len(table) + len(footer)
    return _MAGIC_HEADER.to_bytes(4, "little") + length.to_bytes(4, "little") + table + footer


def _damaged(url: str, found: str) -> SourceError:
    return SourceError(f"{url}: the seek table at its end is damaged: found {found}; write the file again")
