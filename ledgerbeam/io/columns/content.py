"""The bytes of a columnar file for pyarrow: ranges that were fetched in advance, and other reads by position."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ledgerbeam.errors import LedgerbeamError, SourceError

_NEXT = 64  # closer ranges are merged
_MOST_AT_ONCE = 16 * 2**20  # unless a single range is larger
_GAP = 64 * 1024
_MOST_WASTE = 0.1
"""Largest share of additional bytes that may be read to save requests."""


def first_read(size: int) -> int:
    """Return the number of bytes to read first at the end of a file: more than most footers, but a small part of it."""
    return min(size, max(8 * 1024, min(64 * 1024, size // 100)))


class Content(Protocol):
    """Positional reads of a source; `RangeReader` is one."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, start: int, stop: int) -> bytes:
        """Read exactly the bytes `[start, stop)`."""

    def read_many(self, starts: Sequence[int], stops: Sequence[int], *, gap: int | None = None) -> list[bytes]:
        """Read many ranges; neighbours share a request."""

    def close(self) -> None:
        """Close open files. The next read opens them again."""


class HeldBytes:
    """A whole source in memory.

    Args:
        data: Its content.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`."""
        return self._data[start:stop]

    def read_many(self, starts: Sequence[int], stops: Sequence[int], *, gap: int | None = None) -> list[bytes]:
        """Return the bytes of many ranges."""
        del gap
        return [self._data[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def close(self) -> None:
        """Nothing is open."""


class PlacedFile(io.RawIOBase):
    """A file object over a source. Fetched ranges are served from memory; every other read is a read of the source.

    Args:
        content: The source.
        lends: Whether parts of memory are returned as views instead of copies, for a reader that copies the data that
            it decodes. A view keeps all data in memory that was fetched with it.
    """

    def __init__(self, content: Content, *, lends: bool = False) -> None:
        super().__init__()
        self._content = content
        self._lends = lends
        self._size = content.size
        self._place = 0
        self._starts: list[int] = []
        self._blocks: list[bytes] = []

    def hold(self, start: int, data: bytes) -> None:
        """Serve the bytes from `start` on from memory."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._blocks.insert(at, data)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges in few requests, and hold them.

        Args:
            ranges: Start and end of each.
        """
        wanted: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if start >= stop:
                continue
            first, end = wanted[-1] if wanted else (0, -_NEXT)
            if not wanted or start > end + _NEXT:
                wanted.append((start, stop))
            elif max(stop, end) - first <= _MOST_AT_ONCE:
                wanted[-1] = first, max(stop, end)
            else:
                wanted[-1] = first, max(start, end)
                wanted.append((max(start, end), max(stop, end)))
        if not wanted:
            return
        most = int(sum(stop - start for start, stop in wanted) * _MOST_WASTE) // len(wanted)
        starts, stops = [start for start, _ in wanted], [stop for _, stop in wanted]
        blocks = self._content.read_many(starts, stops, gap=min(_GAP, most))
        for start, data in zip(starts, blocks, strict=True):
            self.hold(start, data)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position and return it."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def size(self) -> int:
        """Return the length of the file."""
        return self._size

    def read(self, size: int = -1) -> bytes | memoryview[int]:
        """Read `size` bytes, fewer at the end of the file. Bytes in memory are returned as a view if `lends` is set."""
        start = self._place
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if start >= stop:
            return b""
        self._place = stop
        return self.at(start, stop)

    def at(self, start: int, stop: int) -> bytes | memoryview[int]:
        """Return the bytes between two positions, from memory if possible."""
        held = self._held(start, stop)
        return self._content.read(start, stop) if held is None else held

    def _held(self, start: int, stop: int) -> bytes | memoryview[int] | None:
        """Return bytes from memory; None if some of them are not in memory."""
        parts: list[bytes | memoryview[int]] = []
        place, at = start, bisect_right(self._starts, start) - 1
        while 0 <= at < len(self._starts) and self._starts[at] <= place < stop:
            first, block = self._starts[at], self._blocks[at]
            if place >= first + len(block):
                break
            whole = place == first and stop >= first + len(block)
            source = memoryview(block) if self._lends else block
            parts.append(block if whole else source[place - first : stop - first])
            place += len(parts[-1])
            at += 1
        return None if place < stop else parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def damage_of(url: str, what: str) -> Iterator[None]:
    """Translate every exception of pyarrow to an error of the source.

    Args:
        url: The source.
        what: The part that was read, for the message.

    Raises:
        SourceError: For every exception that is not a LedgerbeamError.
    """
    try:
        yield
    except LedgerbeamError:
        raise
    except MemoryError as error:
        raise SourceError(
            f"{url}: {what} cannot be read: {_words(error)}; expected data that fits into memory. Write the file again "
            "with smaller row groups, or free memory"
        ) from error
    except Exception as error:
        raise SourceError(
            f"{url}: {what} cannot be read: {_words(error)}; if the file is damaged, write it again, or leave it out"
        ) from error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}".removesuffix(".")
