"""JSON values in and out, without loss: by orjson, and by the standard library where orjson is not exact.

orjson reads integers beyond 64 bits as floats, and writes NaN and infinities as null. Both are looked for in a way that
costs ordinary data next to nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import marshal
import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import orjson

from ledgerbeam.errors import RecordError

__all__ = ["NULL", "NanRule", "dumps", "dumps_wide", "exact", "loads", "may_hold_wide", "require_finite"]

NanRule = Literal["refuse", "null"]
"""What becomes of NaN and infinities, which JSON does not have: an error, or null."""

NULL = b"null"
"""What a line holds if something that JSON does not have was written in it."""

_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 0 for byte in range(256))
_RUN = b"0" * 19  # digits of the shortest integer beyond 64 bits, -9223372036854775809
_STEP = 6
_SOME = b"0" * (len(_RUN) // _STEP)  # of every sixth byte so many lie within such a run
_WIDE = re.compile(rb"(?<![.0-9])(?:[0-9]{20,}|-[0-9]{19,})(?![.eE0-9])")
_SIGNED_LOW, _UNSIGNED_HIGH = -(2**63), 2**64 - 1
_EXPONENT_OF_ONES = re.compile(rb"[\xf0-\xff][\x7f\xff]")  # the last two bytes of NaN and infinities
_PATH_CHARACTERS = 200


def may_hold_wide(data: bytes) -> bool:
    """Tells whether JSON text has a run of so many digits that an integer beyond 64 bits may be in it."""
    return _SOME in data[::_STEP].translate(_DIGITS) and _RUN in data.translate(_DIGITS)


def exact(line: bytes, value: Any) -> Any:
    """Gives the value of JSON text with its integers as they are written.

    Args:
        line: The text, which `may_hold_wide`.
        value: What orjson made of it; so it is valid.

    Raises:
        orjson.JSONDecodeError: It is nested too deeply for that.
    """
    if _WIDE.search(line) is None:
        return value
    try:
        return json.loads(str(line, "utf-8"))
    except RecursionError:
        raise orjson.JSONDecodeError("integers beyond 64 bits are nested too deeply", "", 0) from None


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Decodes JSON text.

    Raises:
        orjson.JSONDecodeError: It is not JSON; a ValueError.
    """
    value = orjson.loads(data)
    line = bytes(data)
    return exact(line, value) if may_hold_wide(line) else value


def dumps(value: Any, option: int = 0) -> bytes:
    """Encodes a value of plain data.

    Args:
        value: What orjson can encode, integers of any width that a float can approach included.
        option: Of orjson.

    Raises:
        RecordError: It holds NaN or an infinity; the message says where.
        orjson.JSONEncodeError: It holds something else that JSON cannot; a TypeError.
    """
    try:
        data = orjson.dumps(value, None, option)
    except orjson.JSONEncodeError as error:
        data = dumps_wide(value, option, error)
    if NULL in data:
        require_finite(value)
    return data


def dumps_wide(value: Any, option: int, error: TypeError) -> bytes:
    """Encodes a value that orjson refused.

    Raises:
        TypeError: Again what orjson raised: for something else than integers beyond 64 bits.
    """
    try:
        replaced = _with_wide(value)
    except OverflowError:
        raise orjson.JSONEncodeError("an integer is beyond what readers of JSON take") from error
    except RecursionError:
        raise error from None
    if replaced is value:
        raise error
    return orjson.dumps(replaced, None, option)


def require_finite(value: Any, rule: NanRule = "refuse") -> int:
    """Looks for NaN and infinities in a value that orjson has encoded.

    Returns:
        How many there are.

    Raises:
        RecordError: There is one, and they are refused; the message says where.
    """
    try:
        flat = marshal.dumps(value, 2)
        if not (b"\x7f" in flat or b"\xff" in flat) or _EXPONENT_OF_ONES.search(flat) is None:
            return 0
    except ValueError:
        pass  # not of plain types only
    found = 0
    for path, number in _non_finite(value, ""):
        if rule == "refuse":
            raise RecordError(
                f"{path[:_PATH_CHARACTERS].lstrip('.') or 'the value'} is {number}, which JSON does not have; make "
                "it None or leave it out (map writes null with --nan null)."
            )
        found += 1
    return found


def _with_wide(value: Any) -> Any:
    """Gives a value with integers beyond 64 bits as text; the very value if it has none."""
    if isinstance(value, int):
        if _SIGNED_LOW <= value <= _UNSIGNED_HIGH:
            return value
        float(value)  # beyond this no reader that knows floats takes it; OverflowError
        return orjson.Fragment(b"%d" % value)
    if isinstance(value, dict):
        pairs = {name: _with_wide(part) for name, part in value.items()}
        return pairs if any(pairs[name] is not part for name, part in value.items()) else value
    if isinstance(value, list | tuple):
        parts = [_with_wide(part) for part in value]
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def _non_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Gives where the floats are that orjson writes as null."""
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
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if not field.name.startswith("_"):
                yield from _non_finite(getattr(value, field.name), f"{path}.{field.name}")
