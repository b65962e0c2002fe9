"""Publishing of a source, and its replacement, one after the other: for a local ledger, whose processes are all here.

A worker looks whether its source was replaced, and publishes. Were the source replaced in between, while the worker
stands still, its outputs would come over those of the new content. So the worker has a lock from before it looks until
all is there, and whoever replaces the source waits for it.

The locks are those of open files on the data file, far behind its end; LMDB locks another file. They end with their
process. All take several in one order, so no two wait for each other.
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
from ledgerbeam.ledger.lmdb.descriptors import data_opened
from ledgerbeam.ledger.lmdb.errors import translated

_RANGE = struct.Struct("hhqqi0q")  # struct flock
_FIRST = 1 << 62
_PLACES = 1 << 10
"""Bytes that are locked: a page of sources may be replaced at once, and the system is slow with many locks. Sources
that share one wait for each other, too."""

_SILENT_SECONDS = 10.0
"""How long one waits without a word: what is published is there sooner, unless its process stands still."""

_WAITING = (
    "%s: waiting for a worker that publishes outputs of a source which has changed; "
    "if a process of another run on this ledger is stopped, continue or end it"
)

_log = library_logger(__name__)


class BeingPublishedError(Exception):
    """Something of sources that are to be replaced is being published."""


@contextmanager
def publishing(path: str, sources: Iterable[bytes]) -> Iterator[None]:
    """Keep sources of a ledger from being replaced in the body.

    Args:
        path: Of the ledger's folder.
        sources: Their ids.

    Raises:
        StorageError: They cannot be locked.
    """
    with ExitStack() as opened:
        with translated(path):
            descriptor = opened.enter_context(_opened(path, os.O_RDONLY))
            for place in _places(sources):
                _lock(descriptor, fcntl.F_RDLCK, place, wait=True)
        yield


class Replacing:
    """Keeps workers from publishing what is of sources that are being replaced, until the end of its `with` block.

    Args:
        path: Of the ledger's folder.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened = ExitStack()
        self._descriptor: int | None = None  # most sources replace no other
        self._places: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def hold(self, sources: Iterable[bytes]) -> None:
        """Lock sources.

        Raises:
            BeingPublishedError: Something of them is being published: `wait`, and try again.
            StorageError: They cannot be locked.
        """
        self._places = _places(sources)
        with translated(self._path):
            if self._descriptor is None:
                self._descriptor = self._opened.enter_context(_opened(self._path, os.O_RDWR))
            for place in self._places:
                if not _lock(self._descriptor, fcntl.F_WRLCK, place, wait=False):
                    raise BeingPublishedError

    def wait(self) -> None:
        """Wait until nothing is being published of what `hold` was to lock, and lock it. Raises StorageError."""
        if self._descriptor is None:
            return
        with translated(self._path), _told_if_long(self._path):
            _unlock(self._descriptor)  # else they would not be taken in order
            for place in self._places:
                _lock(self._descriptor, fcntl.F_WRLCK, place, wait=True)


@contextmanager
def _told_if_long(path: str) -> Iterator[None]:
    """Warn if the body is still waiting after a while."""
    warning = threading.Timer(_SILENT_SECONDS, _log.warning, (_WAITING, path))
    warning.start()
    try:
        yield
    finally:
        warning.cancel()


def _places(sources: Iterable[bytes]) -> list[int]:
    return sorted({_FIRST + int.from_bytes(source) % _PLACES for source in sources})


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    with data_opened(path, flags) as descriptor:
        try:
            yield descriptor
        finally:
            _unlock(descriptor)  # a process that was forked meanwhile would keep the locks


def _lock(descriptor: int, kind: int, place: int, *, wait: bool) -> bool:
    """Lock a byte; return False if another has it, and it is not to be waited for."""
    try:
        how = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(descriptor, how, _RANGE.pack(kind, os.SEEK_SET, place, 1, 0))
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _RANGE.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
