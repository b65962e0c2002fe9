"""User functions as jobs name them: by module and name, or with all that they are made of, as `PickledObject`."""

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
from ledgerbeam.user_code.errors import describe_error, is_interrupt
from ledgerbeam.user_code.guards import no_exit

SAFE_PATH = "ledgerbeam"
"""Value of the environment variable PYTHONSAFEPATH that keeps the working folder off the path of Python processes that
are not our own; whatever user code starts does without it."""


MAIN = "__main__"
"""The module of a script, a notebook or a prompt: it is another one in each process."""


@dataclass(frozen=True)
class PickledObject:
    """An object that no name leads to, or none that means the same in another process, with all that it is made of.

    Attributes:
        name: For people, such as ``__main__:clean``.
        data: Its pickle, in base64. Like a module that is imported, it may run anything when it is loaded: a job
            carries only what its own launcher has pickled.
    """

    name: str
    data: str

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{self.name}, pickled>"

    def load(self) -> Any:
        """Return the object: the same one each time in a process.

        Raises:
            FunctionError: It cannot be loaded; the message says why.
        """
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
                f"{self.name}: it cannot be loaded in a worker: {describe_error(error)}; modules that it imports must "
                "be there: installed, or on PYTHONPATH"
            ) from error


@dataclass(frozen=True)
class GivenObject:
    """An object that a Beam pipeline takes to its workers itself.

    Attributes:
        name: For people, such as ``__main__:clean``.
        target: The object.
    """

    name: str
    target: Any

    def __str__(self) -> str:
        return self.name

    def load(self) -> Any:
        """Return the object."""
        return self.target


Reference = str | PickledObject | GivenObject
"""How a job names what it calls: ``module:object``, or the object itself."""

_loaded: dict[bytes, Any] = {}
_loading = threading.RLock()


def _forget_lock_after_fork() -> None:
    global _loading  # noqa: PLW0603 - the inherited one may be held by a thread that does not exist here
    _loading = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_after_fork)


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


def import_function(reference: Reference) -> Callable[[Any], Any]:
    """Import ``package.module:function``; a module that is found nowhere else is looked for in the working folder.

    An object that is not named is loaded.

    Raises:
        FunctionError: If the reference has another form or names something else, or the import fails; the message says
            how. Also if the working folder has such a module, and another of its name comes before it.
    """
    target = import_object(reference)
    if not callable(target):
        raise FunctionError(f"{reference}: expected a function, found {type(target).__name__}")
    function: Callable[[Any], Any] = target
    return function


def import_object(reference: Reference) -> Any:
    """Import what ``package.module:name`` names, as `import_function` does.

    Raises:
        FunctionError: If the reference has another form, or the import fails; the message says how.
    """
    if not isinstance(reference, str):
        return reference.load()
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute or "/" in attribute:  # a URL, where a function was forgotten
        raise FunctionError(f"{reference!r}: expected module:function, for example cleaning:normalise")
    if module_name == MAIN:
        raise FunctionError(
            f"{reference}: {MAIN} is another module in each process; put the function into a file of its own, such as "
            f"cleaning.py, and name it cleaning:{attribute}, or call ledgerbeam from Python with the function itself"
        )
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:
        del os.environ["PYTHONSAFEPATH"]
    folder = _working_folder()
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
    """Return why a module cannot be imported: there is none, or it, or what it imports, raised."""
    missing = error.name if type(error) is ModuleNotFoundError else None
    if type(missing) is str and f"{module}.".startswith(f"{missing}."):
        remedy = f"; name the module, not its file: {module[:-3]}:{attribute}" if module.endswith(".py") else ""
        return (
            f"there is no module {missing!r}; it is looked for on PYTHONPATH, among what is installed, and in "
            f"{folder}{remedy}"
        )
    return f"module {module!r} cannot be imported: {describe_error(error)}"


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


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # a function has removed it
        return os.path.abspath(os.sep)
