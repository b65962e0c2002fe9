"""What a checkpoint belongs to: describing functions and sources, and comparing descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ledgerbeam.errors import CheckpointMismatchError
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.iterators.digest import differing_places, digest_of, is_digest, without_exact

__all__ = [
    "describe_function",
    "describe_source",
    "differences",
    "require_format",
    "require_same",
    "require_shard",
    "shortened",
]

MOST_SOURCES = 16
"""How many sources of a node a checkpoint describes one by one; of more it holds a digest."""

_SHOWN = 5
_PLACE = {"url", "version"}


def describe_function(function: Callable[..., Any]) -> str:
    """Name a function by module and qualified name; of other callables, their class."""
    if isinstance(function, partial):
        return f"partial of {describe_function(function.func)}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def describe_source(info: FileInfo) -> dict[str, Any]:
    """Describe a source: URL, size in bytes, and version."""
    return {"url": info.url, "size": info.size, "version": info.version}


def shortened(found: Any) -> Any:
    """Return a description in which long lists of sources are digests: what of it a checkpoint holds."""
    if isinstance(found, Mapping):
        return {key: shortened(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        if len(found) > MOST_SOURCES and all(isinstance(value, Mapping) for value in found):
            return digest_of(found, [_without_place(value) for value in found])
        return [shortened(value) for value in found]
    return found


def differences(was: Any, now: Any, path: str = "") -> Iterator[str]:
    """Compare two descriptions, the first of which may be `shortened`.

    Yields:
        One line for each value that differs: where, what it was, what it is.
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
    """Return the first URL of a description with its size and version, else the description, cut."""
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
    """Compare the description in a checkpoint with that of the graph.

    Args:
        was: From the checkpoint.
        now: From the graph.
        trust_data: Do not compare URLs and versions of sources.

    Raises:
        CheckpointMismatchError: They differ; the message has the first differences.
    """
    if trust_data:
        was, now = _without_place(was), _without_place(now)
    found = list(differences(was, now))
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CheckpointMismatchError(
            f"the checkpoint is of another graph or of other data: {'; '.join(found[:_SHOWN])}{more}. Restore the "
            "graph and the data that it was made with, or start without it; data that was only copied may be vouched "
            "for with trust_data=True"
        )


def require_format(found: Any, expected: int) -> None:
    """Compare the format version of a checkpoint.

    Raises:
        CheckpointMismatchError: It is another.
    """
    if found != expected:
        raise CheckpointMismatchError(
            f"expected a checkpoint of format {expected}, found {found!r}; read it with the ledgerbeam that wrote it"
        )


def require_shard(saved: Any, own: tuple[int, int]) -> None:
    """Compare the shard of a checkpoint with that of the graph; None in a checkpoint fits all.

    Raises:
        CheckpointMismatchError: It is another.
    """
    if saved is not None and tuple(saved) != own:
        raise CheckpointMismatchError(
            f"expected a checkpoint of shard {own[0]} of {own[1]}, found one of shard {saved[0]} of {saved[1]}; call "
            f"partition({saved[0]}, {saved[1]}) before, or merge_states with the states of all {saved[1]} shards to go "
            "on with another number"
        )


def _without_place(found: Any) -> Any:
    if is_digest(found):
        return without_exact(found)
    if isinstance(found, Mapping):
        return {key: _without_place(value) for key, value in found.items() if key not in _PLACE}
    if isinstance(found, (list, tuple)):
        return [_without_place(value) for value in found]
    return found
