"""Where a program in Python finds its modules, for the processes that work for it."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable


def import_path() -> tuple[str, ...]:
    """Return the folders in which this program finds modules, such as that of its script."""
    return tuple(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))


def take_import_path(folders: Iterable[str]) -> None:
    """Find modules where the launcher does: after Python's own, which none of them may hide, before what is installed.

    Args:
        folders: What `import_path` returned there.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    known = {os.path.abspath(folder) for folder in sys.path}
    place = next((number for number, folder in enumerate(sys.path) if folder in installed), len(sys.path))
    sys.path[place:place] = [folder for folder in folders if folder not in known]
