"""Modules that belong to a job's identity: the user's own files that a function's module imports.

They are found in the sources, without running anything: an import in a function counts like one at the top. Installed
modules (the standard library, packages, ledgerbeam) are distinguished from the user's own files by their folder.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER, find_spec
from pkgutil import iter_modules
from struct import pack
from types import FunctionType, ModuleType
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.job import note_text
from ledgerbeam.user_code.analysis import EVERY, STAR, exported_names, imported_modules
from ledgerbeam.user_code.loading import MAIN, import_object

MODULES = "module"  # name of the group in a job's parameters with the hashes of modules by name
NO_SOURCE = "no source"  # value in place of the hash for a module without a file, such as a built-in one

_SOURCES = (".py", ".pyw")
_HASH = re.compile(r"[0-9a-f]{16}")
_STAMPED = 16
"""Length of the header of a bytecode file: a magic number, flags, time and size of the source, or a hash of it."""
_UNCHECKED = pack("<I", 1)  # flags of bytecode that Python runs without checking the source
_PACKAGES = {"site-packages", "dist-packages"}  # names of folders of installed packages, also of another Python


def user_modules(reference: str) -> dict[str, str]:
    """Return the modules of an object's identity, each with a hash of its file.

    They are the module that the reference names, the modules that define the object and its class, and all of the
    user's own files that these import, directly or indirectly. An installed module is included only if it is named
    itself, or defines the object.
    """
    named = reference.partition(":")[0]
    return {name: known for name, known in modules_of(_roots(reference)).items() if known != NO_SOURCE or name == named}


def modules_of(names: Iterable[str]) -> dict[str, str]:
    """Return modules and the user's own modules that they import, directly or indirectly, each with a hash of its file.

    The user's own packages that contain them are added. Raises FunctionError if Python has compiled bytecode of a
    module from other content of its file, and would run it.
    """
    roots = {*names}
    roots |= {held for name in roots for held in {*_held(name)} if is_own(held)}
    roots |= {package for name in roots for package in _upwards(name) if is_own(package)}
    found = {name: _hash(_find(name)) for name in roots}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        for imported in _imported(name):
            spec = None if imported in found else _find(imported)
            if spec is not None and _is_own(spec):
                found[imported] = _hash(spec)
                waiting.append(imported)
    return {name: known for name, known in sorted(found.items()) if known is not None}


def recorded_modules(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules in a job's parameters, each with the hash of its file when the job was created."""
    found: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            is_group = name == MODULES  # a parameter of the user may have this name too
            known = value.items() if is_group else ()
            found |= {one: text for one, text in known if isinstance(text, str) and _HASH.fullmatch(text)}
            found |= recorded_modules(value)
    return found


def require_modules(recorded: Mapping[str, str], names: Iterable[str]) -> None:
    """Check that modules did not change since the job was created. Modules that are not found here are skipped.

    Raises FunctionError if the file of a module has other content than `recorded_modules` has.
    """
    for name in sorted(names):
        spec = _find(name)
        if spec is not None and _hash(spec) not in (None, NO_SOURCE, recorded[name]):
            raise FunctionError(
                f"{spec.origin}: the module {name} has changed since the job was created, and this worker started "
                "later: no results of its new code are recorded. Restore it, or run the same command again as another "
                "job (--on-job-change)"
            )


def name_in_sources(name: str, modules: Iterable[str]) -> bool:
    """Return whether the source of one of some modules contains a name, in code or anywhere else.

    A module without a source, or with an unreadable one, counts as containing it.
    """
    for module in modules:
        spec = _find(module)
        try:
            if spec is None or name.encode() in _read(spec):
                return True
        except OSError:
            return True
    return False


def reference_to(target: Any) -> str | None:
    """Return ``module:name`` of a function or class if it leads to the same one in another process; else None."""
    names = [(getattr(target, "__module__", None), getattr(target, "__qualname__", None))]
    if inspect.isfunction(target):  # a wrapper has the name of the wrapped function, but its own code
        names.append((target.__globals__.get("__name__"), getattr(target.__code__, "co_qualname", None)))
    for module, name in names:
        if isinstance(module, str) and isinstance(name, str) and _leads_to(module, name, target):
            return f"{module}:{name}"
    return None


def _leads_to(module: str, name: str, target: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    is_same = found is target or (inspect.ismethod(found) and found == target)  # methods are created on each access
    return is_same and is_found(module)


def is_found(name: str) -> bool:
    """Return whether another process finds a module by its name. A module may exist only in this process."""
    return name != MAIN and _find(name) is not None


def is_own(name: str) -> bool:
    """Return whether a module is one of the user's own files."""
    spec = _find(name)
    return spec is not None and _is_own(spec)


def _roots(reference: str) -> set[str]:
    target = import_object(reference)
    code: Any = inspect.unwrap(target) if callable(target) else target
    while hasattr(code, "func") and not inspect.isclass(code) and not inspect.isroutine(code):  # functools.partial
        code = inspect.unwrap(code.func)
    defined = code if inspect.isroutine(code) or inspect.isclass(code) else type(code)
    named = reference.partition(":")[0]
    above = {*inspect.getmro(defined), *inspect.getmro(type(defined))} if inspect.isclass(defined) else set()
    own = {kind.__module__ for kind in above if is_own(str(kind.__module__))}
    return {named, getattr(defined, "__module__", None) or named, *own}


def _upwards(name: str) -> Iterator[str]:
    """Yield the packages of a module, outermost first, and the module: importing it runs them all."""
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _find(name: str) -> ModuleSpec | None:
    """Return the spec of a module, without importing anything."""
    top, *inner = name.split(".")
    try:
        spec = find_spec(top)
        for part in inner:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, ValueError):  # the module was loaded without a record of its file
        return None
    return spec


