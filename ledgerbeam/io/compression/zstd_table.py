"""Where decompression can begin in a compressed file: the common table, and that of the Zstandard seekable format.

The Zstandard seekable format is a file of many frames and, as a last one that decompressors skip, a table of their
sizes (`contrib/seekable_format/zstd_seekable_compression_format.md` of facebook/zstd): per frame two little-endian u32,
compressed and decompressed size, and with a flag a checksum; then the number of frames, the flags and a magic number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import NotIndexableError, SourceError
from ledgerbeam.io.compression.streams import REQUEST, decompressed_pieces
from ledgerbeam.io.storage.ranges import RangeReader

__all__ = ["SeekTable", "ZstdTable", "compressed_pieces", "load_zstd_table"]

_FOOTER = 9
_HEADER = 8
_MAGIC_FOOTER = 0x8F92EAB1
_MAGIC_HEADER = 0x184D2A5E
_CHECKSUMS = 0x80
_RESERVED = 0x7C


class SeekTable(Protocol):
    """The segments of a compressed file: each can be decompressed without those before it."""

    starts: NDArray[np.int64]
    """Where each begins in the decompressed bytes, and the end of the last: increasing, from 0."""

    def blocks(self, number: int, source: RangeReader) -> Iterator[bytes]:
        """Decompress a segment, in blocks; perhaps into what follows it.

        Raises:
            SourceError: The data is cut off or damaged.
        """


def compressed_pieces(source: RangeReader, start: int, stop: int) -> Iterator[bytes]:
    """Read the compressed bytes `[start, stop)` in pieces of at most `REQUEST`."""
    for at in range(start, stop, REQUEST):
        yield source.read(at, min(at + REQUEST, stop))


class ZstdTable:
    """The frames of a file in the Zstandard seekable format: a segment is a frame.

    Args:
        starts: As in `SeekTable`.
        places: Where each frame begins in the file, and the end of the last.
    """

    def __init__(self, starts: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        self.starts = starts
        self._places = places

    def blocks(self, number: int, source: RangeReader) -> Iterator[bytes]:
        """Decompress a frame."""
        start, stop = int(self._places[number]), int(self._places[number + 1])
        pieces = compressed_pieces(source, start, stop)
        return decompressed_pieces(pieces, "zstd", source.url, at=start)


def load_zstd_table(source: RangeReader) -> ZstdTable:
    """Read the seek table at the end of a Zstandard file: two requests; 16 bytes of memory a frame.

    Raises:
        NotIndexableError: It has none.
        SourceError: It is damaged, or not that of this file.
    """
    size = source.size
    footer = source.read(max(0, size - _FOOTER), size)
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
    table = source.read(size - length, size - _FOOTER)
    if int.from_bytes(table[:4], "little") != _MAGIC_HEADER or int.from_bytes(table[4:8], "little") != length - _HEADER:
        raise _damaged(source.url, f"no frame that holds it at byte {size - length:,}")
    sizes = np.frombuffer(table, "<u4", offset=_HEADER).reshape(count, entry // 4)[:, :2].astype(np.int64)
    ends = np.cumsum(sizes, axis=0)
    if count and int(ends[-1, 0]) != size - length:
        found = f"frames of {int(ends[-1, 0]):,} bytes before its beginning at byte {size - length:,}"
        raise _damaged(source.url, found)
    kept = np.flatnonzero(sizes[:, 1])  # an empty frame holds nothing to find
    begins = ends - sizes
    stops = ends[kept[-1:]]
    return ZstdTable(
        np.concatenate([begins[kept, 1], stops[:, 1] if len(kept) else np.zeros(1, np.int64)]),
        np.concatenate([begins[kept, 0], stops[:, 0] if len(kept) else np.zeros(1, np.int64)]),
    )


def _damaged(url: str, found: str) -> SourceError:
    return SourceError(f"{url}: the seek table at its end is damaged: found {found}; write the file again")
