"""The data file of an LMDB environment: checks of its descriptors, and locks of the sources that are being published.

LMDB writes to a descriptor number. If other code of the process closes this descriptor and opens another file, that
file gets the number, and LMDB would write its pages into it. So the descriptors are checked before each write.

A worker checks whether its source was replaced, and then publishes. If the source were replaced in between, while the
worker is stopped, its outputs would overwrite the outputs of the new content. So the worker holds a lock from before
the check until all outputs are published, and a process that replaces the source waits for the lock. This is for local
ledgers, whose processes share a host.

The locks are open-file-description locks on the data file, far past its end; LMDB locks another file. They end with
their process. All processes take several locks in the same order, so there is no deadlock.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.files import DATA_FILE

_RANGE = struct.Struct("hhqqi0q")  # struct flock
_FIRST = 1 << 62
_PLACES = 1 << 10
"""Number of lockable bytes. A page of sources may be replaced together, and the system is slow with many locks. So
sources share bytes, and sources that share one also wait for each other."""

_SILENT_SECONDS = 10.0
"""Seconds of waiting without a warning. Publishing takes less time, unless its process is stopped."""

_WAITING = (
    "%s: waiting for a worker that is publishing outputs of a changed source; "
    "if a process of another run on this ledger is suspended, resume or end it"
)

_log = library_logger(__name__)


class BeingPublishedError(Exception):
    """Outputs of sources to be replaced are being published."""


@contextmanager
def publishing(path: str, sources: Iterable[bytes]) -> Iterator[None]:
    """Prevent the replacement of sources of a ledger while the body runs. Raises StorageError."""
    with ExitStack() as opened:
        with translated(path):
            descriptor = opened.enter_context(data_opened(path, os.O_RDONLY))
            for place in _places(sources):
                _lock(descriptor, fcntl.F_RDLCK, place, wait=True)
        yield


class Replacing:
    """Prevents publishing outputs of sources that are being replaced, until the end of its `with` block."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened = ExitStack()
        self._descriptor: int | None = None  # opened on demand: most sources replace no other
        self._places: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def hold(self, sources: Iterable[bytes]) -> None:
        """Lock sources, so that no process publishes their outputs.

        Raises:
            BeingPublishedError: Outputs of one of the sources are being published: call `wait`, and try again.
            StorageError: The sources cannot be locked.
        """
        self._places = _places(sources)
        with translated(self._path):
            if self._descriptor is None:
                self._descriptor = self._opened.enter_context(data_opened(self._path, os.O_RDWR))
            for place in self._places:
                if not _lock(self._descriptor, fcntl.F_WRLCK, place, wait=False):
                    raise BeingPublishedError

    def wait(self) -> None:
        """Wait until no outputs of the sources of `hold` are being published, and lock the sources.

        Raises StorageError.
        """
        if self._descriptor is None:
            return
        warning = threading.Timer(_SILENT_SECONDS, _log.warning, (_WAITING, self._path))
        warning.start()
        try:
            with translated(self._path):
                _unlock(self._descriptor)  # else the locks would not be taken in order
                for place in self._places:
                    _lock(self._descriptor, fcntl.F_WRLCK, place, wait=True)
        finally:
            warning.cancel()


def _places(sources: Iterable[bytes]) -> list[int]:
    return sorted({_FIRST + int.from_bytes(source) % _PLACES for source in sources})


def _lock(descriptor: int, kind: int, place: int, *, wait: bool) -> bool:
    """Lock the byte at offset `place`. Return False if another descriptor has locked it and `wait` is false."""
    try:
        how = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(descriptor, how, _RANGE.pack(kind, os.SEEK_SET, place, 1, 0))
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _RANGE.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))


_File = tuple[int, int]  # device and inode

_one_opens = threading.Lock()
"""Held while a data file is opened or closed in this process, so that new descriptors belong to one environment."""


class DataDescriptors:
    """The descriptors that an environment has opened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._own: dict[int, _File] = {}

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Record the descriptors opened in the body."""
        with _one_opens:
            others = _descriptors_of(self._path)
            yield
            found = _descriptors_of(self._path)
        self._own = {number: file for number, file in found.items() if others.get(number) != file}

    def check(self) -> None:
        """Check, before a write, that the descriptors still belong to the data file. Raises LedgerError."""
        if any(_file_of(number) != file for number, file in self._own.items()):
            raise LedgerError(
                f"ledger {self._path}: descriptors of its files were closed in this process by other code, such as a "
                "function that closes all open files; later work was not recorded. Change this code to close only the "
                "files that it has opened, and run the same command again"
            )


@contextmanager
def data_opened(path: str, flags: int) -> Iterator[int]:
    """Open the data file once more, independently of the environment, and yield the descriptor, for locks."""
    with _one_opens:
        descriptor = os.open(os.path.join(path, DATA_FILE), flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        _unlock(descriptor)  # a process forked meanwhile would keep the locks
        with _one_opens:
            os.close(descriptor)


def _descriptors_of(path: str) -> dict[int, _File]:
    if (file := _file_of(os.path.join(path, DATA_FILE))) is None:
        return {}  # opening the environment reports the error
    return {number: file for number in map(int, os.listdir("/dev/fd")) if _file_of(number) == file}


def _file_of(path: str | int) -> _File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
