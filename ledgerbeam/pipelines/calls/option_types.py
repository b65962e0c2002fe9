"""Types of the options of calls: a value that does not fit is refused, whoever gives it.

The signature of a call is the one place that says what an option may be. Calls in Python, steps of flows and their
defaults are checked by it, before any value is used.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ledgerbeam.errors import UsageError

_UNCHECKED = ("progress", "options")
"""Options that `begin_call` and `checked_options` check: the console, and those of Beam."""

_SECRET = ("storage_options",)
"""Options whose values are never shown."""


@functools.cache
def option_types(call: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of the options of a call: its keyword parameters, in the order of its signature."""
    call = inspect.unwrap(call)
    hints = get_type_hints(call)
    parameters = inspect.signature(call).parameters
    return {name: hints[name] for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def choices(call: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values that a call may be given for each option that has only some."""
    found = {name: _choices(hint) for name, hint in option_types(call).items()}
    return {name: values for name, values in found.items() if values}


def refuse_unfit(call: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError if a value is not of the type of its option.

    Args:
        call: The call.
        options: Values by name; what is no option of the call is not looked at.
    """
    hints = option_types(call)
    for name, value in options.items():
        if name in hints and name not in _UNCHECKED and (expected := expected_type(value, hints[name])):
            raise UsageError(f"{name}: expected {expected}, found {shown_value(name, value)}")


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


def _choices(hint: Any) -> tuple[Any, ...]:
    """Return the only values that a type has; nothing if it has others."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    values = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return (*values, *([None] if values and types.NoneType in kinds else []))


def _shown(hint: Any) -> str:
    """Return a type as people read it."""
    if values := _choices(hint):
        return f"one of {', '.join(map(repr, values))}"
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if PathLike in kinds:  # text or not
        kinds.remove(str)
    return " or ".join(dict.fromkeys(_WORDS[kind] for kind in kinds if kind in _WORDS))
