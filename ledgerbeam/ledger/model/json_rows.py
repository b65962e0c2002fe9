"""Rows as JSON, in which names that are not UTF-8 survive."""

from __future__ import annotations

import json
from typing import Any

import orjson

from ledgerbeam.errors import UsageError


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
