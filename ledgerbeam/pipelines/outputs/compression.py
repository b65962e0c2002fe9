"""How a job compresses what it writes."""

from __future__ import annotations

from dataclasses import dataclass

from ledgerbeam.errors import NotIndexableError, UsageError
from ledgerbeam.io import SeekableZstd, ShardEncoder
from ledgerbeam.io.compression.zstd_frames import FRAME, LIBRARY, check_frames, parse_level
from ledgerbeam.io.formats.compressed import ZSTD_ENDING
from ledgerbeam.io.formats.registry import format_named, formats, recognize
from ledgerbeam.ledger.model.job import Json


@dataclass(frozen=True)
class OutputCompression:
    """Zstandard, so that outputs can be read by position.

    Attributes:
        level: As of `SeekableZstd`.
        frame: As of `SeekableZstd`.
    """

    level: int
    frame: int

    def encoder(self, encoder: str | ShardEncoder) -> ShardEncoder:
        """Return what writes what an encoder, or the format of a name, does, compressed."""
        return SeekableZstd(format_named(encoder) if isinstance(encoder, str) else encoder, self.level, self.frame)

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs: the library is a part of it, since another version may compress otherwise."""
        return {"compress": f"zstd:{self.level}", "frame": self.frame, "version of zstd": LIBRARY}


def parse_compression(compress: str | None, frame: int | None, to: str) -> OutputCompression | None:
    """Read how outputs are to be compressed.

    Args:
        compress: The word of ``--compress``; None for not at all.
        frame: That of ``--frame``.
        to: That of ``--to``.

    Raises:
        UsageError: There is no such compression, or what is written so could not be read.
    """
    if compress is None:
        if frame is not None:
            raise UsageError(f"--frame {frame} is for compressed outputs: give --compress zstd too")
        return None
    if not _is_readable(to):
        raise UsageError(
            f"--compress {compress}: expected --to jsonl, tar or text, found --to {to}, {_WHY_NOT.get(to, _OTHER)}"
        )
    found = OutputCompression(parse_level(compress), FRAME if frame is None else frame)
    check_frames(found.level, found.frame)
    return found


def _is_readable(to: str) -> bool:
    """Return whether compressed files of a format can be read by position."""
    try:
        return to in formats() and bool(recognize(f"a{formats()[to].suffixes[0]}{ZSTD_ENDING}").by_position())
    except NotIndexableError:
        return False


_WHY_NOT = {
    "parquet": "which is compressed by itself",
    "arrow": "which is read by its footer",
    "shar": "whose indexed shards lhotse reads by their place in plain files",
    "megatron": "which Megatron reads by its place in plain files",
    "webdataset": "which wids reads by the place of its members in plain tars; for tars alone: --to tar",
    "energon": "which Energon reads by the place of its samples in plain tars; for tars alone: --to tar",
    "lit": "which LIT reads by the place of its members in plain tars; for tars alone: --to tar",
}

_OTHER = "which is not read compressed"
