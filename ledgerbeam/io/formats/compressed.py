"""Compressed shards that can be read by position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.lazy import np
from ledgerbeam._base.names import INDEX_ENDING
from ledgerbeam.errors import UsageError
from ledgerbeam.io.compression.zstd_frames import FRAME, LEVEL, LIBRARY, check_frames, seekable_zstd
from ledgerbeam.io.formats.format import ShardEncoder, ShardFile

ZSTD_ENDING = ".zst"
"""Suffix of the names of compressed files."""


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
        """Encode records as the files of a shard; see `ShardEncoder`.

        Raises:
            UsageError: The version of the library differs from the version that created this object.
        """
        if self.library != LIBRARY:
            raise UsageError(
                f"zstd: expected version {self.library} of the library, as where the job was started, found {LIBRARY}, "
                "which may write other bytes; install the same version of zstandard on all workers"
            )
        return list(self._compressed(self.encoder.encode(records)))

    def _compressed(self, files: list[ShardFile]) -> Iterator[ShardFile]:
        indexes = {file.ending: file.data for file in files if file.ending.endswith(INDEX_ENDING)}
        for file in files:
            ending = file.ending.removesuffix(INDEX_ENDING) + ZSTD_ENDING
            if file.ending in indexes:
                yield file._replace(ending=f"{ending}{INDEX_ENDING}")
                continue
            ends = np.frombuffer(indexes.get(f"{file.ending}{INDEX_ENDING}", b""), "<u8")
            data = seekable_zstd(file.data, ends, level=self.level, frame=self.frame)
            yield file._replace(ending=ending, data=data)
