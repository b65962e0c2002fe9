"""Sources of the headers of a tar archive: memory, or a store, read in the cheapest way.

If members are large, each header is a short read. If they are small, reading everything in large blocks costs less than
a system call or a request for each header.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Protocol

from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_local
from ledgerbeam.io.tar.headers import BLOCK
from ledgerbeam.io.tar.plain_headers import PEEK, PlainHeaderScan, Run

_FIRST_REQUEST = 1024 * 1024
SMALL = PEEK - 2 * BLOCK
"""Payloads of at most this many bytes can be read together with the next header in one short read."""

_MIXED = 0.25
# The largest mean distance of headers for which blocks are read, and the size of a block.
_LOCAL = (8 * 1024, 256 * 1024)
_REMOTE = (4 * 1024 * 1024, 8 * 1024 * 1024)
_REQUESTS_AHEAD = 4


class HeaderSource(Protocol):
    """The bytes of an archive for a walk over its headers."""

    size: int

    def read(self, position: int, size: int) -> bytes:
        """Read bytes near the position of the walk; fewer at the end of the archive."""

    def headers(self, position: int) -> Run:
        """Scan the plain headers from `position` on, as many as can be read cheaply."""

    def moved(self, distance: float, small: float) -> None:
        """Let the source choose how to read from here on.

        Args:
            distance: Mean distance of the last headers in bytes.
            small: Share of them with at most `SMALL` bytes of payload.
        """


class MemoryHeaders:
    """An archive in memory.

    Args:
        data: Its bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data
        self._scan = PlainHeaderScan()

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes."""
        return self._data[position : position + size]

    def headers(self, position: int) -> Run:
        """Scan the plain headers of the bytes."""
        return self._scan.scan_bytes_headers(self._data, position)

    def moved(self, distance: float, small: float) -> None:
        """Do nothing: the bytes are in memory."""


class _StoredHeaders:
    """An archive in a store.

    Args:
        reader: Its reader.
        descriptor: The open file if it is local.
    """

    def __init__(self, reader: RangeReader, descriptor: int | None) -> None:
        self.size = reader.size
        self._reader = reader
        self._descriptor = descriptor
        self._scan = PlainHeaderScan()
        self._peek = BLOCK
        self._near, self._step = _LOCAL
        self._ahead = 0
        self._blocks: _Blocks | None = None
        if descriptor is None:
            (self._near, self._step), self._ahead = _REMOTE, _REQUESTS_AHEAD
            self._blocks = _Blocks(reader, _FIRST_REQUEST, 0)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes from the current block if it contains them, else from the store."""
        if self._blocks is not None:
            data = self._blocks.take(position, size)
            if data is not None:
                return data
        # A damaged header can contain any size.
        stop = min(position + size, self.size)
        if self._descriptor is not None:
            return os.pread(self._descriptor, max(0, stop - position), position)
        return self._reader.read(min(position, stop), stop)

    def headers(self, position: int) -> Run:
        """Scan the plain headers in the current block, or in the local file."""
        if self._blocks is not None:
            return self._scan.scan_bytes_headers(*self._blocks.at(position))
        if self._descriptor is None:
            return self._scan.scan_bytes_headers(b"", 0)
        return self._scan.scan_file_headers(self._descriptor, position, self._peek)

    def moved(self, distance: float, small: float) -> None:
        """Read in blocks while headers are close together, else each header by itself."""
        self._peek = PEEK if small > _MIXED else BLOCK
        if distance > self._near:
            self.close()
        elif self._blocks is None or self._blocks.step != self._step:
            self.close()
            self._blocks = _Blocks(self._reader, self._step, self._ahead)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._blocks is not None:
            self._blocks.close()
        self._blocks = None


class _Blocks:
    """A block of an archive that moves forward; the next blocks are read in advance."""

    def __init__(self, reader: RangeReader, step: int, ahead: int) -> None:
        self.step = step
        self._reader = reader
        self._ahead = ahead
        self._base, self._block = 0, b""
        self._coming: Generator[bytes] | None = None
        self._reach = 0  # from here on a new start costs less than reading up to it

    def take(self, position: int, size: int) -> bytes | None:
        """Return bytes if the block at `position` contains all of them, else None."""
        block, offset = self.at(position)
        return block[offset : offset + size] if offset + size <= len(block) else None

    def close(self) -> None:
        if self._coming is not None:
            self._coming.close()

    def at(self, position: int) -> tuple[bytes, int]:
        """Return the block that contains `position`, and its offset there; no bytes past the end."""
        while not self._base <= position < self._base + len(self._block):
            if self._coming is None or not self._base <= position < self._reach:
                self.close()
                self._coming = self._reader.blocks(self.step, self._ahead, start=position)
                self._base, self._block = position, b""
            self._base += len(self._block)
            self._block = next(self._coming, b"")
            self._reach = self._base + (self._ahead + 2) * self.step
            if not self._block:
                self._base = position
                break
        return self._block, position - self._base


@contextlib.contextmanager
def open_headers(url: str, options: Options | None, listed: FileInfo | None = None) -> Iterator[HeaderSource]:
    """Open an archive for a walk.

    Args:
        url: The archive.
        options: Storage options.
        listed: The listed properties of the source; see `RangeReader`.

    Yields:
        The source of its headers.

    Raises:
        ChangedSourceError: It changed since it was listed.
        SourceNotFoundError: There is no such source; also StorageError.
    """
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(RangeReader(url, options, listed=listed))
        path = reader.local_path
        descriptor = None if path is None else stack.enter_context(open_local(path, listed))
        source = _StoredHeaders(reader, descriptor)
        stack.callback(source.close)
        yield source
