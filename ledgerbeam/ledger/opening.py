"""Finding and opening a local ledger, and the local place of a remote one."""

from __future__ import annotations

import os
import re
import tempfile
from hashlib import blake2b

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.lmdb_filesystem import refuse_network_filesystem
from ledgerbeam.ledger.lmdb_opening import DATA_FILE
from ledgerbeam.ledger.lmdb_store import LmdbStore
from ledgerbeam.ledger.store import LedgerStore


def open_store(url: str, *, create: bool, read_only: bool = False, job: str | None = None) -> LedgerStore:
    """Open a local ledger.

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
            f"ledger {url}: expected the path of a local folder, found the scheme {scheme}://; open a remote ledger "
            "with ledgerbeam.ledgers.open_ledger"
        )
    path = rest if separator else url
    if not path:
        raise UsageError("the URL of a ledger is empty; give the path of a local folder")
    return os.path.abspath(path)


def sidecar_folder(url: str) -> str:
    """Give the local folder in which what is read of a remote ledger is kept.

    It lies below ``$LEDGERBEAM_CACHE``, else ``$XDG_CACHE_HOME/ledgerbeam`` or ``~/.cache/ledgerbeam``; below the
    system's temporary folder where those are on a network filesystem, or not writable. Losing it costs only time.

    Args:
        url: of the ledger, canonical.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rpartition("://")[2])[-40:].strip("-")
    folder = os.path.join("sidecars", f"{name}-{blake2b(url.encode(), digest_size=8).hexdigest()}")
    home = os.environ.get("LEDGERBEAM_CACHE")
    if home:
        return os.path.join(os.path.abspath(home), folder)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for root in (os.path.join(cache, "ledgerbeam"), os.path.join(tempfile.gettempdir(), f"ledgerbeam-{os.getuid()}")):
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
            refuse_network_filesystem(root)
        except (OSError, UsageError):
            continue
        if os.access(root, os.W_OK | os.X_OK):
            return os.path.join(root, folder)
    raise UsageError(
        f"ledger {url}: found no local folder to keep what is read of it; set LEDGERBEAM_CACHE to one on a local disk"
    )
