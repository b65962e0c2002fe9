"""The identity of a graph in a checkpoint: descriptions of functions and sources, and their comparison.

Many sources are described by a digest of a few kilobytes, which still shows the differing ones. The sources are
arranged in a square grid. The digest has a hash of all sources, and a hash of each row and of each column. If one
source differs, the hashes of its row and its column differ and identify it. If several sources differ, each is at the
crossing of a differing row and a differing column, but other sources at such crossings may be equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isqrt
from typing import Any

from ledgerbeam.errors import CheckpointMismatchError
from ledgerbeam.io.storage.stat import FileInfo

_KIND = "blake2b of a grid"
_EXACT, _PLACELESS = "sources", "contents"
_WHOLE_BYTES, _LINE_BYTES = 16, 4


def digest_of(sources: Sequence[Any], contents: Sequence[Any]) -> dict[str, Any]:
    """Return the digest of descriptions of sources, and of `contents`: the same descriptions without locations.

    The digest has less than 4 kB for up to 10,000 sources.
    """
    return {"digest": _KIND, "count": len(sources), _EXACT: _grid(sources), _PLACELESS: _grid(contents)}


def is_digest(found: Any) -> bool:
    """Return whether a part of a description is a digest."""
    return isinstance(found, Mapping) and found.get("digest") == _KIND


def differing_places(was: Mapping[str, Any], now: Sequence[Any]) -> tuple[int, list[int]]:
    """Return the least possible number of sources that differ from a digest, and the positions of all that may differ.

    If the two numbers are equal, all these positions differ. For a digest of contents, `now` must have no locations.
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
    return {"all": _hash(hashes, _WHOLE_BYTES).hex(), "rows": b"".join(rows).hex(), "columns": b"".join(columns).hex()}


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


MOST_SOURCES = 16  # number of sources of a node that a checkpoint describes one by one; for more it has a digest
_SHOWN = 5
_PLACE = {"url", "version"}


def describe_function(function: Callable[..., Any]) -> str:
    """Return the module and the qualified name of a function, or of the class of another callable."""
    if isinstance(function, partial):
        return f"partial of {describe_function(function.func)}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def describe_source(info: FileInfo) -> dict[str, Any]:
    """Return the description of a source: URL, size in bytes, and version."""
    return {"url": info.url, "size": info.size, "version": info.version}


def shortened(found: Any) -> Any:
    """Return a description for a checkpoint, with digests instead of long lists of sources."""
    if isinstance(found, Mapping):
        return {key: shortened(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        if len(found) > MOST_SOURCES and all(isinstance(value, Mapping) for value in found):
            return digest_of(found, [_without_place(value) for value in found])
        return [shortened(value) for value in found]
    return found


def differences(was: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each difference: path, old and new value. The first description may be `shortened`."""
    if is_digest(was) and isinstance(now, (list, tuple)):
        yield from _differing_sources(was, now, path)
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            yield from differences(was.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(was, (list, tuple)) and isinstance(now, (list, tuple)):
        if len(was) != len(now):
            yield f"{path}: {len(was)} in the checkpoint, {len(now)} now"
            return
        for number, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif was != now:
        yield f"{path}: was {was!r}, is {now!r}"


def _differing_sources(was: Mapping[str, Any], now: Sequence[Any], path: str) -> Iterator[str]:
    """Yield a line for each difference between the digest of earlier sources and the descriptions of sources now."""
    if was.get("count") != len(now):
        yield f"{path}: {was.get('count')} in the checkpoint, {len(now)} now"
        return
    least, places = differing_places(was, now)
    if least == len(places):
        yield from (f"{path}[{place}]: was another source, is {_name_of(now[place])}" for place in places)
    elif least:
        shown = ", ".join(f"[{place}] {_name_of(now[place])}" for place in places[:_SHOWN])
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        yield f"{path}: at least {least} of these were others: {shown}{more}"


def _name_of(description: Any) -> str:
    """Return the first URL of a description with its size and version, else the truncated description."""
    waiting = [description]
    while waiting:
        found = waiting.pop(0)
        if isinstance(found, Mapping):
            if "url" in found:
                return f"{found['url']} ({found.get('size')} bytes of version {found.get('version')})"
            waiting.extend(found.values())
        elif isinstance(found, (list, tuple)):
            waiting.extend(found)
    return str(description)[:200]


def require_same(was: Any, now: Any, *, trust_data: bool) -> None:
    """Raise CheckpointMismatchError with the first differences unless both descriptions are equal.

    With `trust_data`, URLs and versions of sources are not compared.
    """
    if trust_data:
        was, now = _without_place(was), _without_place(now)
    found = list(differences(was, now))
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CheckpointMismatchError(
            f"the checkpoint belongs to another graph or to other data: {'; '.join(found[:_SHOWN])}{more}. Restore the "
            "graph and the data of the checkpoint, or start without it; if the data was only copied, load it with "
            "trust_data=True"
        )


def require_shard(saved: Any, own: tuple[int, int]) -> None:
    """Check that a checkpoint belongs to the shard `own` (number, number of shards), or to all if `saved` is None."""
    if saved is not None and tuple(saved) != own:
        raise CheckpointMismatchError(
            f"expected a checkpoint of shard {own[0]} of {own[1]}, found one of shard {saved[0]} of {saved[1]}; call "
            f"partition({saved[0]}, {saved[1]}) before load_state_dict. For another number of shards, merge the states "
            "of all old shards with merge_states"
        )


def _without_place(found: Any) -> Any:
    if is_digest(found):
        return {name: value for name, value in found.items() if name != _EXACT}
    if isinstance(found, Mapping):
        return {key: _without_place(value) for key, value in found.items() if key not in _PLACE}
    if isinstance(found, (list, tuple)):
        return [_without_place(value) for value in found]
    return found
