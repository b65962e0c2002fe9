"""Descriptors of the data file of an LMDB environment, checked because other code of the process may close them.

LMDB knows them by number. Once another file has the number, LMDB would write its pages into that file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger.lmdb.files import DATA_FILE

_File = tuple[int, int]
"""Device and inode."""

_one_opens = threading.Lock()
"""Held while a data file is opened or closed in this process, so that new descriptors belong to one environment."""


class DataDescriptors:
    """The descriptors that an environment has opened.

    Args:
        path: Folder of the environment.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._own: dict[int, _File] = {}

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Record the descriptors opened in the body."""
        with _one_opens:
            others = _descriptors_of(self._path)
            yield
            found = _descriptors_of(self._path)
        self._own = {number: file for number, file in found.items() if others.get(number) != file}

    def check(self) -> None:
        """Check, before a write, that the descriptors still belong to the data file.

        Raises:
            LedgerError: A descriptor was closed.
        """
        if any(_file_of(number) != file for number, file in self._own.items()):
            raise LedgerError(
                f"ledger {self._path}: descriptors of its files were closed in this process by other code, such as a "
                "function that closes all open ones; nothing was recorded since. Let it close only what it has opened "
                "itself, and run the same command again"
            )


@contextlib.contextmanager
def data_opened(path: str, flags: int) -> Iterator[int]:
    """Open the data file in addition to the environment.

    Args:
        path: Folder of the environment.
        flags: Flags of `os.open`.

    Yields:
        The descriptor.
    """
    with _one_opens:
        descriptor = os.open(os.path.join(path, DATA_FILE), flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        with _one_opens:
            os.close(descriptor)


def _descriptors_of(path: str) -> dict[int, _File]:
    with contextlib.suppress(OSError):  # opening the environment reports the error
        found = os.stat(os.path.join(path, DATA_FILE))
        file = found.st_dev, found.st_ino
        return {number: file for number in map(int, os.listdir("/dev/fd")) if _file_of(number) == file}
    return {}


def _file_of(descriptor: int) -> _File | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
