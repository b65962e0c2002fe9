"""Lines of JSON in memory: encoded when they are added and decoded when they are read, or as spans of bytes."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self, overload

import orjson

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import count_lines, line_ends
from ledgerbeam.io.json_values import MOST_DEEP, NanRule, dumps_wide, holds_null, json_form, loads, require_finite

LINE_BREAK = "holds a line break inside its JSON; expected one line. Return plain values instead of orjson.Fragment"
"""Error of a value whose JSON has several lines."""

_NEWLINE = b"\n"
_BLANK = b" \t\r\n"

_AT_ONCE = 256 * 1024  # bytes that are searched for newlines together, so that they stay in the cache


class JsonLines(Sequence[Any]):
    """The values of a JSONL file in memory. Each value is decoded at its access.

    Attributes:
        offsets: Offset of each line, and the end of the last one: `N + 1`, u64.
        nulled: Number of NaN and infinities, which JSON does not have, that were written as null.
    """

    def __init__(self, data: bytes, offsets: Offsets, nulled: int = 0) -> None:
        self.data = data
        self.offsets = offsets
        self.nulled = nulled

    def __repr__(self) -> str:
        return f"JsonLines({len(self)} lines, {len(self.data)} bytes)"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: int | slice) -> Any:
        found = range(len(self))[item]
        if isinstance(found, int):
            start, stop = self.offsets[found : found + 2].tolist()
            return loads(self.data[start:stop])
        return [self[number] for number in found]

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, JsonLines) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def lines(self) -> list[bytes]:
        """Return each line with its newline."""
        return [self.data[start:stop] for start, stop in pairwise(self.offsets.tolist())]


class JsonLinesBuilder:
    """Encodes values as lines of JSON, with keys in the order of the mapping. An added value may be changed later."""

    def __init__(self, nan: NanRule = "refuse") -> None:
        self._nan: NanRule = nan
        self._nulled = 0
        self._data = io.BytesIO()
        self._lengths = array("Q")
        self._write = self._data.write
        self._note = self._lengths.append

    def add(self, value: Any) -> None:
        """Add a value. RecordError, with its position and type, if JSON cannot hold it; then nothing is added."""
        try:
            line = orjson.dumps(value, json_form, orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError as error:
            line = self._encode_wide(value, error)
        if holds_null(line):
            self._nulled += self._count_nulled(value)
        self._note(self._write(line))

    def encode(self, value: Any) -> tuple[bytes, int]:
        """Return the line of a value, for `append`, and the number of its nulled numbers. RecordError as for `add`."""
        try:
            line = orjson.dumps(value, json_form, orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError as error:
            line = self._encode_wide(value, error)
        return line, self._count_nulled(value) if holds_null(line) else 0

    def append(self, line: bytes, nulled: int) -> None:
        """Add a result of `encode`."""
        self._nulled += nulled
        self._note(self._write(line))

    def finish(self) -> JsonLines:
        """Return the added values. RecordError if one has a line break in its JSON."""
        data = self._data.getvalue()
        offsets = np.zeros(len(self._lengths) + 1, np.uint64)
        np.cumsum(np.frombuffer(self._lengths, np.uint64), out=offsets[1:])
        if count_lines(data) != len(self._lengths):  # only an orjson.Fragment can have a line break
            lines = enumerate(pairwise(offsets.tolist()))
            broken = next(number for number, (start, stop) in lines if data.count(_NEWLINE, start, stop) != 1)
            raise RecordError(f"output record {broken} {LINE_BREAK}")
        return JsonLines(data, offsets, self._nulled)

    @property
    def _position(self) -> int:
        return len(self._lengths)

    def _count_nulled(self, value: Any) -> int:
        try:
            return require_finite(value, self._nan)
        except RecordError as error:
            raise RecordError(f"output record {self._position}: {error}") from error

    def _encode_wide(self, value: Any, error: TypeError) -> bytes:
        try:
            return dumps_wide(value, orjson.OPT_APPEND_NEWLINE, error)
        except orjson.JSONEncodeError as refused:
            raise RecordError(
                f"output record {self._position} ({type(value).__name__}) cannot be written as JSON: {refused}; return "
                f"dicts, lists, strings, numbers, booleans or None, nested at most {MOST_DEEP} times"
            ) from error


class HeldLines(Sequence[bytes]):
    """Some lines of bytes in memory, without their newlines. Picklable."""

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
