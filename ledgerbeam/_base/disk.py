"""Local disks: durable folders, remedies for disk errors, and sizes in bytes as text."""

from __future__ import annotations

import contextlib
import errno
import os

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})  # error numbers of a full disk or quota

REMEDIES = {
    errno.EFBIG: "the file system or the limit of the process (ulimit -f) allows no larger file: raise the limit, or "
    "make smaller files, and run again",
    errno.EIO: "its disk or its file system failed: check the system log (dmesg), and run again once it works",
    errno.EROFS: "its file system is read-only: mount it for writing, or give another folder, and run again",
}
"""Remedies for other disk errors, by error number."""


def nearest_above(path: str) -> str:
    """Return a path if it exists, else its nearest existing parent. A broken link counts as existing."""
    while not os.path.lexists(path):
        path = os.path.dirname(os.path.abspath(path))
    return path


def make_folders(folder: str) -> None:
    """Create a folder and its missing parents, and flush their names to the disk."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # created concurrently; if it is a file, the next step fails
            os.mkdir(path)
        sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def read_size(value: int | str) -> int:
    """Return a number of bytes from ``1000000``, ``64K``, ``16MiB`` (powers of 1024). Raises ValueError for others."""
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
    """Return a number of bytes in the form that `read_size` accepts, in the largest unit that divides it."""
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{size // _UNITS[unit]}{unit.upper()}"
