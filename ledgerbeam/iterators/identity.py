"""What a checkpoint belongs to: describing functions and sources, and comparing descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ledgerbeam.errors import CheckpointMismatchError
from ledgerbeam.io.storage.stat import FileInfo

__all__ = ["describe_function", "describe_source", "differences", "require_format", "require_same", "require_shard"]

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


def differences(was: Any, now: Any, path: str = "") -> Iterator[str]:
    """Compare two descriptions.

    Yields:
        One line for each value that differs: where, what it was, what it is.
    """
    if isinstance(was, Mapping) and isinstance(now, Mapping):
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
    if isinstance(found, Mapping):
        return {key: _without_place(value) for key, value in found.items() if key not in _PLACE}
    if isinstance(found, (list, tuple)):
        return [_without_place(value) for value in found]
    return found
