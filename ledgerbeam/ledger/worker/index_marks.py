"""Marks of sources whose index is being built ahead of their wave.

A worker waits for such an index, and does not build it again. The process that builds indexes ahead holds a lock on a
file for its current source. A lock ends with its process, so no worker waits for a dead process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.worker.run_folders import file_errors


def _path(folder: str, source: Source) -> str:
    return os.path.join(folder, f"indexing-{source.id.hex()}")


@contextmanager
def building_index(folder: str, source: Source) -> Iterator[None]:
    """Let the workers of a run wait for the index of a source while the body runs.

    Args:
        folder: Folder of the run.
        source: The source.

    Raises:
        DiskFullError: There is no room for the file.
        StorageError: The file cannot be created.
    """
    path = _path(folder, source)
    with file_errors(path):
        mark = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A worker that comes before the lock does not wait. Then both build the same index.
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # the folder was removed
            os.unlink(path)
        os.close(mark)


def wait_for_index(folder: str, source: Source) -> None:
    """Wait while the index of a source is being built ahead.

    Args:
        folder: Folder of the run.
        source: The source.

    Raises:
        StorageError: The file cannot be read.
    """
    path = _path(folder, source)
    with file_errors(path, "read"):
        try:
            mark = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(mark, fcntl.LOCK_SH)
        finally:
            os.close(mark)
