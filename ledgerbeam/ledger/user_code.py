"""User functions by name: importing them, and their part in a job's identity."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ledgerbeam.errors import FunctionError

SAFE_PATH = "ledgerbeam"
"""Value of the environment variable PYTHONSAFEPATH that keeps the working folder off the path of Python processes that
are not our own; whatever user code starts does without it."""

__all__ = ["SAFE_PATH", "function_identity", "import_function", "import_object", "last_frame"]


class _WorkingFolder:
    """Finds in a folder what is found nowhere else.

    Python, the library and its dependencies import some of their modules on first use, and a file in the folder must
    not stand for one of them. At the end of `sys.path` it could: for a package without `__init__.py`, such as `google`.

    Attributes:
        folder: The working folder of the last reference that was imported.
    """

    folder = ""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds a module by its full name; those in packages are found by the packages."""
        # Python's own names are tried on systems that do not have them: winreg, for example.
        is_own = path is None and name not in sys.stdlib_module_names
        return PathFinder.find_spec(name, [self.folder]) if is_own else None


_working_folder = _WorkingFolder()


def import_function(reference: str) -> Callable[[Any], Any]:
    """Imports ``package.module:function``; a module that is found nowhere else is looked for in the working folder.

    Raises:
        FunctionError: If the reference has another form or names something else, or the import fails; the message says
            how. Also if the working folder has such a module, and another of its name comes before it.
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
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:
        del os.environ["PYTHONSAFEPATH"]
    folder = os.getcwd()
    _require_one(reference, folder)
    _working_folder.folder = folder
    if _working_folder not in sys.meta_path:
        sys.meta_path.append(_working_folder)
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:
        where = "" if isinstance(error, ModuleNotFoundError) else f" ({last_frame(error)})"
        raise FunctionError(
            f"{reference}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}{where}; "
            f"it is looked for on PYTHONPATH, among what is installed, and in {folder}"
        ) from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            offers = sorted(n for n, v in vars(target).items() if inspect.isfunction(v) and not n.startswith("_"))
            raise FunctionError(
                f"{reference}: {module_name!r} has no {name!r}; it has {', '.join(offers[:10]) or 'no functions'}"
            )
        target = getattr(target, name)
    return target


def _require_one(reference: str, folder: str) -> None:
    """Refuses a module of the working folder that another of its name hides."""
    name = reference.partition(":")[0].partition(".")[0]
    own = PathFinder.find_spec(name, [folder])
    if own is None or own.origin is None:  # a folder without __init__.py, as one of data is, hides nothing
        return
    other = _found_first(name)
    if other is None or (other.origin and os.path.exists(other.origin) and os.path.samefile(own.origin, other.origin)):
        return
    raise FunctionError(
        f"{reference}: {own.origin} is hidden by another module {name!r}, {other.origin or 'a package'}, which Python "
        "or a package may need; rename yours, and name it by its new name"
    )


def _found_first(name: str) -> ModuleSpec | None:
    """Returns what an import of a module finds on the path as it is."""
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # loaded by somebody who left no word of where it is from
        return ModuleSpec(name, None)


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
