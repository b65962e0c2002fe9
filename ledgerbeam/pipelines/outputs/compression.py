"""Compression of outputs."""

from __future__ import annotations

from dataclasses import dataclass

from ledgerbeam.errors import NotIndexableError, UsageError
from ledgerbeam.io import SeekableZstd, ShardEncoder
from ledgerbeam.io.formats.compressed import FRAME, LIBRARY, ZSTD_ENDING, check_frames, parse_level
from ledgerbeam.io.formats.registry import format_named, formats, recognize
from ledgerbeam.ledger.model.job import Json


@dataclass(frozen=True)
class OutputCompression:
    """Zstandard compression of outputs, which can still be read by position.

    Attributes:
        level: Compression level, see `SeekableZstd`.
        frame: Frame size, see `SeekableZstd`.
    """

    level: int
    frame: int

    def encoder(self, encoder: str | ShardEncoder) -> ShardEncoder:
        """Return an encoder that compresses the output of an encoder, or of the format with this name."""
        return SeekableZstd(format_named(encoder) if isinstance(encoder, str) else encoder, self.level, self.frame)

    def parameters(self) -> dict[str, Json]:
        """Return the parameters that determine the bytes of outputs. Library versions may compress differently."""
        return {"compress": f"zstd:{self.level}", "frame": self.frame, "version of zstd": LIBRARY}


def parse_compression(compress: str | None, frame: int | None, to: str) -> OutputCompression | None:
    """Parse the options of output compression.

    Args:
        compress: Value of ``--compress``; None for no compression.
        frame: Value of ``--frame``.
        to: Value of ``--to``.

    Raises:
        UsageError: The compression is unknown, or the compressed files could not be read.
    """
    if compress is None:
        if frame is not None:
            raise UsageError(f"--frame {frame}: only for compressed outputs; add --compress zstd")
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
    "parquet": "which compresses its columns",
    "arrow": "which is read by its footer",
    "shar": "whose shards lhotse reads by position in plain files",
    "megatron": "which Megatron reads by position in plain files",
    "webdataset": "which wids reads by position in plain tars; for tars alone: --to tar",
    "energon": "which Energon reads by position in plain tars; for tars alone: --to tar",
    "lit": "which LIT reads by position in plain tars; for tars alone: --to tar",
}

_OTHER = "which cannot be read compressed"
