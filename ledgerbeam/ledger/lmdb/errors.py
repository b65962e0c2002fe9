"""LMDB's errors as ours."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
from collections.abc import Iterator

import lmdb

from ledgerbeam._base.disk import NO_ROOM, REMEDIES
from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerDamagedError, LedgerError, StorageError

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
_UNREADABLE = (
    *(ValueError, struct.error, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError),
    SystemError,  # of the binding to LMDB, where a row cannot be deleted
)
"""What rows that no ledger writes may raise where they are used; most are refused where they are decoded."""

NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of the errors of who may not write, or not look."""
_ROOM_BYTES = 1 << 20


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn errors of LMDB, of the operating system and of reading a damaged row into ours.

    `lmdb.MapFullError` and `lmdb.MapResizedError` pass: the code that began the transaction handles them.
    """
    try:
        yield
    except (lmdb.MapFullError, lmdb.MapResizedError):
        raise
    except LedgerbeamError:
        raise
    except (lmdb.Error, OSError) as error:
        raise as_ledger_error(error, path) from error
    except _UNREADABLE as error:
        raise LedgerDamagedError(
            f"ledger {path}: a row of it does not read ({type(error).__name__}: {error}). Restore the folder from a "
            "copy, or give another --ledger, over its outputs with --existing replace. What is read of a ledger on an "
            "object store is made again if you delete this folder"
        ) from error


def as_ledger_error(error: lmdb.Error | OSError, path: str) -> LedgerbeamError:
    """Choose our error for one of LMDB or of the operating system, with the remedy in its message."""
    code = error.errno if isinstance(error, OSError) else error.code
    # LMDB reports a write that was cut short as EIO, or in a new file as ENOSPC; a limit of the process cuts it, too.
    if code in (errno.EIO, errno.ENOSPC) and _is_at_limit(path) and not _is_full(path):
        code = errno.EFBIG
    elif isinstance(error, lmdb.DiskError) or code in NO_ROOM or (code == errno.EIO and _is_full(path)):
        return DiskFullError(
            f"ledger {path}: no space is left on its filesystem ({error}). Nothing that was recorded is lost: free "
            "some space and run the same command again"
        )
    if isinstance(error, lmdb.ReadonlyError) or code in NO_PERMISSION:
        return StorageError(
            f"ledger {path}: no permission ({error}). Let this account write there, or use the one that runs the job; "
            "for a new job, give a --ledger that you can write to; to look only, look at a copy of the folder: also "
            "reading writes its lock file"
        )
    if isinstance(error, _DAMAGE):
        return LedgerDamagedError(
            f"ledger {path}: it is not a ledger that this version reads, or it is damaged ({error}). Give another "
            "folder, or restore it from a copy"
        )
    known = REMEDIES.get(code or 0)
    message = f"ledger {path}: {error}" + (f"; {known}. Nothing that was recorded is lost" if known else "")
    if isinstance(error, OSError) or code == errno.EFBIG:
        return StorageError(message)
    return LedgerError(
        f"{message}. If that stays so, the file is damaged: restore it from a copy, or give another --ledger"
    )


def _is_at_limit(path: str) -> bool:
    """Return whether files there may hardly be larger than they are, by the limit of the process."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    try:
        size = max((entry.stat().st_size for entry in os.scandir(path)), default=0)
    except OSError:
        size = 0
    return size + _ROOM_BYTES > limit


def _is_full(path: str) -> bool:
    try:
        free = os.statvfs(path)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _ROOM_BYTES
