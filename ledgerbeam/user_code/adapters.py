"""Adapters: objects of other libraries as functions of jobs.

The entry-point group `ledgerbeam.adapters` has the adapters. The name of an adapter is the import package whose objects
it adapts, or a style that a job asks for by ``--style NAME``. Only an object whose class comes from an installed
package leads to a look-up. So jobs with functions and classes of the user's own read no entry points.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from importlib import metadata
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from ledgerbeam._base.extensions import BUILT_IN, extension_names, load_extension
from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.user_code.guards import describe_error
from ledgerbeam.user_code.loading import MAIN
from ledgerbeam.user_code.modules import is_own

GROUP = "ledgerbeam.adapters"
PACKAGES, ASSETS = "package", "asset"  # groups of a job's parameters: versions of packages, checksums of files
BLOCK_BYTES = 8 << 20  # bytes of a file that are held in memory at once

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)


class Adapter(ABC):
    """Turns objects of one library into functions of jobs. Each process creates an adapter once, without arguments.

    An object is an instance, or a class whose constructor takes the values of ``--set``.
    """

    @abstractmethod
    def knows(self, target: Any) -> bool:
        """Return whether an object is adapted in each job, without ``--style``."""

    @abstractmethod
    def adapt(self, target: Any, *, batched: bool) -> Callable[..., Any]:
        """Return the object as a function, or as a class of which each worker builds one instance.

        A function takes the values of ``--set`` after the record, and a class takes them in its constructor. Both
        return what functions of jobs return: records, `Drop`, `Reject`.

        Args:
            target: The object.
            batched: Whether the function takes a list of records, and returns a list of their results.

        Raises:
            FunctionError: The result for a record would depend on other records, or the object writes files. The
                message names the command to use instead.
        """

    def identity(self, target: Any, values: Mapping[str, Any]) -> dict[str, dict[str, str]]:  # noqa: ARG002
        """Return what affects the results besides code and parameters: versions of packages, checksums of assets.

        The default is the version of the package that defines the object. The values are those of ``--set``. Raises
        FunctionError if an asset is missing, or if the values make the object inexact.
        """
        return {PACKAGES: package_versions([_class_of(target).__module__.partition(".")[0]])}

    def portable(self, target: Any) -> Any:
        """Return the object that is sent to the workers in place of an instance: a copy without open resources."""
        return target

    def notes(self, target: Any, values: Mapping[str, Any]) -> list[str]:  # noqa: ARG002
        """Return messages about differences between the object in a job and in its library. They are logged once."""
        return []


def adapter_of(target: Any, style: str | None = None) -> Adapter | None:
    """Return the adapter of an object: the one of its library, else the one of the style; None without both.

    Raises UsageError if there is no such style, or an adapter cannot be loaded.
    """
    for package in _installed_packages(target):
        adapter = _loaded(package)
        if adapter is not None and adapter.knows(target):
            return adapter
    if style is None:
        return None
    found = _loaded(style)
    if found is None:
        raise UsageError(f"--style {style}: expected one of {', '.join(extension_names(GROUP))}")
    return found


def adapted(target: Any, style: str | None = None, *, batched: bool = False) -> Any:
    """Return an object as a function or class that a job can use: by its adapter, or unchanged without one.

    A process adapts an object once. Raises like `adapter_of` and `Adapter.adapt`.
    """
    adapter = adapter_of(target, style)
    if adapter is None:
        return target
    key = id(target), style, batched
    if key not in _adapted:
        _adapted[key] = target, adapter.adapt(target, batched=batched)
    return _adapted[key][1]


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages by name. Packages that are not installed are left out.

    A name is that of a distribution, or of an import package.
    """
    return {name: version for name in sorted(names) if (version := _version(name)) is not None}


def file_checksums(paths: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums of local files. The keys are names that are equal on every host.

    Raises FunctionError for a file that cannot be read.
    """
    found = {}
    for name, path in sorted(paths.items()):
        try:
            at = os.stat(path)
            found[name] = _checksum(path, at.st_size, at.st_mtime_ns)
        except OSError as error:
            raise FunctionError(f"{path}: this asset cannot be read: {error.strerror}; put the file there") from error
    return found


_adapted: dict[tuple[int, str | None, bool], tuple[Any, Any]] = {}  # with the object, which keeps its id in use


def _class_of(target: Any) -> type:
    return target if inspect.isclass(target) else type(target)


def _installed_packages(target: Any) -> list[str]:
    """Return the installed import packages that define an object's class and its base classes."""
    if isinstance(target, _FUNCTIONS):
        return []
    names = dict.fromkeys(str(kind.__module__).partition(".")[0] for kind in inspect.getmro(_class_of(target)))
    return [name for name in names if name not in sys.stdlib_module_names and name != MAIN and not is_own(name)]


@functools.cache
def _loaded(name: str) -> Adapter | None:
    if name not in BUILT_IN[GROUP] and name not in _names():
        return None
    try:
        adapter: Adapter = load_extension(GROUP, name)()
    except Exception as error:
        raise UsageError(
            f"adapter {name!r} of the entry points {GROUP}: it cannot be loaded: {describe_error(error)}; correct or "
            "uninstall its package"
        ) from error
    return adapter


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(extension_names(GROUP))


@functools.cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        distributions = metadata.packages_distributions().get(name, ())
        return metadata.version(distributions[0]) if distributions else None


@functools.lru_cache(1000)
def _checksum(path: str, size: int, modified: int) -> str:  # noqa: ARG001 - a changed file is read again
    digest = blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