def _is_own(spec: ModuleSpec) -> bool:
    """Return whether a module is a file of the user's own, or a folder without `__init__.py`, which may have such."""
    if spec.origin is None or not spec.has_location:
        return spec.origin is None and spec.submodule_search_locations is not None
    path = os.path.realpath(spec.origin)
    is_installed = any(path.startswith(folder) for folder in _installed())
    return not is_installed and not _PACKAGES & set(path.split(os.sep))


@functools.cache
def _installed() -> set[str]:
    """Return the folders of installed modules: of Python, and of this package."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(os.path.dirname(sys.modules["ledgerbeam"].__file__ or ""))
    return {os.path.join(os.path.realpath(folder), "") for folder in folders if folder}


def _hash(spec: ModuleSpec | None) -> str | None:
    """Return a hash of a module's file; None for a folder without `__init__.py`."""
    if spec is None or not spec.has_location or spec.origin is None:
        return None if spec is not None and spec.submodule_search_locations is not None else NO_SOURCE
    try:
        source = _read(spec)
    except OSError:
        return NO_SOURCE
    _require_bytecode_of(spec, source)
    digest = hashlib.blake2b(source, digest_size=8).hexdigest()
    if _is_own(spec):
        note_text(digest, source.decode)
    return digest


def _require_bytecode_of(spec: ModuleSpec, source: bytes) -> None:
    """Refuse a module if Python would run other code than its file has.

    Python runs its compiled bytecode if size and time of the source are unchanged; the time is in seconds.
    """
    if not str(spec.origin).endswith(_SOURCES) or not spec.cached:
        return
    try:
        with open(spec.cached, "rb") as file:
            cached = file.read()
        found = os.stat(str(spec.origin))
    except OSError:
        return
    stamp = pack("<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    is_used = cached[:_STAMPED] in (MAGIC_NUMBER + stamp, MAGIC_NUMBER + _UNCHECKED + cached[8:_STAMPED])
    if is_used and len(cached) > _STAMPED and not _is_compiled_of(cached[_STAMPED:], source, str(spec.origin)):
        raise FunctionError(
            f"{spec.cached}: it was compiled from other content of {spec.origin} with the same size and time, and "
            "Python would run it; delete it, then run the same command again"
        )


def _is_compiled_of(code: bytes, source: bytes, name: str) -> bool:
    try:
        known = marshal.loads(code)  # noqa: S302 - as an import does
    except (EOFError, TypeError, ValueError):  # the import reports the error
        return True
    try:
        return bool(known == compile(source, name, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):  # Python would run the bytecode without checking the source
        return False


def _read(spec: ModuleSpec) -> bytes:
    """Return the content of a module's file, which may be in an archive.

    Raises:
        OSError: The module has no file, or it cannot be read.
    """
    try:
        with open(str(spec.origin), "rb") as file:
            return file.read()
    except OSError:
        read: Callable[[str], bytes] | None = getattr(spec.loader, "get_data", None)
        if read is None:
            raise
        return read(str(spec.origin))


def _imported(name: str) -> Iterator[str]:
    """Yield the names that a module's source may import, including names that are not modules."""
    spec = _find(name)
    if spec is None or not (spec.origin or "").endswith(_SOURCES):
        return
    is_package = spec.submodule_search_locations is not None
    package = name if is_package else name.rpartition(".")[0]
    try:
        found = list(imported_modules(_read(spec), package, is_package=is_package))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for imported in found:
        source, _, last = imported.rpartition(".")
        if last in (EVERY, STAR):
            yield from _modules_in(source, only_exported=last == STAR)
        else:
            yield from _upwards(imported)


def _modules_in(package: str, *, only_exported: bool) -> Iterator[str]:
    """Yield the modules of one of the user's packages, or those that ``from package import *`` imports."""
    spec = _find(package)
    if spec is None or spec.submodule_search_locations is None or not _is_own(spec):
        return
    names = None
    if only_exported:
        with suppress(OSError):
            names = exported_names(_read(spec))
    if names is None:
        names = [found.name for found in iter_modules(spec.submodule_search_locations)]
    yield from _upwards(package)
    yield from (f"{package}.{name}" for name in names)


def _held(name: str) -> Iterator[str]:
    """Yield the modules that define the attributes of an imported module."""
    module = sys.modules.get(name)
    for attribute, value in list(vars(module).items()) if module is not None else ():
        if isinstance(value, ModuleType):
            if value.__name__ != f"{name}.{attribute}":  # any import of a submodule sets this attribute
                yield value.__name__
        else:
            kind = value if isinstance(value, (FunctionType, type)) else type(value)
            yield str(kind.__module__)
