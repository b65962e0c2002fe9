"""A digest of many sources in a few kilobytes, which still shows where they differ.

The sources are arranged in a square grid. There is a hash of all sources, and one of each row and each column. If one
source differs, its row and its column differ and identify it. If several differ, they are among those at the crossings
of a differing row and a differing column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Any

_KIND = "blake2b of a grid"
_EXACT, _PLACELESS = "sources", "contents"
_WHOLE_BYTES, _LINE_BYTES = 16, 4


def digest_of(sources: Sequence[Any], contents: Sequence[Any]) -> dict[str, Any]:
    """Return the digest of sources: less than 4 kB for up to 10,000 sources.

    Args:
        sources: Their descriptions.
        contents: The same descriptions without locations.
    """
    return {"digest": _KIND, "count": len(sources), _EXACT: _grid(sources), _PLACELESS: _grid(contents)}


def is_digest(found: Any) -> bool:
    """Return whether a part of a description is a digest."""
    return isinstance(found, Mapping) and found.get("digest") == _KIND


def without_exact(digest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a digest without the locations of its sources."""
    return {name: value for name, value in digest.items() if name != _EXACT}


def differing_places(was: Mapping[str, Any], now: Sequence[Any]) -> tuple[int, list[int]]:
    """Find the sources that differ from a digest.

    Args:
        was: The digest; if it has no exact part, `now` must have no locations.
        now: The same number of descriptions.

    Returns:
        The least number of differing sources, and the numbers of the candidates; if both counts are equal, all
        candidates differ.
    """
    one = was.get(_EXACT, was.get(_PLACELESS))
    other = _grid(now)
    if one == other:
        return 0, []
    width = _width(len(now))
    rows, columns = (_differing(one, other, name) for name in ("rows", "columns"))
    places = [row * width + column for row in rows for column in columns if row * width + column < len(now)]
    return max(len(rows), len(columns), 1), places or list(range(len(now)))


def _grid(descriptions: Sequence[Any]) -> dict[str, str]:
    hashes = [_hash([json.dumps(one, sort_keys=True).encode()], _WHOLE_BYTES) for one in descriptions]
    width = _width(len(hashes))
    rows = [_hash(hashes[begin : begin + width], _LINE_BYTES) for begin in range(0, len(hashes), width)]
    columns = [_hash(hashes[column::width], _LINE_BYTES) for column in range(width)]
    return {
        "all": _hash(hashes, _WHOLE_BYTES).hex(),
        "rows": b"".join(rows).hex(),
        "columns": b"".join(columns).hex(),
    }


def _hash(parts: Iterable[bytes], size: int) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=size).digest()


def _width(count: int) -> int:
    return isqrt(max(count - 1, 0)) + 1


def _differing(one: Any, other: Mapping[str, str], name: str) -> list[int]:
    """Return the numbers of the differing rows or columns; all of them if `one` is not a grid of this size."""
    now = bytes.fromhex(other[name])
    lines = range(0, len(now), _LINE_BYTES)
    try:
        was = bytes.fromhex(one[name])
    except (KeyError, TypeError, ValueError):
        was = b""
    same_size = len(was) == len(now)
    return [
        number
        for number, at in enumerate(lines)
        if not same_size or was[at : at + _LINE_BYTES] != now[at : at + _LINE_BYTES]
    ]
