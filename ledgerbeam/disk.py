"""Local disks: folders whose names survive a power cut, and what a disk says that is full."""

from __future__ import annotations

import contextlib
import errno
import os

__all__ = ["NO_ROOM", "make_folders", "sync_folder"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that say that a disk or a quota is full."""


def make_folders(folder: str) -> None:
    """Make a folder and those above it, so that their names are on the disk when this returns."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another was first; a file there fails at the next step
            os.mkdir(path)
        sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
