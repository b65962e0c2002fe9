"""References of jobs to user functions, by module and name or as pickled objects, and how they are loaded."""

from __future__ import annotations

import base64
import importlib
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.user_code.guards import describe_error, is_interrupt, no_exit

# Value of the environment variable PYTHONSAFEPATH that keeps the working folder off the import path of Python
# processes. It is removed before user code runs, so that processes started by user code do not inherit it.
SAFE_PATH = "ledgerbeam"

MAIN = "__main__"  # the module of a script, a notebook or a prompt. It is a different module in each process.


@dataclass(frozen=True)
class PickledObject:
    """An object that other processes cannot import by a name. The job's launcher pickles it, with all its parts.

    Like an imported module, a pickle may run any code when it is loaded.
    """

    name: str  # for people, such as ``__main__:clean``
    data: str  # base64

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{self.name}, pickled>"

    def load(self) -> Any:
        """Return the object. A process loads it once. Raises FunctionError if it cannot be loaded."""
        key = blake2b(self.data.encode(), digest_size=16).digest()
        with _loading:
            if key not in _loaded:
                _loaded[key] = self._load()
            return _loaded[key]

    def _load(self) -> Any:
        try:
            return pickle.loads(base64.b64decode(self.data))  # noqa: S301 - pickled by the launcher of this job
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise FunctionError(
                f"{self.name}: it cannot be loaded in a worker: {describe_error(error)}; its modules must be installed "
                "there, or be on PYTHONPATH"
            ) from error


@dataclass(frozen=True)
class GivenObject:
    """An object that Beam sends to the workers with the pipeline, and its name for messages."""

    name: str
    target: Any

    def __str__(self) -> str:
        return self.name

    def load(self) -> Any:
        """Return the object."""
        return self.target


Reference = str | PickledObject | GivenObject  # of a job to the object that it calls: ``module:object``, or the object

_loaded: dict[bytes, Any] = {}
_loading = threading.RLock()


def _forget_lock_after_fork() -> None:
    global _loading  # noqa: PLW0603 - the inherited one may be held by a thread that does not exist here
    _loading = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_after_fork)


class _WorkingFolder:
    """Import finder for the working folder, for modules that Python finds nowhere else.

    Python, the library and its dependencies import some modules on first use, and a file in the folder must not replace
    one of them. Even at the end of `sys.path`, it could replace a package without `__init__.py`, such as `google`.
    """

    folder = ""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module by its full name, unless it is in a package: packages find their own modules."""
        # Some names of the standard library are imported on systems that do not have them: winreg, for example.
        is_own = path is None and name not in sys.stdlib_module_names
        return PathFinder.find_spec(name, [self.folder]) if is_own else None


_finder = _WorkingFolder()


def import_function(reference: Reference) -> Callable[[Any], Any]:
    """Import ``package.module:function``. If Python does not find the module, it is searched in the working folder.

    A reference that is an object, such as `PickledObject`, is loaded. Raises FunctionError with the cause; also if the
    working folder has the module, but Python finds another module of that name first.
    """
    target = import_object(reference)
    if not callable(target):
        raise FunctionError(f"{reference}: expected a function, found {type(target).__name__}")
    function: Callable[[Any], Any] = target
    return function


def import_object(reference: Reference) -> Any:
    """Import ``package.module:name``, like `import_function`, but any object, callable or not."""
    if not isinstance(reference, str):
        return reference.load()
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute or "/" in attribute:  # "/": a URL in the place of a function
        raise FunctionError(f"{reference!r}: expected module:function, for example cleaning:normalise")
    if module_name == MAIN:
        raise FunctionError(
            f"{reference}: {MAIN} is a different module in each process; put the function into a file of its own, such "
            f"as cleaning.py, and name it cleaning:{attribute}, or call ledgerbeam from Python with the function itself"
        )
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:
        del os.environ["PYTHONSAFEPATH"]
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # a function has removed the folder
        folder = os.path.abspath(os.sep)
    _require_one(reference, folder)
    _finder.folder = folder
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    try:
        with no_exit():
            target: Any = importlib.import_module(module_name)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise FunctionError(f"{reference}: {_why_not(error, module_name, attribute, folder)}") from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            offers = sorted(n for n, v in vars(target).items() if inspect.isfunction(v) and not n.startswith("_"))
            raise FunctionError(
                f"{reference}: {module_name!r} has no {name!r}; it has {', '.join(offers[:10]) or 'no functions'}"
            )
        target = getattr(target, name)
    return target


def _why_not(error: BaseException, module: str, attribute: str, folder: str) -> str:
    """Return the reason why a module cannot be imported: it does not exist, or an import in it raised."""
    missing = error.name if type(error) is ModuleNotFoundError else None
    if type(missing) is str and f"{module}.".startswith(f"{missing}."):
        remedy = f"; name the module, not its file: {module[:-3]}:{attribute}" if module.endswith(".py") else ""
        return (
            f"there is no module {missing!r}; it was searched on PYTHONPATH, among installed packages, and in "
            f"{folder}{remedy}"
        )
    return f"module {module!r} cannot be imported: {describe_error(error)}"


def _require_one(reference: str, folder: str) -> None:
    """Raise FunctionError if a module of the working folder is hidden by another module of the same name."""
    name = reference.partition(":")[0].partition(".")[0]
    own = PathFinder.find_spec(name, [folder])
    if own is None or own.origin is None:  # a folder without __init__.py, such as a data folder, hides nothing
        return
    try:
        other = find_spec(name)
    except (ImportError, ValueError):  # the module was loaded without a record of its file
        other = ModuleSpec(name, None)
    if other is None or (other.origin and os.path.exists(other.origin) and os.path.samefile(own.origin, other.origin)):
        return
    raise FunctionError(
        f"{reference}: {own.origin} is hidden by another module {name!r}, {other.origin or 'a package'}, which Python "
        "or a package may need; rename your module, and use its new name"
    )
