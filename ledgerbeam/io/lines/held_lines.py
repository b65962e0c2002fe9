"""Lines that are looked at where they lie: their bytes are in memory once, however often the lines are passed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io.index.newlines import line_ends

_AT_ONCE = 256 * 1024
"""Bytes that are searched for newlines together: they stay in the cache."""

_BLANK = b" \t\r\n"


class HeldLines(Sequence[bytes]):
    """Some lines of bytes in memory, without their newlines. Picklable.

    Args:
        data: The bytes.
        starts: Where each line begins in them; before their end.
        stops: Where each ends.
    """

    def __init__(self, data: bytes, starts: NDArray[np.integer[Any]], stops: NDArray[np.integer[Any]]) -> None:
        self.data = data
        # Of these an item is a Python integer, at a fifth of the time of one of NumPy.
        self._starts, self._stops = (array("q", ends.astype(np.int64).tobytes()) for ends in (starts, stops))

    @classmethod
    def split(cls, data: bytes) -> Self:
        """Return all lines of bytes; the last one needs no newline."""
        view = memoryview(data)
        ends = [line_ends(view[begin : begin + _AT_ONCE], begin) for begin in range(0, len(view), _AT_ONCE)]
        if data and data[-1:] != b"\n":
            ends.append(np.array([len(data) + 1], np.uint64))
        after = np.concatenate([np.zeros(1, np.uint64), *ends])
        return cls(data, after[:-1], after[1:] - np.uint64(1))

    @classmethod
    def joined(cls, lines: Iterable[bytes]) -> Self:
        """Return lines that lie elsewhere."""
        return cls.split(b"".join([line + b"\n" for line in lines]))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, item: int) -> bytes:  # type: ignore[override]
        return self.data[self._starts[item] : self._stops[item]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[start:stop] for start, stop in zip(self._starts, self._stops, strict=True))

    def at(self, places: Any) -> Self:
        """Return some of the lines: those at places, or those of which a mask says so."""
        return type(self)(self.data, *(np.frombuffer(ends, np.int64)[places] for ends in (self._starts, self._stops)))

    def start(self, place: int) -> int:
        """Return where a line begins in the bytes."""
        return self._starts[place]

    def first_bytes(self) -> NDArray[np.uint8]:
        """Return the first byte of each line; of an empty one its newline."""
        found: NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)[np.frombuffer(self._starts, np.int64)]
        return found

    def blank(self) -> NDArray[np.bool_]:
        """Return for each line whether nothing but spaces is in it."""
        found = np.isin(self.first_bytes(), np.frombuffer(_BLANK, np.uint8))
        for place in np.flatnonzero(found).tolist():
            found[place] = not self[place].strip(_BLANK)
        return found
