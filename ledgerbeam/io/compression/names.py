"""What the name of a file says of its compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Compression", "PlainName", "split_compression"]


@dataclass(frozen=True, slots=True)
class Compression:
    """A way to compress a file.

    Attributes:
        name: What messages call it.
        command: The program that decompresses a file.
        seekable: Whether a file can be read by position, with seek points or a seek table.
    """

    name: str
    command: str
    seekable: bool = False


_GZIP = Compression("gzip", "gunzip", seekable=True)
_BY_SUFFIX = {
    ".gz": _GZIP,
    ".tgz": _GZIP,
    ".bz2": Compression("bzip2", "bunzip2"),
    ".xz": Compression("xz", "unxz"),
    ".zst": Compression("zstd", "unzstd", seekable=True),
    ".lz4": Compression("lz4", "unlz4"),
}


class PlainName(NamedTuple):
    """A name in two parts.

    Attributes:
        url: The name that the file would have decompressed.
        compression: How it is compressed; None if it is not.
    """

    url: str
    compression: Compression | None


def split_compression(url: str) -> PlainName:
    """Split a name into that of the decompressed file and the compression, which one of the last two suffixes says.

    `a.jsonl.gz` is `a.jsonl` in gzip, `a.tgz` is `a.tar` in gzip, `a.gz.jsonl` is `a.jsonl` in gzip.
    """
    folder, slash, base = url.rpartition("/")
    parts = base.split(".")
    suffixes = [f".{part.lower()}" for part in parts[1:]][-2:]
    compression = next((_BY_SUFFIX[suffix] for suffix in reversed(suffixes) if suffix in _BY_SUFFIX), None)
    if compression is None and ".tgz" not in url.lower():
        return PlainName(url, None)
    parts = ["tar" if part.lower() == "tgz" else part for part in parts]
    kept = [
        part for number, part in enumerate(parts) if number < len(parts) - 2 or f".{part.lower()}" not in _BY_SUFFIX
    ]
    return PlainName(f"{folder}{slash}{'.'.join(kept)}", compression)
