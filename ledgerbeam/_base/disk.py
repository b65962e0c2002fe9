"""Local disks: folders whose names survive a power cut, and what to do about what a disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that say that a disk or a quota is full."""

REMEDIES = {
    errno.EFBIG: "no file may be larger in its file system, or by the limit of the process (ulimit -f): raise the "
    "limit, or make smaller files, and run again",
    errno.EIO: "its disk or its file system failed: see what the log of the system says of it (dmesg), and run again "
    "once it works",
    errno.EROFS: "its file system can only be read: mount it for writing, or name another folder, and run again",
}
"""What to do about other errors of a disk, by their number."""


def nearest_above(path: str) -> str:
    """Return the nearest path, itself or above it, of which there is something: also a link that leads nowhere."""
    while not os.path.lexists(path):
        path = os.path.dirname(os.path.abspath(path))
    return path


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
