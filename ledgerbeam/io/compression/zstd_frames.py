"""Writing Zstandard files that can be read by position: frames of whole records, and the standard table of them.

The file is one that every Zstandard program decompresses to the plain bytes. Each frame has its size and a checksum.
The bytes are a function of the plain bytes, where their records end, level, frame size and the version of the library
(`LIBRARY`): another version may compress otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

from ledgerbeam.errors import UsageError
from ledgerbeam.io.compression.zstd_table import zstd_table_bytes

__all__ = ["FRAME", "LEVEL", "LIBRARY", "MOST_FRAME", "check_frames", "parse_level", "seekable_zstd"]

FRAME = 16 * 1024
"""Plain bytes of a frame: small enough that a record far from the one before it is read in some 20 microseconds."""

LEVEL = 3
"""How hard the library tries by default, of 1 to 22."""

MOST_FRAME = 8 * 1024 * 1024
"""Plain bytes of a frame, at most: what a reader holds."""

LIBRARY = ".".join(map(str, zstandard.ZSTD_VERSION))
"""The version of the Zstandard library."""


def check_frames(level: int, frame: int) -> None:
    """Raise UsageError unless a file can be written so."""
    if not 1 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise UsageError(f"zstd: expected a level from 1 to {zstandard.MAX_COMPRESSION_LEVEL}, found {level}")
    if not 1 <= frame <= MOST_FRAME:
        raise UsageError(f"zstd: expected frames of 1 to {MOST_FRAME:,} plain bytes, found {frame:,}")


def parse_level(text: str) -> int:
    """Read `zstd` or `zstd:LEVEL`, and return the level.

    Raises:
        UsageError: It is neither.
    """
    name, colon, level = text.partition(":")
    if name != "zstd" or (colon and not level.isdecimal()):
        raise UsageError(f"expected the compression zstd or zstd:LEVEL, found {text!r}")
    return int(level) if colon else LEVEL


def seekable_zstd(data: bytes, ends: NDArray[np.uint64], *, level: int = LEVEL, frame: int = FRAME) -> bytes:
    """Compress data as a file in the Zstandard seekable format.

    Args:
        data: The plain bytes.
        ends: Where their records begin and end, such as an index: frames are cut there. A record that has more bytes
            than a frame has frames of its own.
        level: How hard to try, 1 to 22.
        frame: Plain bytes of a frame, unless one record has more.

    Raises:
        UsageError: There is no such level or size.
    """
    check_frames(level, frame)
    # A new one for each file: what it has compressed before cannot shape the bytes.
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    view = memoryview(data)
    compress = compressor.compress
    parts: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    for start, stop in _frames(ends, len(data), frame):
        part = compress(view[start:stop])
        parts.append(part)
        sizes.append((len(part), stop - start))
    parts.append(zstd_table_bytes(sizes))
    return b"".join(parts)


def _frames(ends: NDArray[np.uint64], size: int, frame: int) -> Iterator[tuple[int, int]]:
    """Yield where frames begin and end: as many whole records as fit; else pieces of one record."""
    places = np.append(ends[ends < size].astype(np.int64), size)
    start = 0
    while start < size:
        fit = int(places[places.searchsorted(start + frame, "right") - 1])
        if fit <= start:  # not even the next record
            fit = min(int(places[places.searchsorted(start, "right")]), start + MOST_FRAME)
        yield start, fit
        start = fit
