"""Local disks: folders whose names survive a power cut, and what a disk says that is full."""

from __future__ import annotations

import contextlib
import errno
import os

__all__ = ["is_no_room", "make_folders", "sync_folder"]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_no_room(error: BaseException) -> bool:
    """Return whether an error of the operating system says that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


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
