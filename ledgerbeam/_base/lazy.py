"""Imports on first use: the names of a package, NumPy and asyncio.

Importing NumPy takes longer than a whole command whose job is complete, which needs no arrays. So modules that every
command imports take `np` from here, and create arrays and constants of NumPy types in functions only.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ledgerbeam._base.interrupts import Interruptible

__all__ = ["ArrayLike", "DTypeLike", "NDArray", "asyncio", "lazy_names", "np"]

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray
else:
    ArrayLike = DTypeLike = Any  # used in annotations only, which are not evaluated

    class NDArray:
        """Stand-in for annotations and type aliases."""

        def __class_getitem__(cls, _: object) -> type[NDArray]:
            return cls

    class _Late:
        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            with Interruptible():
                found = getattr(importlib.import_module(self._module), name)
            setattr(self, name, found)  # later look-ups are as fast as in the module
            return found

    np, asyncio = _Late("numpy"), _Late("asyncio")


def lazy_names(
    package: str, modules: Mapping[str, str], before: Callable[[str], None] = lambda _: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package that imports its names on first use.

    `modules` has the names of each module, separated by spaces. `before` is called with a name before its import.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with Interruptible():
            before(name)
            found = getattr(importlib.import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *places})
