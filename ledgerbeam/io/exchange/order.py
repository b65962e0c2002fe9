"""Keys of records: the names or the function that a user gives, and the encoding of keys as bytes.

Encoded keys, compared as bytes, have the order of the keys. A key is one scalar or several. The order of scalars is:
false, true, numbers, text, bytes; null is before or after all of them. Numbers compare exactly, also integers with
floats. NaN is greater than all other numbers, and -0.0 equals 0. Text compares by code points, bytes by their values.

    null       05, or F0 if it is after all others
    false      10
    true       11
    number     20, the greatest float that is not above it (8 bytes), and the remainder: its length and its bytes
    text       30, UTF-8, 00 01
    bytes      38, the bytes, 00 01

A zero byte of text or bytes is written as 00 FF. So no encoded scalar is a prefix of another one, and a key of several
scalars is their concatenation. For a descending order every bit is inverted.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import RecordError, UsageError

if TYPE_CHECKING:
    from ledgerbeam.io.lines.rows import ByteRows

By = str | Sequence[str] | Callable[[Any], Any]  # the key of an exchange: names of fields, or a function of a record
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")


def key_fields(by: By, option: str = "by") -> tuple[str, ...]:
    """Return the names of the fields of a key; an empty tuple if `by` is a function or a reference to one.

    UsageError: a name is empty or not a string. The message starts with `option`.
    """
    if isinstance(by, str):
        fields: Iterable[str] = () if _FUNCTION.fullmatch(by) else by.split(",")
    else:
        fields = () if callable(by) else by
    names = tuple(fields)
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"{option}: expected names of fields such as meta.url,id, or module:function, found {by!r:.80}"
        )
    return names


def key_function(by: By, option: str = "by") -> str | Callable[[Any], Any]:
    """Return `by` after `key_fields` found no names: a function, or a reference to one. UsageError: neither."""
    if not callable(by) and not isinstance(by, str):
        raise UsageError(f"{option}: expected names of fields, found none; name one or more, such as id")
    return by


Scheme = Literal["key", "hash", "match", "digest", "content", "shuffle", "place"]
"""The bytes by which an exchange orders records.

- `key`: the encoded key.
- `hash`: a hash of the key, then the key.
- `match`: like `hash`, but a key with a null matches nothing.
- `digest`: a hash of the key alone; a key with a null matches nothing.
- `content`: a hash of the whole record.
- `shuffle`: a hash of seed, file and number.
- `place`: file and number."""

Joining = Literal["inner", "left", "semi", "anti"]
"""The records that a join returns.

