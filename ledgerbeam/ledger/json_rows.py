"""Rows as JSON, in which names that are not UTF-8 survive."""

from __future__ import annotations

import json
from typing import Any

import orjson


def encode(value: Any) -> bytes:
    """Encode a row as JSON. Names that are not UTF-8 travel as escaped surrogates, which orjson refuses."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode("ascii")


def decode(data: bytes) -> Any:
    """Decode a row of `encode`. Raises ValueError for damaged rows."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(data)
        except RecursionError:
            raise error from None
