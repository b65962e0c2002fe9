"""Errors of LMDB and of the operating system, translated to ledgerbeam's error classes."""

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
    SystemError,  # raised by the binding to LMDB if a row cannot be deleted
)
"""Errors raised by the use of rows that no ledger writes. Most such rows are refused when they are decoded."""

NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)  # error numbers for missing permission to read or write
_ROOM_BYTES = 1 << 20


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate errors of LMDB, of the operating system and of reading a damaged row.

    `lmdb.MapFullError` and `lmdb.MapResizedError` pass: the code that started the transaction handles them.
    """
    try:
        yield
    except (lmdb.MapFullError, lmdb.MapResizedError):
        raise
    except LedgerbeamError:
        raise
    except (lmdb.Error, OSError) as error:
        raise _as_ledger_error(error, path) from error
    except _UNREADABLE as error:
        raise LedgerDamagedError(
            f"ledger {path}: one of its rows is damaged ({type(error).__name__}: {error}). If the ledger is on an "
            "object store, this folder is only a local copy: delete the folder, and the next command rebuilds it. "
            "Otherwise restore the folder from a copy, or start again with another --ledger and --existing replace"
        ) from error


def _as_ledger_error(error: lmdb.Error | OSError, path: str) -> LedgerbeamError:
    """Return the `LedgerbeamError` for an error of LMDB or of the operating system, with a remedy in the message."""
    code = error.errno if isinstance(error, OSError) else error.code
    # LMDB reports a short write as EIO, or in a new file as ENOSPC. A limit of the process also causes short writes.
    if code in (errno.EIO, errno.ENOSPC) and _is_at_limit(path) and not _is_full(path):
        code = errno.EFBIG
    elif isinstance(error, lmdb.DiskError) or code in NO_ROOM or (code == errno.EIO and _is_full(path)):
        return DiskFullError(
            f"ledger {path}: no space is left on its filesystem ({error}). Nothing that was recorded is lost: free "
            "some space and run the same command again"
        )
    if isinstance(error, lmdb.ReadonlyError) or code in NO_PERMISSION:
        return StorageError(
            f"ledger {path}: no permission ({error}). Let this account write there, or use the account that runs the "
            "job. For a new job, give a --ledger that you can write to. To read a ledger that you cannot write to, "
            "copy its folder and read the copy: reading writes to the lock file"
        )
    if isinstance(error, _DAMAGE):
        return LedgerDamagedError(
            f"ledger {path}: it is damaged, or not a ledger that this version reads ({error}). Restore it from a copy, "
            "or give another folder"
        )
    known = REMEDIES.get(code or 0)
    message = f"ledger {path}: {error}" + (f"; {known}. Nothing that was recorded is lost" if known else "")
    if isinstance(error, OSError) or code == errno.EFBIG:
        return StorageError(message)
    return LedgerError(
        f"{message}. If it happens again, the file is damaged: restore it from a copy, or give another --ledger"
    )


def _is_at_limit(path: str) -> bool:
    """Return whether files in a folder have nearly reached the size limit of the process."""
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
