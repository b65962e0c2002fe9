"""User functions: importing them by name, and their part in a job's identity."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.user_errors import describe_error, is_interrupt

__all__ = ["code_identity", "function_identity", "import_function", "import_object"]


def import_function(reference: str) -> Callable[[Any], Any]:
    """Imports ``package.module:function``; the working folder counts as on the import path.

    Raises:
        FunctionError: If the reference has another form or names something else, or the import fails; the message says
            how.
    """
    target = import_object(reference)
    if not callable(target):
        raise FunctionError(f"{reference}: expected a function, found {type(target).__name__}")
    function: Callable[[Any], Any] = target
    return function


def import_object(reference: str) -> Any:
    """Imports what ``package.module:name`` names, as `import_function` does.

    Raises:
        FunctionError: If the reference has another form, or the import fails; the message says how.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise FunctionError(f"{reference!r}: expected module:function, for example cleaning:normalise")
    folder = _working_folder()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        target: Any = importlib.import_module(module_name)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise FunctionError(
            f"{reference}: module {module_name!r} cannot be imported: {describe_error(error)}; "
            f"it is looked for in {folder} and on PYTHONPATH"
        ) from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            offers = sorted(n for n, v in vars(target).items() if inspect.isfunction(v) and not n.startswith("_"))
            raise FunctionError(
                f"{reference}: {module_name!r} has no {name!r}; it has {', '.join(offers[:10]) or 'no functions'}"
            )
        target = getattr(target, name)
    return target


def function_identity(reference: str) -> dict[str, str]:
    """Returns what of user code goes into a job's fingerprint: its import path and its module's source hash.

    Args:
        reference: ``module:function``; or ``module:object``, of which the module named counts, not that of its class.

    Raises:
        FunctionError: As `import_object`.
    """
    found = import_object(reference)
    module = inspect.getmodule(found) if inspect.isroutine(found) or inspect.isclass(found) else None
    # A compiled or built-in module has no source; its path alone names it.
    source = _source(module or sys.modules[reference.partition(":")[0]]) or ""
    return {"function": reference, "function_source": _digest(source)}


def code_identity(*functions: Callable[..., Any]) -> dict[str, str]:
    """Returns what of functions goes into a job's parameters: their names, and the hashes of their modules' sources.

    An edit of such a module then makes another job of it, as `function_identity` does by name.

    Args:
        functions: Functions, methods and classes of modules; a `functools.partial` counts by its function alone.

    Raises:
        FunctionError: If one has no source that could be hashed, or two have the same name.
    """
    found: dict[str, str] = {}
    for function in functions:
        code = inspect.unwrap(function)
        while isinstance(code, functools.partial):
            code = inspect.unwrap(code.func)
        module = inspect.getmodule(code) if inspect.isroutine(code) or inspect.isclass(code) else None
        source = module and _source(module)
        if not source:
            raise FunctionError(
                f"{code!r:.200}: it has no source that can be hashed; give functions, methods and classes that stand "
                "in a file"
            )
        if found.setdefault(code.__qualname__, _digest(source)) != _digest(source):
            raise FunctionError(f"two functions are called {code.__qualname__}; give them names of their own")
    return found


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # a function has removed it
        return os.path.abspath(os.sep)


def _source(module: ModuleType) -> str | None:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return None


def _digest(source: str) -> str:
    return hashlib.blake2b(source.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
