"""Types of the values of options: the check of a value, and the words of a type in messages.

Calls in Python, steps of flows and their defaults are checked before any value is used.
"""

from __future__ import annotations

import numbers
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Union, get_args, get_origin

_SECRET = ("storage_options",)
"""Options whose values are never shown."""


def words_of(hint: Any) -> tuple[Any, ...]:
    """Return the only values of a type, with None if it is one of them; nothing for a type that has other values."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    values = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return (*values, *([None] if values and types.NoneType in kinds else []))


def expected_type(value: Any, hint: Any) -> str | None:
    """Return what a type expects, in words, if a value is not of it; None if it is."""
    return None if _fits(value, hint) else _shown(hint)


def shown_value(name: str, value: object) -> str:
    """Return the value of an option as messages show it."""
    return f"a {type(value).__name__}, not shown as it may be secret" if name in _SECRET else f"{value!r:.80}"


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    kind = origin or hint
    if kind is int:
        return not isinstance(value, bool) and _is_whole(value)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, numbers.Real)
    if kind is types.NoneType:
        return value is None
    if kind is Callable:
        return callable(value)
    if kind in (Iterable, Sequence):
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, kind):
            return False
        return isinstance(value, Iterator) or all(_fits(one, parts[0]) for one in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(one, parts[1]) for key, one in value.items()
        )
    return isinstance(value, kind)


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    PathLike: "a path or a URL",
    Callable: "a function",
    Iterable: "a list",
    Sequence: "a list",
    Mapping: "a table",
}


def _shown(hint: Any) -> str:
    """Return a type as people read it."""
    if values := words_of(hint):
        return f"one of {', '.join(map(repr, values))}"
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if PathLike in kinds:  # text or not
        kinds.remove(str)
    return " or ".join(dict.fromkeys(_WORDS[kind] for kind in kinds if kind in _WORDS))
