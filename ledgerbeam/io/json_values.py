"""Lossless JSON: by orjson, and by the standard library where orjson is not exact.

Types of columns that JSON lacks have one form each: bytes are `{"__base64__": ...}`, decimals are strings, and dates,
times and periods are strings in ISO 8601.

orjson reads integers beyond 64 bits as floats, and writes NaN and infinities as null. Fast checks detect both.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import marshal
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import orjson

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import RecordError
from ledgerbeam.io import native

BASE64 = "__base64__"  # the only key of an object that represents bytes
NanRule = Literal["refuse", "null"]  # treatment of NaN and infinities, which JSON lacks: an error, or null
MOST_DEEP = 254  # greatest depth of nested objects and lists that orjson writes
NULL = b"null"  # orjson writes it for NaN and infinities
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 0 for byte in range(256))
_RUN = b"0" * 19  # digits of the shortest integer beyond 64 bits, -9223372036854775809
_OF_NUMBER = tuple(bytes([byte]) for byte in b".0123456789")  # before a run in a fraction, or checked already
_OF_FLOAT = (b".", b"e", b"E")  # after the digits of a float
_SHORT = 4096  # up to this size, a search is faster than an array
_CHUNK, _MOST_DIGITS = 1 << 17, 400  # a chunk fits in the cache; longer integers cannot be read at all
_SIGNED_LOW, _UNSIGNED_HIGH = -(2**63), 2**64 - 1
_EXPONENT_OF_ONES = re.compile(rb"[\xf0-\xff][\x7f\xff]")  # the last two bytes of NaN and infinities
_PATH_CHARACTERS = 200


def holds_wide(data: bytes) -> bool:
    """Return whether JSON text seems to have an integer beyond 64 bits, perhaps only in a string."""
    if native.compiled is not None:
        return native.compiled.holds_wide(data)
    if len(data) < _SHORT:
        digits = data.translate(_DIGITS)
        return _RUN in digits and _has_wide(data, 0, digits)
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK + _MOST_DIGITS]
        if _has_run(part) and _has_wide(data, start, part.translate(_DIGITS)):
            return True
    return False


def _has_run(part: bytes) -> bool:
    """Return whether there are 19 consecutive digits. An integer of fewer digits always fits in 64 bits."""
    runs = np.frombuffer(part, np.uint8) - np.uint8(ord("0")) < 10
    for further in (1, 2, 4, 8, len(_RUN) - 16):
        runs = runs[:-further] & runs[further:]
    return bool(runs.any())


def _has_wide(data: bytes, start: int, digits: bytes) -> bool:
    """Return whether the chunk at `start` has an integer beyond 64 bits. `digits`: the chunk with 0 for other bytes."""
    at = digits.find(_RUN)
    while at >= 0:
        end = digits.find(0, at)
        end = len(digits) if end < 0 else end
        before, after = data[max(0, start + at - 1) : start + at], data[start + end : start + end + 1]
        is_whole = before not in _OF_NUMBER and after not in _OF_FLOAT
        if is_whole and (end - at > len(_RUN) or before == b"-"):
            return True
        at = digits.find(_RUN, end)
    return False


# Returns whether JSON text contains the word `null`. It is called for every written record.
holds_null: Callable[[bytes], bool] = (
    (lambda line: NULL in line) if native.compiled is None else native.compiled.holds_null
)


def exact(line: bytes, value: Any) -> Any:
    """Return the exact value of JSON text that orjson has decoded. JSONDecodeError if it is nested too deeply."""
    if not holds_wide(line):
        return value
    try:
        return json.loads(str(line, "utf-8"))
    except RecursionError:
        raise orjson.JSONDecodeError("integers beyond 64 bits are nested too deeply", "", 0) from None


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Decode JSON text. orjson.JSONDecodeError, a ValueError, if it is not JSON."""
    return exact(bytes(data), orjson.loads(data))


def json_form(value: Any) -> Any:
    """Return the JSON form of a value whose type JSON lacks, as `default` of orjson. TypeError: it has none."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {BASE64: base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return period_text((value.days * 86_400 + value.seconds) * 10**9 + value.microseconds * 1000)
    # orjson supports these types, the standard library does not.
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    if is_of_dataclass(value):
        return _attributes(value)
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def period_text(nanoseconds: int) -> str:
    """Return a period in ISO 8601, in seconds: `PT1.5S`."""
    whole, rest = divmod(abs(nanoseconds), 10**9)
    digits = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{'-' if nanoseconds < 0 else ''}PT{whole}{digits}S"


def dumps(value: Any, option: int = 0, default: Callable[[Any], Any] | None = json_form) -> bytes:
    """Encode a value of plain data. RecordError: a part is NaN or infinite. orjson.JSONEncodeError: another reason."""
    try:
        data = orjson.dumps(value, default, option)
    except orjson.JSONEncodeError as error:
        data = dumps_wide(value, option, error, default)
    if holds_null(data):
        require_finite(value)
    return data


def dumps_wide(value: Any, option: int, error: TypeError, default: Callable[[Any], Any] | None = json_form) -> bytes:
    """Encode a value that orjson refused with `error`. TypeError: the reason was not integers beyond 64 bits."""
    try:
        if (replaced := _with_wide(value)) is not value:
            return orjson.dumps(replaced, default, option)
    except OverflowError:
        raise orjson.JSONEncodeError("an integer is beyond 1.8e308, and most readers of JSON refuse it") from error
    except RecursionError:
        pass
    except TypeError as again:
        error = again
    if "Recursion limit" in str(error):  # the only sign in the error of orjson
        raise orjson.JSONEncodeError(f"it is nested more than {MOST_DEEP} times") from error
    raise error


def require_finite(value: Any, rule: NanRule = "refuse") -> int:
    """Return the number of NaN and infinities in an encoded value. With `refuse`, RecordError names the place."""
    try:
        flat = marshal.dumps(value, 2)
        if not (b"\x7f" in flat or b"\xff" in flat) or _EXPONENT_OF_ONES.search(flat) is None:
            return 0
    except ValueError:
        pass  # the value has other types
    found = 0
    for path, number in _non_finite(value, ""):
        if rule == "refuse":
            raise RecordError(
                f"{path[:_PATH_CHARACTERS].lstrip('.') or 'the value'} is {number}, which JSON does not have; set it "
                "to None or leave it out (map writes null with --nan null)"
            )
        found += 1
    return found


def _with_wide(value: Any) -> Any:
    """Return a value with integers beyond 64 bits as `orjson.Fragment`; the same object if it has none."""
    if isinstance(value, int):
        if _SIGNED_LOW <= value <= _UNSIGNED_HIGH:
            return value
        float(value)  # raises OverflowError for an integer that readers cannot represent as a float
        return orjson.Fragment(b"%d" % value)
    if isinstance(value, dict):
        pairs = {name: _with_wide(part) for name, part in value.items()}
        return pairs if any(pairs[name] is not part for name, part in value.items()) else value
    if isinstance(value, list | tuple):
        parts = [_with_wide(part) for part in value]
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def _non_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield the path and the value of each float that orjson writes as null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _non_finite(part, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _non_finite(part, f"{path}[{position}]")
    elif isinstance(value, enum.Enum):
        yield from _non_finite(value.value, path)
    elif is_of_dataclass(value):
        yield from _non_finite(_attributes(value), path)


def is_of_dataclass(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass, not the class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the public attributes of a dataclass instance, as orjson writes them; with slots, only its fields."""
    if "__slots__" in vars(type(value)):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        found = vars(value)
    return {name: part for name, part in found.items() if not name.startswith("_")}
