"""Packages whose names are imported when they are used for the first time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ledgerbeam._base.interrupts import Interruptible


def lazy_names(
    package: str, modules: Mapping[str, str], before: Callable[[str], None] = lambda _: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        modules: The module in it that holds each of its names.
        before: Called with a name before its module is imported.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with Interruptible():
            before(name)
            found = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return find, names
