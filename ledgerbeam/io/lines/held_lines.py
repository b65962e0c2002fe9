"""Lines as spans of bytes in memory. The bytes are in memory once, also after several selections."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io.index.newlines import line_ends

_AT_ONCE = 256 * 1024
"""Bytes that are searched for newlines together, so that they stay in the cache."""

_BLANK = b" \t\r\n"


class HeldLines(Sequence[bytes]):
    """Some lines of bytes in memory, without their newlines. Picklable.

    Args:
        data: The bytes.
        starts: Offset of each line; less than the size of the bytes.
        stops: End of each line.
    """

    def __init__(self, data: bytes, starts: NDArray[np.integer[Any]], stops: NDArray[np.integer[Any]]) -> None:
        self.data = data
        # Items of an `array` are Python integers, which takes a fifth of the time of NumPy's.
        self._starts, self._stops = (array("q", ends.astype(np.int64).tobytes()) for ends in (starts, stops))

    @classmethod
    def split(cls, data: bytes) -> Self:
        """Return all lines of bytes. The last line may lack its newline."""
        view = memoryview(data)
        ends = [line_ends(view[begin : begin + _AT_ONCE], begin) for begin in range(0, len(view), _AT_ONCE)]
        if data and data[-1:] != b"\n":
            ends.append(np.array([len(data) + 1], np.uint64))
        after = np.concatenate([np.zeros(1, np.uint64), *ends])
        return cls(data, after[:-1], after[1:] - np.uint64(1))

    @classmethod
    def joined(cls, lines: Iterable[bytes]) -> Self:
        """Return lines from other places as one object."""
        return cls.split(b"".join([line + b"\n" for line in lines]))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, item: int) -> bytes:  # type: ignore[override]
        return self.data[self._starts[item] : self._stops[item]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[start:stop] for start, stop in zip(self._starts, self._stops, strict=True))

    def at(self, places: Any) -> Self:
        """Return the lines at some positions, or the lines of a mask."""
        return type(self)(self.data, *(np.frombuffer(ends, np.int64)[places] for ends in (self._starts, self._stops)))

    def start(self, place: int) -> int:
        """Return the offset of a line."""
        return self._starts[place]

    def first_bytes(self) -> NDArray[np.uint8]:
        """Return the first byte of each line; for an empty line its newline."""
        found: NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)[np.frombuffer(self._starts, np.int64)]
        return found

    def blank(self) -> NDArray[np.bool_]:
        """Return for each line whether it has only white space."""
        found = np.isin(self.first_bytes(), np.frombuffer(_BLANK, np.uint8))
        for place in np.flatnonzero(found).tolist():
            found[place] = not self[place].strip(_BLANK)
        return found
