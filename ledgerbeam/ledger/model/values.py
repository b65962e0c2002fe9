"""The checks of every value in a ledger. Constructors, writers and readers run the same checks.

Whatever passes here is read by every other host as it was written. Each function raises ValueError, which names the
value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.identity import ID_BYTES

LIMIT = 2**63 - 1
"""The greatest number of bytes, records or the like."""

LAST_SECOND = 2**35
"""Times from here on, which is in the year 3058, cannot be: what shows times can show all before."""

CHECKSUM_CHARACTERS = 256
"""No checksum is longer."""


def integer(value: Any, low: int = 0) -> int:
    """Check a number of bytes, records or the like."""
    if type(value) is not int or not low <= value <= LIMIT:
        raise ValueError(f"expected a number from {low} to {LIMIT}, found {shown(value)}")
    return value


def seconds(value: Any) -> float:
    """Check a time: seconds since 1970, before `LAST_SECOND`, or how long something took."""
    if type(value) not in (int, float) or not 0 <= value < LAST_SECOND:
        raise ValueError(f"expected a time in seconds, found {shown(value)}")
    return float(value)


def flag(value: Any) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {shown(value)}")
    return value


def text(value: Any) -> str:
    """Check a text. Bytes that are not UTF-8 travel as surrogate escapes; others surrogates are no text."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {shown(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError(f"expected a text, found one with lone surrogates: {shown(value)}") from None
    return value


def output_name(value: Any) -> str:
    """Check the name of an output: it must not lead out of the output root by ``..``."""
    name = text(value)
    if not name or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"expected the name of an output, below the output root, found {shown(value)}")
    return name


def checksum(value: Any) -> str:
    """Check a checksum."""
    if len(text(value)) > CHECKSUM_CHARACTERS:
        raise ValueError(f"expected a checksum, found {shown(value)}")
    return str(value)


def id_bytes(value: Any) -> bytes:
    """Check an identity."""
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise ValueError(f"expected an identity of {ID_BYTES} bytes, found {shown(value)}")
    return value


def identity(value: Any) -> bytes:
    """Read an identity of hexadecimal digits."""
    found = bytes.fromhex(value) if isinstance(value, str) and len(value) == 2 * ID_BYTES else b""
    if len(found) != ID_BYTES:
        raise ValueError(f"expected {ID_BYTES} bytes as hexadecimal digits, found {shown(value)}")
    return found


def lineage(value: Any) -> tuple[tuple[int, int], ...]:
    """Read a lineage: pairs of an ordinal and a count."""
    found = []
    for pair in value:
        ordinal, count = row(pair, 2)
        found.append((integer(ordinal), integer(count)))
    return tuple(found)


def rows(value: Any) -> list[Any]:
    """Check a list."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, found {shown(value)}")
    return value


def row(value: Any, *lengths: int) -> Sequence[Any]:
    """Check a list of one of some lengths."""
    if not isinstance(value, list | tuple) or len(value) not in lengths:
        raise ValueError(f"expected a row of {' or '.join(map(str, lengths))} values, found {shown(value)}")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Show a value in a message."""
    found = ascii(value)
    return found if len(found) <= 80 else f"{found[:77]}..."


def encode(value: Any) -> bytes:
    """Encode a row as JSON. Names that are not UTF-8 travel as surrogates, which orjson refuses.

    Raises:
        UsageError: A value that `decode` would not give back, for instance a number of more than 64 bits.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        if "64-bit" in str(error) or "key" in str(error):  # the other encoder takes them, and they come back changed
            raise UsageError(f"a value cannot be kept in a ledger as JSON: {error}") from None
    try:
        # As they are: of two that are escaped one after the other, a reader would make one character.
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except TypeError as error:
        raise UsageError(f"a value cannot be kept in a ledger as JSON: {error}") from None


def decode(data: bytes) -> Any:
    """Decode a row of `encode`. Raises ValueError for damaged rows."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(data)
        except RecursionError:
            raise error from None
