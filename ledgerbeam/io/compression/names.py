"""The compression of a file, from its name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression format.

    Attributes:
        name: Its name in messages.
        command: The program that decompresses a file.
        seekable: Whether files can be read by position, with seek points or a seek table.
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
        url: The name of the decompressed file.
        compression: The compression; None if the file is not compressed.
    """

    url: str
    compression: Compression | None


@lru_cache(maxsize=256)  # each stage of the work on a source asks
def split_compression(url: str) -> PlainName:
    """Split a name into the name of the decompressed file and the compression, from one of the last two suffixes.

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
