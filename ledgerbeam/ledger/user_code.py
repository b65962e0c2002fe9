"""User functions by name: importing them, and their part in a job's identity."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ledgerbeam.errors import FunctionError

__all__ = ["function_identity", "import_function", "import_object", "last_frame"]


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
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:
        where = "" if isinstance(error, ModuleNotFoundError) else f" ({last_frame(error)})"
        raise FunctionError(
            f"{reference}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}{where}; "
            f"it is looked for in {os.getcwd()} and on PYTHONPATH"
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
    module = module or sys.modules[reference.partition(":")[0]]
    try:
        source = inspect.getsource(module).encode()
    except (OSError, TypeError):
        source = b""  # a compiled or built-in module has no source; its path alone names it
    return {"function": reference, "function_source": hashlib.blake2b(source, digest_size=8).hexdigest()}


def last_frame(error: BaseException) -> str:
    """Returns ``file:line`` of where `error` was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"
