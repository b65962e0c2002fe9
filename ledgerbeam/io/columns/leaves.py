"""Convert scalar Python values exactly to Arrow columns: a value that the type cannot hold is an error.

pyarrow alone would truncate 1.5 to 1 and microseconds to seconds, and accept bytes as text. So the types of all values
are checked first. pyarrow receives only values that it converts exactly.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ledgerbeam.errors import UsageError
from ledgerbeam.io.columns.infer import EXACT_INT
from ledgerbeam.io.json_values import BASE64

ABSENT: Any = object()  # the value of a key that an object does not have
NONE = type(None)
# The exceptions of pyarrow for values that it does not accept.
ARROW_ERRORS: tuple[type[Exception], ...] = (pa.ArrowException, OverflowError, TypeError, ValueError)
_SHOWN = 60


class MisfitError(Exception):
    """A value that does not fit the type of its column, with its path inside the column."""

    def __init__(self, expected: str, found: str, path: str = "") -> None:
        super().__init__(path, expected, found)
        self.path = path
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        field = f"field {self.path.lstrip('.')}: " if self.path else ""
        return f"{field}expected {self.expected}, found {self.found}"

    def below(self, path: str) -> MisfitError:
        """Return the same error with `path` before its own path."""
        return MisfitError(self.expected, self.found, path + self.path)


class TypedColumn(ABC):
    """Makes arrays of one type; `expected` describes its values, for messages."""

    def __init__(self, kind: pa.DataType, expected: str) -> None:
        self.type = kind
        self.expected = expected

    @abstractmethod
    def array(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        """Return values as an array; None becomes null.

        MisfitError: a value does not fit. The error has the exact path only if `values` is a single value.
        """

    def misfit(self, values: Sequence[Any]) -> MisfitError:
        """Return the error for a single value, or for several values of which at least one does not fit."""
        return MisfitError(self.expected, describe(values[0]) if len(values) == 1 else "others")


def describe(value: Any) -> str:
    """Describe a value for a message."""
    if value is None:
        return "null"
    if value is ABSENT:
        return "no such key"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}"


class _Leaf(TypedColumn):
    """A column of scalar values.

    pyarrow converts values of the `accepted` types exactly. `read` converts another value to one of them, or raises
    ValueError or TypeError.
    """

    def __init__(
        self, kind: pa.DataType, expected: str, accepted: tuple[type, ...], read: Callable[[Any], Any]
    ) -> None:
        super().__init__(kind, expected)
        self._accepted = frozenset((*accepted, NONE))
        self._read = read

    def array(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        try:
            if not self._accepted.issuperset(map(type, values)):
                values = [self._of_other(value) for value in values]
            return self._made(values)
        except ARROW_ERRORS:
            raise self.misfit(values) from None

    def _made(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        return pa.array(values, self.type, from_pandas=False)

    def _of_other(self, value: Any) -> Any:
        if type(value) in self._accepted:
            return value
        if isinstance(value, np.generic):
            value = value.item()
            if type(value) in self._accepted:
                return value
        return self._read(value)


class _Floats(_Leaf):
    """Rounds to the nearest number of a narrower type, and refuses finite numbers that would become infinite."""

    def _made(self, values: Sequence[Any]) -> pa.Array:
        made = pa.array(values, pa.float64(), from_pandas=False)
        if self.type == pa.float64():
            return made
        narrow = made.cast(self.type, safe=False)
        for wide, found in zip(made.to_pylist(), narrow.to_pylist(), strict=True):
            if wide is not None and math.isinf(found) and not math.isinf(wide):
                raise ValueError("beyond the type")
        return narrow


class _Nanoseconds(int):
    """A duration, or a time since 1970 or midnight, in nanoseconds: for a value with digits below a microsecond."""


class _Moments(_Leaf):
    """Points in time, with a time zone if the type has one; times of day; durations.

    `micros` is the type in microseconds, `plain` the type of its values, and `read` may return `_Nanoseconds`.
    """

    def __init__(
        self, kind: pa.DataType, expected: str, micros: pa.DataType, plain: type, read: Callable[[Any], Any]
    ) -> None:
        super().__init__(kind, expected, (plain, _Nanoseconds), read)
        self._micros, self._plain = micros, plain

    def _made(self, values: Sequence[Any]) -> pa.Array:
        kind, micros, plain = self.type, self._micros, self._plain
        zoned = getattr(kind, "tz", None) is not None
        if any(type(value) is plain and (getattr(value, "tzinfo", None) is not None) != zoned for value in values):
            raise ValueError("with a zone, or without")
        if all(value is None or type(value) is plain for value in values):
            return pa.array(values, micros, from_pandas=False).cast(kind)
        if kind.unit != "ns":
            raise ValueError("nanoseconds")
        exact = pa.array([value if type(value) is plain else None for value in values], micros, from_pandas=False)
        counts = exact.cast(pa.int64()).to_pylist()
        nanos = [
            value if type(value) is _Nanoseconds else None if count is None else 1000 * count
            for value, count in zip(values, counts, strict=True)
        ]
        return pa.array(nanos, pa.int64()).cast(kind)


def _read_int(value: Any) -> int:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_INT
    if is_whole or (isinstance(value, int) and not isinstance(value, bool)):
        return int(value)
    raise TypeError


def _read_float(value: Any) -> float | int:
    is_exact = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= EXACT_INT
    if is_exact or isinstance(value, float):
        return float(value)
    raise TypeError


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError


def _read_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {BASE64}:
        return b64decode(value[BASE64], validate=True)
    raise TypeError


def _read_decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, str | decimal.Decimal) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            return decimal.Decimal(value)
        except decimal.InvalidOperation:
            raise ValueError from None
    raise TypeError


def _read_date(value: Any) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    raise TypeError


_FRACTION = re.compile(r"(?<=[.,])(\d{6})(\d{1,3})(?!\d)")
_MICROSECOND = dt.timedelta(microseconds=1)


def _split_nanoseconds(text: str) -> tuple[str, int]:
    """Return a time as text without its digits below a microsecond, and these digits as nanoseconds."""
    found = _FRACTION.search(text)
    return (text, 0) if found is None else (text[: found.end(1)] + text[found.end(2) :], int(found[2].ljust(3, "0")))


def _read_instant(value: Any) -> dt.datetime | _Nanoseconds:
    """Parse a time in ISO 8601; with digits below a microsecond return nanoseconds since 1970."""
    if isinstance(value, str):
        text, beyond = _split_nanoseconds(value)
        found = dt.datetime.fromisoformat(text)
        if not beyond:
            return found
        since = found - dt.datetime(1970, 1, 1, tzinfo=None if found.tzinfo is None else dt.UTC)
        return _Nanoseconds(since // _MICROSECOND * 1000 + beyond)
    if isinstance(value, dt.datetime):  # a pandas.Timestamp
        if getattr(value, "nanosecond", 0):
            return _Nanoseconds(value.value)  # type: ignore[attr-defined]
        return dt.datetime.fromisoformat(value.isoformat())
    raise TypeError


def _read_time(value: Any) -> dt.time | _Nanoseconds:
    if not isinstance(value, str):
        raise TypeError
    text, beyond = _split_nanoseconds(value)
    found = dt.time.fromisoformat(text)
    micros = ((found.hour * 60 + found.minute) * 60 + found.second) * 10**6 + found.microsecond
    return _Nanoseconds(micros * 1000 + beyond) if beyond else found


_PERIOD = re.compile(r"(-?)PT(\d+)(?:\.(\d{1,9}))?S")


def _read_duration(value: Any) -> dt.timedelta | _Nanoseconds:
    if isinstance(value, str):
        if (found := _PERIOD.fullmatch(value)) is None:
            raise ValueError(value)
        nanoseconds = int(found[2]) * 10**9 + int((found[3] or "").ljust(9, "0"))
        nanoseconds = -nanoseconds if found[1] else nanoseconds
        return _Nanoseconds(nanoseconds) if nanoseconds % 1000 else dt.timedelta(microseconds=nanoseconds // 1000)
    if isinstance(value, dt.timedelta):  # a pandas.Timedelta
        if getattr(value, "nanoseconds", 0):
            return _Nanoseconds(value.value)  # type: ignore[attr-defined]
        return dt.timedelta(value.days, value.seconds, value.microseconds)
    raise TypeError


def _refuse(value: Any) -> Any:
    raise TypeError(value)


def leaf_column(kind: pa.DataType, name: str) -> TypedColumn:
    """Return the column that makes arrays of a scalar type.

    UsageError: Python values cannot be converted to this type.
    """
    is_ = pa.types
    if is_.is_integer(kind):
        return _Leaf(kind, f"an integer ({kind})", (int,), _read_int)
    if is_.is_floating(kind):
        return _Floats(kind, f"a number ({kind})", (float,), _read_float)
    if is_.is_boolean(kind):
        return _Leaf(kind, "true or false", (bool,), _refuse)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return _Leaf(kind, "a string", (str,), _read_text)
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind):
        size = f" of length {kind.byte_width}" if is_.is_fixed_size_binary(kind) else ""
        return _Leaf(kind, f"bytes{size}", (bytes,), _read_bytes)
    if is_.is_decimal(kind):
        return _Leaf(kind, f"a decimal ({kind})", (decimal.Decimal,), _read_decimal)
    if is_.is_date(kind):
        return _Leaf(kind, "a date", (dt.date,), _read_date)
    if is_.is_timestamp(kind):
        zone = "without a zone" if kind.tz is None else "with a zone"
        return _Moments(kind, f"a time {zone} ({kind})", pa.timestamp("us", kind.tz), dt.datetime, _read_instant)
    if is_.is_time(kind):
        return _Moments(kind, f"a time of day ({kind})", pa.time64("us"), dt.time, _read_time)
    if is_.is_duration(kind):
        return _Moments(kind, f"a duration ({kind})", pa.duration("us"), dt.timedelta, _read_duration)
    if is_.is_null(kind):
        return _Leaf(kind, "null", (), _refuse)
    raise UsageError(f"column {name!r}: records cannot be written to the type {kind}; give another type in --schema")
