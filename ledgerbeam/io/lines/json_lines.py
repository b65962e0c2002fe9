"""Encoded lines of JSON: values are encoded when they are added, and decoded when they are read."""

from __future__ import annotations

import io
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, overload

import orjson

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import RecordError
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import count_lines
from ledgerbeam.io.json_values import MOST_DEEP, NanRule, dumps_wide, holds_null, json_form, loads, require_finite

LINE_BREAK = "holds a line break inside its JSON; expected one line. Return plain values instead of orjson.Fragment"
"""Error of a value whose JSON has several lines."""

_NEWLINE = b"\n"


class JsonLines(Sequence[Any]):
    """The values of a JSONL file in memory. Each value is decoded at its access.

    Attributes:
        data: The file.
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
    """Encodes values as lines of JSON, with keys in the order of the mapping. An added value may be changed later.

    Args:
        nan: Rule for NaN and infinities.
    """

    def __init__(self, nan: NanRule = "refuse") -> None:
        self._nan: NanRule = nan
        self._nulled = 0
        self._data = io.BytesIO()
        self._lengths = array("Q")
        self._write = self._data.write
        self._note = self._lengths.append

    def add(self, value: Any) -> None:
        """Encode a value of any type that orjson encodes, or an integer beyond 64 bits.

        Raises:
            RecordError: JSON cannot hold the value; the message has its position and type. Nothing is added.
        """
        try:
            line = orjson.dumps(value, json_form, orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError as error:
            line = self._encode_wide(value, error)
        if holds_null(line):
            self._nulled += self._count_nulled(value)
        self._note(self._write(line))

    def encode(self, value: Any) -> tuple[bytes, int]:
        """Return the line of a value, and the number of its numbers that are written as null; `append` adds it.

        Raises:
            RecordError: JSON cannot hold the value.
        """
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
        """Return the added values.

        Raises:
            RecordError: A value has a line break in its JSON.
        """
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
