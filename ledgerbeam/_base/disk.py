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


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def read_size(value: int | str) -> int:
    """Return a number of bytes such as ``1000000``, ``64K``, ``16MiB``; units are powers of 1024.

    Raises:
        ValueError: It is no size, or none from 1; the message says what was expected and found.
    """
    lowered = str(value).strip().lower().removesuffix("b").removesuffix("i")
    digits = lowered.rstrip("kmgt")
    unit = lowered[len(digits) :]
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"expected a size such as 16M, found {value!r}") from None
    if size < 1:
        raise ValueError(f"expected at least 1 byte, found {value!r}")
    return size


def size_text(size: int) -> str:
    """Return a number of bytes as `read_size` takes it, in the largest unit of which it is a multiple."""
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{size // _UNITS[unit]}{unit.upper()}"
