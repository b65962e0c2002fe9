"""Which source has its index made ahead of its wave: a worker that comes to it waits, and does not read it too.

The process that makes indexes ahead holds a lock on a file for the source that it is at. A lock ends with its process,
so nobody waits for one that is gone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.worker.run_folders import written


def _path(folder: str, source: Source) -> str:
    return os.path.join(folder, f"indexing-{source.id.hex()}")


@contextmanager
def making_index(folder: str, source: Source) -> Iterator[None]:
    """Have the workers of a run wait for the index of a source while the body runs.

    Args:
        folder: Of the run.
        source: The source.

    Raises:
        DiskFullError: There is no room for the file.
        StorageError: It cannot be made.
    """
    path = _path(folder, source)
    with written(path):
        mark = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # One who comes before the lock does not wait: then both make the same index.
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # the folder is gone
            os.unlink(path)
        os.close(mark)


def wait_for_index(folder: str, source: Source) -> None:
    """Wait while the index of a source is made ahead.

    Args:
        folder: Of the run.
        source: The source.

    Raises:
        StorageError: The file cannot be read.
    """
    path = _path(folder, source)
    with written(path, "read"):
        try:
            mark = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(mark, fcntl.LOCK_SH)
        finally:
            os.close(mark)
