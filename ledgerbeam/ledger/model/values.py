"""Values of rows: their checks, and rows as JSON. Constructors, writers and readers run the same checks.

Every host reads a value that passes a check exactly as it was written. Each check raises ValueError with the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from ledgerbeam.errors import LedgerbeamError, UnsupportedShapeError, UsageError
from ledgerbeam.ledger.model.identity import ID_BYTES

LIMIT = 2**63 - 1  # greatest number of bytes, records and similar counts
LAST_SECOND = 2**35  # upper limit of times, exclusive: the year 3058. All earlier times can be shown as dates.
CHECKSUM_CHARACTERS = 256  # largest length of a checksum, in characters


@contextmanager
def recordable(what: str, kind: type[LedgerbeamError] = UnsupportedShapeError) -> Iterator[None]:
    """Convert a ValueError of the body, which checks values, to an error that `what` cannot be recorded."""
    try:
        yield
    except ValueError as error:
        raise kind(f"{what} cannot be recorded: {error}") from None


def integer(value: Any, low: int = 0) -> int:
    """Check a count, such as a number of bytes or records."""
    if type(value) is not int or not low <= value <= LIMIT:
        raise ValueError(f"expected a number from {low} to {LIMIT}, found {shown(value)}")
    return value


def seconds(value: Any) -> float:
    """Check a time, in seconds since 1970 and before `LAST_SECOND`, or a duration in seconds."""
    if type(value) not in (int, float) or not 0 <= value < LAST_SECOND:
        raise ValueError(f"expected a time in seconds, from 0 to below {LAST_SECOND}, found {shown(value)}")
    return float(value)


def flag(value: Any) -> bool:
    """Check a Boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {shown(value)}")
    return value


def text(value: Any) -> str:
    """Check a text. Bytes that are not UTF-8 are surrogate escapes; other surrogates are invalid."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {shown(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError(f"expected a text without lone surrogates, found {shown(value)}") from None
    return value


def output_name(value: Any) -> str:
    """Check the name of an output: it must not lead out of the output root by ``..``."""
    name = text(value)
    if not name or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"expected the name of an output, not empty and without .. and NUL, found {shown(value)}")
    return name


def checksum(value: Any) -> str:
    """Check a checksum."""
    if len(text(value)) > CHECKSUM_CHARACTERS:
        raise ValueError(f"expected a checksum of at most {CHECKSUM_CHARACTERS} characters, found {shown(value)}")
    return str(value)


def id_bytes(value: Any) -> bytes:
    """Check an identity."""
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise ValueError(f"expected {ID_BYTES} bytes as the id of a source or task, found {shown(value)}")
    return value


def identity(value: Any) -> bytes:
    """Decode an identity from hexadecimal digits."""
    found = bytes.fromhex(value) if isinstance(value, str) and len(value) == 2 * ID_BYTES else b""
    if len(found) != ID_BYTES:
        raise ValueError(f"expected an id of {2 * ID_BYTES} hexadecimal digits, found {shown(value)}")
    return found


def lineage(value: Any) -> tuple[tuple[int, int], ...]:
    """Check a lineage, pairs of an ordinal and a count, and return it as tuples."""
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
    """Check a list whose length is one of `lengths`."""
    if not isinstance(value, list | tuple) or len(value) not in lengths:
        raise ValueError(f"expected a row of {' or '.join(map(str, lengths))} values, found {shown(value)}")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Return a value as text for a message."""
    found = ascii(value)
    return found if len(found) <= 80 else f"{found[:77]}..."


def encode(value: Any) -> bytes:
    """Encode a row as JSON. Names that are not UTF-8 have surrogates, which `json` encodes and orjson refuses.

    Raises UsageError if `decode` would not return the same value, for instance for a number of more than 64 bits.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        if "64-bit" in str(error) or "key" in str(error):  # json would encode them, but they would be decoded changed
            raise UsageError(f"a value cannot be stored in a ledger as JSON: {error}") from None
    try:
        # Unescaped: a reader would join two escaped surrogates in sequence into one character.
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except TypeError as error:
        raise UsageError(f"a value cannot be stored in a ledger as JSON: {error}") from None


def decode(data: bytes) -> Any:
    """Decode a row of `encode`. Raises ValueError for damaged rows."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(data)
        except RecursionError:
            raise error from None
