"""Checks of a user's object: a function, an object with ``__call__``, or a class to be built; its call and values."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ledgerbeam._base.redaction import refuse_secrets
from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.user_code.loading import Reference, import_function

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

OF_A_RECORD, OF_A_GROUP = ("record",), ("the key", "its records")
"""Descriptions of the positional arguments of a user's object: for most commands, and for ``group``."""

BATCH_INVARIANT = "batch_invariant"
"""Attribute of a function or a class. False means that its result for a record depends on the other records of the
batch."""

DEEPEST = 20
"""Largest number of levels of a value of `--set`. A job with a deeper one could not be read again."""


def import_callable(reference: Reference) -> Callable[..., Any]:
    """Import ``module:object``, and refuse objects that cannot be functions of records.

    Raises:
        FunctionError: It cannot be imported, or is a generator or coroutine function, or a class without ``__call__``.
    """
    target = import_function(reference)
    if is_built(target) and not any("__call__" in vars(base) for base in target.__mro__):  # type: ignore[attr-defined]
        raise FunctionError(
            f"{reference} is a class without __call__: expected a function, or a class whose objects take a record; "
            "define __call__(self, record)"
        )
    called = _called(target)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise FunctionError(
            f"{reference} is a generator function: expected one that returns a record, None or a list of records; "
            "collect the records in a list, and return it"
        )
    if inspect.iscoroutinefunction(called):
        raise FunctionError(
            f"{reference} is a coroutine function: expected one that returns its result; remove `async`, or call it "
            "with asyncio.run in another function"
        )
    return target


def is_built(target: Any) -> bool:
    """Return whether an object is a class, which each worker process builds once."""
    return inspect.isclass(target)


def depends_on_batches(target: Any) -> bool:
    """Return whether a function or class declares that its results depend on the batching of records."""
    return getattr(target, BATCH_INVARIANT, True) is False


def check_object(
    reference: Reference, values: Mapping[str, Any], given: Sequence[str] = OF_A_RECORD
) -> Callable[..., Any]:
    """Import the object to be called with records, and check that it takes the values of ``--set``.

    Args:
        reference: ``module:object``, or the object itself.
        values: Values by the names of parameters.
        given: Descriptions of the positional arguments.

    Raises:
        FunctionError: See `import_callable`.
        UsageError: It does not take a parameter of such a name, or needs one that is not given.
    """
    target = import_callable(reference)
    try:
        signature = _signature(target)
    except (ValueError, TypeError):  # some callables that are not written in Python have no signature
        return target
    parameters = list(signature.parameters.values())
    record = None if is_built(target) else next(iter(parameters), None)
    takes_any = record is not None and record.kind is record.VAR_POSITIONAL
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if not is_built(target) and not takes_any and len(by_position) < len(given):
        first = "its first parameter is the record" if len(given) == 1 else f"it is called with {' and '.join(given)}"
        raise FunctionError(
            f"{reference}: expected a function of {'one record' if len(given) == 1 else ' and '.join(given)}, found "
            f"{str(reference).partition(':')[2]}{signature}; {first}"
        )
    takes = parameters if record is None or takes_any else parameters[len(given) :]
    named = [one.name for one in takes if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if not any(one.kind is one.VAR_KEYWORD for one in takes):
        for name in values:
            if name not in named:
                raise UsageError(_unknown(str(reference), name, named, record))
    elif record is not None and record.kind is record.POSITIONAL_OR_KEYWORD and record.name in values:
        raise UsageError(_unknown(str(reference), record.name, named, record))
    needed = [one.name for one in takes if one.default is one.empty and one.kind not in _ANY_NUMBER]
    missing = [name for name in needed if name not in values]
    if missing:
        raise UsageError(
            f"{reference} needs {' and '.join(map(repr, missing))}: give a value with --set {missing[0]}=VALUE"
        )
    return target


def read_values(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Read the values of ``--set``: a mapping, or a sequence of ``NAME=VALUE``, each value decoded as JSON if possible.

    Raises:
        UsageError: A value has another form, cannot be stored as JSON, or a name is given twice.
    """
    if isinstance(given, Mapping):
        return {name: _json_value(name, value) for name, value in given.items()}
    values: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set {word}: expected NAME=VALUE, with the name of a parameter such as threshold=0.5")
        if name in values:
            raise UsageError(f"--set {name} is given twice; a list is one value: --set '{name}=[1, 2]'")
        values[name] = _value(refuse_secrets(value, f"a value of --set {name}"))
        _require_shallow(word, values[name], DEEPEST)
    encode(values)  # raises for values that a ledger cannot store
    return values


def _json_value(name: str, value: Any) -> Any:
    """Return a value as JSON would decode it, so that the function gets the same value in every process."""
    _require_shallow(name, value, DEEPEST)
    try:
        kept = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"set: {name!r} is a {type(value).__name__} that JSON cannot hold ({error}); give numbers, texts, lists "
            "and mappings of texts, or functools.partial of the function, with any values"
        ) from None
    for text in _texts(kept):
        refuse_secrets(text, f"a value of set, {name}")
    encode({name: kept})  # raises for values that a ledger cannot store
    return kept


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _no_json(word: str) -> Any:
    raise ValueError(word)


def _finite(word: str) -> float:
    return value if math.isfinite(value := float(word)) else _no_json(word)


def _require_shallow(word: str, value: Any, left: int) -> None:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if inner and not left:
        raise UsageError(f"--set {word[:60]}...: expected a value of at most {DEEPEST} levels, found more")
    for part in inner:
        _require_shallow(word, part, left - 1)


def _called(target: Any) -> Any:
    """Return the function that is called with a record: below partials; for an object or a class its ``__call__``."""
    while isinstance(target, functools.partial):
        target = target.func
    if is_built(target):
        return target.__call__
    return target if inspect.isroutine(target) else type(target).__call__


def _signature(target: Any) -> inspect.Signature:
    """Return the signature of a callable.

    `inspect.signature` removes a parameter from the ``__call__`` of an object's class even if it is not a method.
    """
    if inspect.isclass(target) or inspect.isroutine(target) or isinstance(target, functools.partial):
        return inspect.signature(target)
    held = inspect.getattr_static(type(target), "__call__")
    if isinstance(held, functools.singledispatchmethod):  # its result is not bound, but its function is
        return inspect.signature(held.func.__get__(target))
    return inspect.signature(target.__call__)


def _unknown(reference: str, name: str, named: list[str], record: inspect.Parameter | None) -> str:
    takes = f"it takes {', '.join(named)}" if named else "it takes none"
    if record is not None and name == record.name:
        return f"--set {name}: {reference} is given each record as {name!r}; {takes}"
    return f"--set {name}: {reference} has no such parameter; {takes}"
