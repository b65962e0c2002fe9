"""How many bytes compressed sources hold, estimated from the beginning of a few of them."""

from __future__ import annotations

from contextlib import closing, suppress

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.compression.streams import decompressed_pieces
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader

_MEASURED = 3
"""Sources of each compression that are looked at."""

_BYTES = 1 << 18
"""Bytes at the beginning of a source that are read."""


class Expansion:
    """The ratio between decompressed and compressed bytes, for each compression that occurs.

    Args:
        options: Storage options of the sources.
    """

    def __init__(self, options: Options | None) -> None:
        self._options = options
        self._found: dict[str, list[float]] = {}

    def held_bytes(self, url: str, size: int) -> int:
        """Estimate the decompressed size of a source; it is `size` if the source is not compressed.

        Args:
            url: The source.
            size: Its size in bytes, as it is stored.
        """
        compression = split_compression(url).compression
        if compression is None or not size:
            return size
        found = self._found.setdefault(compression.name, [])
        if len(found) < _MEASURED:
            with suppress(LedgerbeamError):  # the task that reads it reports the error
                found.append(self._measure(url, compression.name, size))
        return size if not found else max(size, round(size * sum(found) / len(found)))

    def _measure(self, url: str, name: str, size: int) -> float:
        read = min(size, _BYTES)
        with closing(RangeReader(url, self._options)) as reader:
            data = reader.read(0, read)
        made = 0
        with suppress(LedgerbeamError):  # the data is cut off here
            for block in decompressed_pieces(iter([data]), name, url):
                made += len(block)
        return made / read
