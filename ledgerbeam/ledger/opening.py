"""Finding and opening a ledger by its URL."""

from __future__ import annotations

import os

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.lmdb_opening import DATA_FILE
from ledgerbeam.ledger.lmdb_store import LmdbStore
from ledgerbeam.ledger.store import LedgerStore


def open_store(url: str, *, create: bool, read_only: bool = False, job: str | None = None) -> LedgerStore:
    """Open a ledger.

    Args:
        url: local path of its folder, or a ``file://`` URL.
        create: make it if there is none.
        read_only: for looking at it, also while a job runs.
        job: fingerprint that the ledger must still have whenever something is committed through this store; None
            does not check until `LedgerStore.open_job` is called.

    Raises:
        UsageError: the URL is remote, or the folder is on a network filesystem.
        LedgerNotFoundError: there is none, and `create` is false.
        LedgerVersionError: a newer ledgerbeam wrote it.
        LedgerDamagedError: what is there is not a ledger, or does not read.
        StorageError: no permission.
        DiskFullError: no room to make it.
    """
    path = local_path(url)
    if create and read_only:
        raise UsageError(f"ledger {path}: it cannot be both made and read only; pass only one of create and read_only")
    store = LmdbStore(path, read_only=read_only, job=job)
    store.open(create=create)
    return store


def ledger_exists(url: str) -> bool:
    """Tell whether there is something that claims to be a ledger. Raises UsageError for a remote URL."""
    try:
        return os.path.getsize(os.path.join(local_path(url), DATA_FILE)) > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def local_path(url: str) -> str:
    """Give the absolute local path of a ledger's URL.

    Raises:
        UsageError: the URL is empty or remote.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file":
        raise UsageError(
            f"ledger {url}: a ledger lies in a local folder, found the scheme {scheme}://; give a path on a local "
            "disk, for instance --ledger /data/ledger (sources and outputs may stay remote)"
        )
    path = rest if separator else url
    if not path:
        raise UsageError("the URL of a ledger is empty; give the path of a local folder")
    return os.path.abspath(path)
