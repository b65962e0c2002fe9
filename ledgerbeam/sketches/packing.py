"""The bytes of sketches: a version, compressed or not, never more than a limit."""

from __future__ import annotations

import zlib
from typing import Any

LIMIT = 2**63 - 1
"""The greatest count, or weight, of one call."""

LARGEST = 2.0**960
"""The greatest number that is observed: so many of them as can be counted still have a sum."""

MOST_BYTES = 2**20
"""No sketch of a task is larger, unpacked."""

_PLAIN, _ZIPPED = b"\x01", b"\x02"


def packed(data: bytes) -> bytes:
    """Return bytes with their version in front, compressed if that makes them shorter."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"expected a sketch of at most {MOST_BYTES} bytes, found {len(data)}")
    zipped = zlib.compress(data, 6) if len(data) > 64 else data
    return _ZIPPED + zipped if len(zipped) < len(data) else _PLAIN + data


def unpacked(data: bytes) -> bytes:
    """Return what `packed` was given.

    Raises:
        ValueError: It has made no such bytes.
    """
    if len(data) > MOST_BYTES + 1:
        raise ValueError(f"expected a sketch of at most {MOST_BYTES} bytes, found {len(data)}")
    if data[:1] == _PLAIN:
        return data[1:]
    if data[:1] != _ZIPPED:
        raise ValueError(f"expected version 1 or 2 of a sketch, found {shown(data[:1])}")
    unzip = zlib.decompressobj()
    try:
        found = unzip.decompress(data[1:], MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"expected compressed bytes: {error}") from None
    if not unzip.eof or unzip.unused_data:
        raise ValueError(f"expected a sketch of at most {MOST_BYTES} bytes, compressed")
    return found


def shown(value: Any) -> str:
    """Show a value in a message."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
