"""Ends of records, found block by block, with the position of a damaged record in errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError, LedgerbeamError, RecordError
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import line_ends

FindEnds: TypeAlias = "Callable[[Iterable[bytes]], Iterator[Sequence[int] | NDArray[Any]]]"
"""Finds the ends of records in consecutive blocks; see `RecordFormat.find_ends`."""

_MOST_KEPT = 1 << 26
"""Greatest number of bytes that are kept to find a damaged record, besides the last block."""


def find_line_ends(blocks: Iterable[bytes]) -> Iterator[NDArray[Any]]:
    """Find the ends of lines, block by block; see `RecordFormat.find_ends`."""
    size = 0
    for block in blocks:
        yield line_ends(block, size)
        size += len(block)


def offsets_of_ends(
    find_ends: FindEnds, blocks: Iterable[bytes], url: str, *, ends_with_source: bool, most: int | None = None
) -> Offsets:
    """Return the offsets of the records of a source: 0 and the results of `record_ends`."""
    ends = record_ends(find_ends, blocks, url, ends_with_source=ends_with_source, most=most)
    return np.concatenate([np.zeros(1, np.uint64), *ends])


def record_ends(
    find_ends: FindEnds, blocks: Iterable[bytes], url: str, *, ends_with_source: bool, most: int | None = None
) -> Iterator[Offsets]:
    """Find the ends of the records of a source, block by block.

    Args:
        find_ends: As in `RecordFormat`.
        blocks: The whole source.
        url: The source, for messages.
        ends_with_source: As in `RecordFormat`.
        most: Greatest size of a record of a compressed source, in bytes; None if it is not compressed.

    Yields:
        The ends, in order. Before an error, the ends of all records before the damaged one.

    Raises:
        ArchiveError: The source is cut off in a record.
        RecordError: A record has more bytes than `most`, or the bytes cannot be records.
    """
    found = _Progress(blocks, url, most)
    try:
        for ends in find_ends(found.blocks()):
            if len(ends):
                yield found.add(np.asarray(ends, np.uint64))
    except LedgerbeamError:
        raise
    except ValueError as error:
        kept = found.kept()
        if missed := _ends_before_damage(find_ends, kept or b""):
            yield found.add(np.array(missed, np.uint64) + np.uint64(found.last))
        place = found.place() if kept is not None else f"{found.place()}, or one after it"
        raise RecordError(f"{url}: {place}: {error}; write the file again") from error
    found.require_size()
    if found.size > found.last:
        if not ends_with_source:
            raise ArchiveError(
                f"{url}: {found.place()}, is cut off: expected its end, found the end of the source at byte "
                f"{found.size}; write the file again"
            )
        yield np.array([found.size], np.uint64)


class _Progress:
    """Number and position of the current record, and the bytes from its start on.

    Attributes:
        records: Number of ends found.
        last: The last end.
        size: Number of bytes read.
    """

    def __init__(self, blocks: Iterable[bytes], url: str, most: int | None) -> None:
        self.records = self.last = self.size = 0
        self._blocks, self._url, self._most = blocks, url, most
        self._kept: deque[bytes] = deque()
        self._begin = 0  # offset of the kept bytes

    def blocks(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._kept.append(block)
            self.size += len(block)
            while self._kept and (
                self._begin + len(self._kept[0]) <= self.last or self.size - self._begin > _MOST_KEPT + len(block)
            ):
                self._begin += len(self._kept.popleft())
            yield block
            self.require_size()

    def add(self, ends: Offsets) -> Offsets:
        if self._most is not None:
            require_size(np.concatenate([np.array([self.last], np.uint64), ends]), self._url, self.records, self._most)
        self.records += len(ends)
        self.last = int(ends[-1])
        return ends

    def require_size(self) -> None:
        """Raise RecordError if there are too many bytes after the last end for a record."""
        if self._most is not None and self.size - self.last > self._most:
            raise _too_long(self._url, self.records, self.last, self.size - self.last, self._most)

    def kept(self) -> bytes | None:
        """Return all bytes after the last end; None if there were too many to keep."""
        return b"".join(self._kept)[self.last - self._begin :] if self._begin <= self.last else None

    def place(self) -> str:
        content = "" if self._most is None else " of the decompressed data"
        return f"record {self.records}, which starts at byte {self.last}{content}"


def _ends_before_damage(find_ends: FindEnds, data: bytes) -> list[int]:
    """Return the ends of the records before the damaged one.

    When `find_ends` raises, the ends that it had found in the last block are lost. So it runs again over prefixes of
    the bytes, up to the longest one for which it does not raise.

    Args:
        find_ends: As in `RecordFormat`; it raises ValueError for the whole of the bytes.
        data: The bytes, from the start of a record.
    """
    found: list[int] = []
    start, good, bad = 0, 0, len(data)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            ends = [start + int(end) for some in find_ends([data[start:middle]]) for end in some]
        except ValueError:
            bad = middle
            continue
        good = middle
        found += ends
        start = found[-1] if found else 0
    return found


def require_size(offsets: Offsets, url: str, record: int, most: int) -> None:
    """Raise RecordError if a record of a compressed source has more bytes than `most`.

    Args:
        offsets: Start of each record, and end of the last one.
        url: The source.
        record: Number of the first record.
        most: Greatest size of a record, in bytes.
    """
    lengths = np.diff(offsets)
    if len(lengths) and int(lengths.max()) > most:
        at = int(lengths.argmax())
        raise _too_long(url, record + at, int(offsets[at]), int(lengths[at]), most)


def _too_long(url: str, record: int, start: int, length: int, most: int) -> RecordError:
    return RecordError(
        f"{url}: record {record}, which starts at byte {start:,} of the decompressed data, has at least {length:,} "
        f"bytes; expected at most {most:,}. If it is not damaged, decompress the file"
    )
