"""User functions: importing them by name, and their part in a job's identity."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.user_errors import describe_error, is_interrupt

SAFE_PATH = "ledgerbeam"
"""Value of the environment variable PYTHONSAFEPATH that keeps the working folder off the path of Python processes that
are not our own; whatever user code starts does without it."""

__all__ = ["SAFE_PATH", "code_identity", "import_function", "import_object"]


class _WorkingFolder:
    """Finds in a folder what is found nowhere else.

    Python, the library and its dependencies import some of their modules on first use, and a file in the folder must
    not stand for one of them. At the end of `sys.path` it could: for a package without `__init__.py`, such as `google`.

    Attributes:
        folder: The working folder of the last reference that was imported.
    """

    folder = ""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module by its full name; those in packages are found by the packages."""
        # Python's own names are tried on systems that do not have them: winreg, for example.
        is_own = path is None and name not in sys.stdlib_module_names
        return PathFinder.find_spec(name, [self.folder]) if is_own else None


_finder = _WorkingFolder()


def import_function(reference: str) -> Callable[[Any], Any]:
    """Import ``package.module:function``; a module that is found nowhere else is looked for in the working folder.

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
    """Import what ``package.module:name`` names, as `import_function` does.

    Raises:
        FunctionError: If the reference has another form, or the import fails; the message says how.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise FunctionError(f"{reference!r}: expected module:function, for example cleaning:normalise")
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:
        del os.environ["PYTHONSAFEPATH"]
    folder = _working_folder()
    _require_one(reference, folder)
    _finder.folder = folder
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    try:
        target: Any = importlib.import_module(module_name)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise FunctionError(
            f"{reference}: module {module_name!r} cannot be imported: {describe_error(error)}; "
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
    """Refuse a module of the working folder that another of its name hides."""
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
    """Return what an import of a module finds on the path as it is."""
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # loaded in a way that left no record of its file
        return ModuleSpec(name, None)


def code_identity(*functions: Callable[..., Any]) -> dict[str, str]:
    """Return what of functions goes into a job's parameters: their names, and the hashes of their modules' sources.

    An edit of such a module then makes another job of it.

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
