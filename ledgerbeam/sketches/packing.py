"""Bytes of sketches: a version byte and the content, compressed or not, up to a limit."""

from __future__ import annotations

import zlib
from typing import Any

LIMIT = 2**63 - 1
"""The greatest count, or weight, of one call."""

LARGEST = 2.0**960
"""The greatest number that can be observed: the sum of `LIMIT` such numbers is finite."""

MOST_BYTES = 2**20
"""Greatest size of the sketch of a task, unpacked."""

_PLAIN, _ZIPPED = b"\x01", b"\x02"


def packed(data: bytes) -> bytes:
    """Return bytes after their version byte, compressed if that is shorter.

    Raises:
        ValueError: There are more than `MOST_BYTES`.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"expected a sketch of at most {MOST_BYTES} bytes, found {len(data)}")
    zipped = zlib.compress(data, 6) if len(data) > 64 else data
    return _ZIPPED + zipped if len(zipped) < len(data) else _PLAIN + data


def unpacked(data: bytes) -> bytes:
    """Return the bytes that `packed` received.

    Raises:
        ValueError: `packed` cannot have returned these bytes.
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
    """Return a value as text for a message, at most 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
