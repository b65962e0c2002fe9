"""The identity of a graph in a checkpoint: descriptions of functions and sources, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ledgerbeam.errors import CheckpointMismatchError
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.iterators.digest import differing_places, digest_of, is_digest, without_exact

MOST_SOURCES = 16
"""Number of sources of a node that a checkpoint describes one by one; for more it has a digest."""

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
    """Compare two descriptions; the first may be `shortened`.

    Yields:
        One line for each difference: the path, the old and the new value.
    """
    if is_digest(was) and isinstance(now, (list, tuple)):
        yield from _differing_sources(was, now, path)
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            yield from differences(was.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(was, (list, tuple)) and isinstance(now, (list, tuple)):
        if len(was) != len(now):
            yield f"{path}: were {len(was)}, are {len(now)}"
            return
        for number, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif was != now:
        yield f"{path}: was {was!r}, is {now!r}"


def _differing_sources(was: Mapping[str, Any], now: Sequence[Any], path: str) -> Iterator[str]:
    """Compare a digest of sources with sources."""
    if was.get("count") != len(now):
        yield f"{path}: were {was.get('count')}, are {len(now)}"
        return
    least, places = differing_places(was, now)
    if least == len(places):
        yield from (f"{path}[{place}]: was another, is {_name_of(now[place])}" for place in places)
    elif least:
        shown = ", ".join(f"[{place}] {_name_of(now[place])}" for place in places[:_SHOWN])
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        yield f"{path}: at least {least} were others among {shown}{more}"


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
    """Compare the description in a checkpoint with the graph's.

    Args:
        was: The description in the checkpoint.
        now: The description of the graph.
        trust_data: Whether to skip the comparison of URLs and versions of sources.

    Raises:
        CheckpointMismatchError: They differ; the message lists the first differences.
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


def require_format(found: Any, expected: int) -> None:
    """Check the format version of a checkpoint.

    Raises:
        CheckpointMismatchError: It is different.
    """
    if found != expected:
        raise CheckpointMismatchError(
            f"expected a checkpoint of format {expected}, found {found!r}; read it with the ledgerbeam that wrote it"
        )


def require_shard(saved: Any, own: tuple[int, int]) -> None:
    """Check that a checkpoint belongs to the shard of the graph; None in a checkpoint fits every shard.

    Raises:
        CheckpointMismatchError: It is different.
    """
    if saved is not None and tuple(saved) != own:
        raise CheckpointMismatchError(
            f"expected a checkpoint of shard {own[0]} of {own[1]}, found one of shard {saved[0]} of {saved[1]}; call "
            f"partition({saved[0]}, {saved[1]}) before, or merge_states with the states of all {saved[1]} shards to "
            "continue with another number"
        )


def _without_place(found: Any) -> Any:
    if is_digest(found):
        return without_exact(found)
    if isinstance(found, Mapping):
        return {key: _without_place(value) for key, value in found.items() if key not in _PLACE}
    if isinstance(found, (list, tuple)):
        return [_without_place(value) for value in found]
    return found
