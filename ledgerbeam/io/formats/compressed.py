"""Compressed shards that can be read by position: Zstandard frames of whole records, and the standard seek table.

Every Zstandard program can decompress the file. Each frame has its size and a checksum. The bytes depend only on the
plain bytes, the ends of their records, the level, the frame size and the version of the library (`LIBRARY`), since
another version may compress differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zstandard

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam._base.names import INDEX_ENDING
from ledgerbeam.errors import UsageError
from ledgerbeam.io.compression.content import zstd_table_bytes
from ledgerbeam.io.formats.format import ShardEncoder, ShardFile

ZSTD_ENDING = ".zst"  # suffix of the names of compressed files
FRAME = 16 * 1024  # plain bytes of a frame: small enough to read a random record in about 20 microseconds
LEVEL = 3  # default compression level, of 1 to 22
MOST_FRAME = 8 * 1024 * 1024  # largest number of plain bytes of a frame, since a reader holds a whole frame
LIBRARY = ".".join(map(str, zstandard.ZSTD_VERSION))  # the version of the Zstandard library


@dataclass(frozen=True)
class SeekableZstd:
    """Writes the shards of an encoder as Zstandard files in the seekable format.

    Every file except indexes is compressed. The frames of a file with an index have whole records. The index still has
    the offsets of the plain bytes: `a.jsonl` with `a.jsonl.idx` becomes `a.jsonl.zst` with `a.jsonl.zst.idx`.

    Attributes:
        encoder: Encodes the plain shards, such as `JsonlFormat()`.
        level: Compression level, 1 to 22.
        frame: Plain bytes of a frame, unless one record has more.
        library: Version of the Zstandard library, since other versions may write other bytes.

    Raises:
        UsageError: The level or the frame size is not valid.
    """

    encoder: ShardEncoder
    level: int = LEVEL
    frame: int = FRAME
    library: str = LIBRARY

    def __post_init__(self) -> None:
        check_frames(self.level, self.frame)

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode records as the files of a shard. UsageError if another version of the library created this object."""
        if self.library != LIBRARY:
            raise UsageError(
                f"zstd: expected version {self.library} of the library, as at the start of the job, found {LIBRARY}; "
                "another version may write other bytes, so install the same version of zstandard on all workers"
            )
        files, found = self.encoder.encode(records), list[ShardFile]()
        indexes = {file.ending: file.data for file in files if file.ending.endswith(INDEX_ENDING)}
        for file in files:
            ending, data = file.ending.removesuffix(INDEX_ENDING) + ZSTD_ENDING, file.data
            if file.ending in indexes:
                ending += INDEX_ENDING
            else:
                ends = np.frombuffer(indexes.get(f"{file.ending}{INDEX_ENDING}", b""), "<u8")
                data = seekable_zstd(data, ends, level=self.level, frame=self.frame)
            found.append(file._replace(ending=ending, data=data))
        return found


def seekable_zstd(data: bytes, ends: NDArray[np.uint64], *, level: int = LEVEL, frame: int = FRAME) -> bytes:
    """Compress data as a file in the Zstandard seekable format.

    `ends` are the offsets at which records start and end, such as an index. A frame has whole records, of at most
    `frame` plain bytes together. A larger record has its own frames.
    """
    check_frames(level, frame)
    # A new one for each file, so that earlier data cannot influence the bytes.
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
    """Yield the ranges of frames: as many whole records as fit, or pieces of one record."""
    places = np.append(ends[ends < size].astype(np.int64), size)
    start = 0
    while start < size:
        fit = int(places[places.searchsorted(start + frame, "right") - 1])
        if fit <= start:  # the next record does not fit
            fit = min(int(places[places.searchsorted(start, "right")]), start + MOST_FRAME)
        yield start, fit
        start = fit


def check_frames(level: int, frame: int) -> None:
    """Raise UsageError if the level or the frame size is not valid."""
    if not 1 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise UsageError(f"zstd: expected a level from 1 to {zstandard.MAX_COMPRESSION_LEVEL}, found {level}")
    if not 1 <= frame <= MOST_FRAME:
        raise UsageError(f"zstd: expected frames of 1 to {MOST_FRAME:,} plain bytes, found {frame:,}")


def parse_level(text: str) -> int:
    """Return the level of `zstd` or `zstd:LEVEL`; UsageError for any other text."""
    name, colon, level = text.partition(":")
    if name != "zstd" or (colon and not level.isdecimal()):
        raise UsageError(f"expected the compression zstd or zstd:LEVEL, found {text!r}")
    return int(level) if colon else LEVEL