- `inner`: pairs of both sides.
- `left`: pairs of both sides, and records of the left side without a match.
- `semi`: records of the left side with a match.
- `anti`: records of the left side without a match."""

Nulls = Literal["first", "last"]  # position of null in an order, whether ascending or descending
_NULL_LOW, _NULL_HIGH = b"\x05", b"\xf0"
_FALSE, _TRUE, _NUMBER, _TEXT, _BYTES = b"\x10", b"\x11", b"\x20", b"\x30", b"\x38"
_END, _ZERO, _ESCAPED = b"\0\x01", b"\0", b"\0\xff"
_INVERTED = bytes(255 - byte for byte in range(256))

_FLOAT = struct.Struct(">d")
_WORD = struct.Struct(">Q")
_SIGN, _ALL = 1 << 63, (1 << 64) - 1
_NAN = b"\xff" * 8
_EXACT = 1 << 53  # a float holds each integer up to this one exactly
_KINDS: tuple[Any, ...] = (int, float, str, bytes)
_MOST_DIGITS = 309  # largest number of digits of an integer that is not beyond all floats
_NUMBER_BYTES = 10  # length of an encoded number that a float holds exactly


@dataclass(frozen=True)
class KeyOrder:
    """An order of keys, and their encoding as bytes."""

    descending: bool = False  # whether the greatest key comes first
    nulls: Nulls = "last"  # position of null, in either direction

    def encode(self, key: Any) -> bytes:
        """Return a key as bytes: None, a bool, a number, text, bytes, a date or a time; or a tuple of them.

        Dates and times are encoded as text in ISO 8601; a time with a zone is converted to UTC first.

        RecordError: the key has another type; the message does not name the record.
        """
        null = _NULL_LOW if (self.nulls == "first") is not self.descending else _NULL_HIGH
        data = b"".join([_encode(part, null) for part in key]) if type(key) is tuple else _encode(key, null)
        return data.translate(_INVERTED) if self.descending else data

    def encode_all(self, keys: list[Any]) -> list[bytes]:
        """Return the encoded form of each key. Keys of one type are encoded together.

        RecordError: a key cannot be encoded; the message does not say which one.
        """
        kinds = set(map(type, keys))
        if kinds == {float} or (kinds == {int} and max(keys) <= _EXACT and min(keys) >= -_EXACT):
            data = _encode_numbers(keys)
            if self.descending:
                data = data.translate(_INVERTED)
            return [data[start : start + _NUMBER_BYTES] for start in range(0, len(data), _NUMBER_BYTES)]
        if kinds == {str} and not self.descending:
            return [_TEXT + key.encode("utf-8", "surrogatepass").replace(_ZERO, _ESCAPED) + _END for key in keys]
        return list(map(self.encode, keys))

    def encode_texts(self, texts: ByteRows) -> ByteRows:
        """Return the encoded form of each text. Texts are given in UTF-8, and have no zero bytes."""
        data = texts.joined(_TEXT, _END)
        ends = np.cumsum(texts.lengths + len(_TEXT + _END))
        return texts.consecutive(data.translate(_INVERTED) if self.descending else data, ends)


def _encode_numbers(values: list[Any]) -> bytes:
    """Return the encoded forms of floats, or of integers that floats hold exactly, concatenated; see `_encode`."""
    numbers = np.array(values, np.float64) + 0.0  # turns -0.0 into 0.0
    bits = numbers.view(np.uint64)
    sign = np.uint64(_SIGN)
    ordered = np.where(bits & sign, ~bits, bits | sign)
    ordered[np.isnan(numbers)] = _ALL
    rows = np.empty((len(values), _NUMBER_BYTES), np.uint8)
    rows[:, 0], rows[:, -1] = _NUMBER[0], 0
    rows[:, 1:-1] = ordered.astype(">u8").view(np.uint8).reshape(-1, 8)
    return rows.tobytes()


def _encode(value: Any, null: bytes) -> bytes:
    kind = type(value)
    if kind is str:
        data = value.encode("utf-8", "surrogatepass")
        return _TEXT + (data.replace(_ZERO, _ESCAPED) if _ZERO in data else data) + _END
    if kind is int:
        return _encode_integer(value)
    if kind is float:
        return _NUMBER + _encode_float(value) + _ZERO
    if value is None:
        return null
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is bytes:
        return _BYTES + value.replace(_ZERO, _ESCAPED) + _END
    return _encode(_plain_value(value), null)


def _encode_integer(value: int) -> bytes:
    if -_EXACT <= value <= _EXACT:
        return _NUMBER + _encode_float(float(value)) + _ZERO
    try:
        below = float(value)
    except OverflowError:
        raise RecordError(
            f"expected a number of at most {1.797e308:.3e} as the key, found an integer of {value.bit_length():,} "
            "bits; give module:function that returns text"
        ) from None
    if int(below) > value:
        below = math.nextafter(below, -math.inf)
    rest = value - int(below)
    data = rest.to_bytes((rest.bit_length() + 7) // 8, "big")
    return _NUMBER + _encode_float(below) + bytes([len(data)]) + data


def _encode_float(value: float) -> bytes:
    """Return a float as 8 bytes. In the order of bytes, they have the order of the floats."""
    if math.isnan(value):
        return _NAN
    bits: int = _WORD.unpack(_FLOAT.pack(value + 0.0))[0]  # of -0.0 it makes 0.0
    return _WORD.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _plain_value(value: Any) -> Any:
    """Convert a value to a type that `_encode` takes. RecordError: values of this type have no order."""
    for kind in _KINDS:
        if isinstance(value, kind):  # of a type of the user's, or of an enumeration, which may print as something else
            return kind.__getnewargs__(value)[0]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        try:
            return value.astimezone(dt.UTC).isoformat()
        except OverflowError:
            raise RecordError(
                f"expected a time between the years 1 and 9999 in UTC as the key, found {value.isoformat()}; give "
                "module:function that returns text"
            ) from None
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() <= _MOST_DIGITS and value == int(value):
        return int(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        found = value.item()
        if type(found) is not type(value):
            return found
    name = "a list" if isinstance(value, Sequence) else f"a {type(value).__name__}"
    name = "an object" if isinstance(value, dict) else name
    raise RecordError(
        f"expected null, true, false, a number, text or bytes as the key, found {name}; name a value in "
        "it, or give module:function that returns a key"
    )
