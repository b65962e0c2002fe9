"""User functions of jobs, and their part in the job's identity: a name, or the pickled object."""

from __future__ import annotations

import base64
import functools
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import FunctionError
from ledgerbeam.user_code.adapters import adapter_of
from ledgerbeam.user_code.functions import (
    CACHED,
    FunctionParts,
    attributes_of,
    function_name,
    function_parts,
    is_dispatcher,
    made_of,
)
from ledgerbeam.user_code.guards import describe_error, is_interrupt
from ledgerbeam.user_code.loading import MAIN, PickledObject, Reference, import_object
from ledgerbeam.user_code.modules import reference_to

_log = library_logger(__name__)


@dataclass(frozen=True)
class UserFunction:
    """A user's function in a job."""

    reference: Reference  # reference by which the job's processes load it
    # Hashes of its parts that affect the outputs, in groups: ``module``, and for a pickled object ``code`` and
    # ``captured value``.
    made_of: dict[str, dict[str, str]]


def user_function(
    given: str | Callable[..., Any], values: Mapping[str, Any] | None = None, style: str | None = None
) -> UserFunction:
    """Return a user's function for a job.

    A function of a module is identified by its name, so a call with it and a command with its name are the same job.
    For an object of another library, the values of ``--set`` may name assets, and its adapter may log notes.

    Raises:
        FunctionError: The function cannot be imported, or cannot be sent to other processes.
    """
    target = import_object(given) if isinstance(given, str) else given
    adapter = adapter_of(target, style)
    for note in adapter.notes(target, values or {}) if adapter else ():
        _log.warning("%s: %s", given if isinstance(given, str) else function_name(given), note)
    reference = reference_to(target) or given
    if isinstance(reference, str):
        return UserFunction(reference, made_of(reference, values, style))
    sent = adapter.portable(target) if adapter else target
    name, parts = function_name(sent), function_parts(sent)
    data = _pickled(sent, name, parts)
    _require_stable(data, name, parts)
    identity = adapter.identity(target, values or {}) if adapter else {}
    return UserFunction(PickledObject(name, base64.b64encode(data).decode()), {**parts.as_parameters(), **identity})


def _pickled(function: Callable[..., Any], name: str, parts: FunctionParts) -> bytes:
    import cloudpickle  # noqa: PLC0415 - few jobs need it

    class Pickler(cloudpickle.Pickler):
        """Pickles cached functions, dispatchers and properties, too; pickle stores their names only, or fails."""

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, CACHED) and reference_to(value) is None:
                return _cached, (value.__wrapped__, *value.cache_parameters().values()), attributes_of(value)
            if is_dispatcher(value) and reference_to(value) is None:
                return _dispatcher, (list(value.registry.items()),)
            if isinstance(value, functools.cached_property):
                return _cached_property, (type(value), value.func, value.attrname)
            if isinstance(value, property) and type(value) is not property:
                return type(value), (value.fget, value.fset, value.fdel, value.__doc__)
            return super().reducer_override(value)

    made = io.BytesIO()
    try:
        with _by_value(parts.unfound):
            Pickler(made, protocol=pickle.HIGHEST_PROTOCOL).dump(function)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise FunctionError(
            f"{name}: it cannot be sent to other processes: {describe_error(error)}; inside the function, create the "
            "object that cannot be sent; or give a class, of which each worker builds one object"
        ) from error
    return made.getvalue()


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _dispatcher(functions: list[tuple[type, Callable[..., Any]]]) -> Any:
    by_type = dict(functions)
    made = functools.singledispatch(by_type.pop(object))
    for kind, function in by_type.items():
        made.register(kind, function)
    return made


def _cached_property(kind: type[Any], function: Callable[[Any], Any], name: str | None) -> Any:
    made = kind(function)
    made.attrname = name  # as a class sets it for functions in its body
    return made


@contextmanager
def _by_value(modules: Iterable[str]) -> Iterator[None]:
    """In the `with` block, pickle `modules` by value, with the function. They exist only in this process."""
    import cloudpickle  # noqa: PLC0415 - few jobs need it

    added = [sys.modules[name] for name in modules if name not in cloudpickle.list_registry_pickle_by_value()]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


class _Loader(pickle.Unpickler):  # noqa: S301 - pickled by this process
    """Loads a pickled object, and refuses objects that other processes would not find in their `__main__`."""

    def find_class(self, module: str, name: str) -> Any:
        if module == MAIN:
            raise FunctionError(f"it refers to {name} of {MAIN}, which other processes do not have")
        return super().find_class(module, name)


def _require_stable(data: bytes, name: str, parts: FunctionParts) -> None:
    """Raise FunctionError for an object that changes when it is pickled: the next run would be another job."""
    try:
        loaded = function_parts(_Loader(io.BytesIO(data)).load())
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise FunctionError(
            f"{name}: it cannot be loaded in another process: {describe_error(error)}; move it to a module of its own"
        ) from error
    for group in ("values", "code"):
        was, now = getattr(parts, group), getattr(loaded, group)
        for part in sorted({*was, *now}):
            if was.get(part) != now.get(part):
                what = f"the captured value {part}" if group == "values" else f"the code of {part}"
                raise FunctionError(
                    f"{name}: {what} differs each time it is pickled, so a later run would be another job; create it "
                    "inside the function, or give a class and its values"
                )
