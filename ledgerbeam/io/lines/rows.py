"""Rows of bytes in memory, such as lines, keys and records: parts of a few large buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import getitem
from typing import Any, Self

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io import native
from ledgerbeam.io.index.newlines import line_ends

_BLANK = b" \t\r\n"
_AT_ONCE = 256 * 1024  # bytes that are searched for newlines together, so that they stay in the cache
_MOST_PADDED = 64  # bytes of the longest row up to which rows of several lengths are sorted as an array
_SHIFT = 40  # bits of the offset in a buffer; above it is the number of the buffer
_OFFSET = (1 << _SHIFT) - 1


class ByteRows(Sequence[bytes]):
    """Rows of bytes in memory. Selections and concatenations share the buffers. Picklable.

    Attributes:
        buffers: The bytes that contain all rows, in any order.
        starts: Place of each row: `number of its buffer << 40 | offset in the buffer`.
        lengths: Bytes of each row.
    """

    def __init__(self, buffers: tuple[bytes, ...], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.buffers = buffers
        self.starts, self.lengths = starts, lengths

    @classmethod
    def lines(cls, data: bytes) -> Self:
        """Return all lines of bytes, without their newlines. The last line may lack its newline."""
        view = memoryview(data)
        ends = [line_ends(view[begin : begin + _AT_ONCE], begin) for begin in range(0, len(view), _AT_ONCE)]
        if data and data[-1:] != b"\n":
            ends.append(np.array([len(data) + 1], np.uint64))
        return cls.consecutive(data, np.concatenate([np.zeros(0, np.uint64), *ends]).astype(np.int64), gap=1)

    @classmethod
    def consecutive(cls, data: bytes, ends: NDArray[np.int64], *, first: int = 0, gap: int = 0) -> Self:
        """Return adjacent rows, the first from byte `first` on. `gap` bytes before each end are no part of a row."""
        starts = np.concatenate([np.array([first], np.int64), ends[:-1]])[: len(ends)]
        return cls((data,), starts, ends - starts - gap)

    @classmethod
    def of(cls, rows: Iterable[bytes]) -> ByteRows:
        """Return rows as one object. `ByteRows` are returned unchanged, others are copied."""
        if isinstance(rows, ByteRows):
            return rows
        each = list(rows)
        return cls.consecutive(b"".join(each), np.cumsum(np.fromiter(map(len, each), np.int64, len(each))))

    @classmethod
    def concatenated(cls, parts: Sequence[ByteRows]) -> ByteRows:
        """Return the rows of several objects as one."""
        if len(parts) == 1:
            return parts[0]
        buffers = {id(data): data for part in parts for data in part.buffers}  # parts may share them
        numbers = {known: number for number, known in enumerate(buffers)}
        starts = [np.zeros(0, np.int64)]
        for part in parts:
            places = np.array([numbers[id(data)] for data in part.buffers], np.int64)
            starts.append(places[part.starts >> _SHIFT] << _SHIFT | part.starts & _OFFSET)
        lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])
        return cls(tuple(buffers.values()), np.concatenate(starts), lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            return self.at(item)
        start, length = int(self.starts[item]), int(self.lengths[item])
        offset = start & _OFFSET
        return self.buffers[start >> _SHIFT][offset : offset + length]

    def __iter__(self) -> Iterator[bytes]:
        firsts = self.starts & _OFFSET
        slices = map(slice, firsts.tolist(), (firsts + self.lengths).tolist())
        if len(self.buffers) == 1:  # the loop runs in C
            return map(self.buffers[0].__getitem__, slices)
        buffers = map(self.buffers.__getitem__, (self.starts >> _SHIFT).tolist())
        cut: Any = getitem  # its types name no buffers
        return map(cut, buffers, slices)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same rows."""
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def at(self, places: Any) -> Self:
        """Return the rows at some positions, or the rows of a slice or a mask."""
        return type(self)(self.buffers, self.starts[places], self.lengths[places])

    def joined(self, before: bytes = b"", after: bytes = b"") -> bytes:
        """Return all rows as one bytes object, each with `before` and `after` around it."""
        if native.compiled is not None:
            starts, lengths = np.ascontiguousarray(self.starts), np.ascontiguousarray(self.lengths)
            return native.compiled.join_rows(self.buffers, starts, lengths, before, after)
        return b"".join([part for row in self for part in (before, row, after)])

    def first_bytes(self) -> NDArray[np.uint8]:
        """Return the first byte of each row; a newline for an empty row."""
        found = np.full(len(self), ord("\n"), np.uint8)
        some = self.lengths > 0
        firsts = type(self)(self.buffers, self.starts[some], np.ones(int(np.count_nonzero(some)), np.int64))
        found[some] = np.frombuffer(firsts.joined(), np.uint8)
        return found

    def are(self, row: bytes) -> NDArray[np.bool_]:
        """Return for each row whether it equals `row`."""
        found: NDArray[np.bool_] = self.lengths == len(row)
        for place in np.flatnonzero(found).tolist() if row else ():
            found[place] = self[place] == row
        return found

    def blank(self) -> NDArray[np.bool_]:
        """Return for each line whether it has only white space."""
        found = np.isin(self.first_bytes(), np.frombuffer(_BLANK, np.uint8))
        for place in np.flatnonzero(found).tolist():
            found[place] = not self[place].strip(_BLANK)
        return found

    def order(self) -> NDArray[np.int64]:
        """Return the positions of the rows in sorted order. Equal rows keep their order."""
        most = int(self.lengths.max(initial=0))
        if most == 0:
            return np.arange(len(self))
        if int(self.lengths.min()) == most:
            return np.frombuffer(self.joined(), f"S{most}").argsort(kind="stable")
        if most > _MOST_PADDED:
            return np.array(sorted(range(len(self)), key=list(self).__getitem__), np.int64)
        # NumPy ignores zeros at the end. Of two rows that are equal to it, the shorter one is less.
        by_length = self.lengths.argsort(kind="stable")
        return by_length[np.array(list(self.at(by_length)), f"S{most}").argsort(kind="stable")]
