"""Finding and opening a local ledger, and the local place of a remote one."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from hashlib import blake2b

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.lmdb.files import DATA_FILE, refuse_network_filesystem
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.store import LedgerStore

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_local_store(
    url: str, *, create: bool, read_only: bool = False, job: str | None = None, run: str = ""
) -> LedgerStore:
    """Open a local ledger.

    Args:
        url: Local path of its folder, or a ``file://`` URL.
        create: Make it if there is none.
        read_only: For looking at it, also while a job runs.
        job: Fingerprint that the ledger must still have whenever something is committed through this store; None
            does not check until `LedgerStore.open_job` is called.
        run: The run that is recorded for; empty for the newest.

    Raises:
        UsageError: The URL is remote, the folder is on a network filesystem, or it holds other things.
        LedgerNotFoundError: There is none, and `create` is false.
        LedgerVersionError: Another version of ledgerbeam wrote it.
        LedgerDamagedError: What is there is not a ledger, or does not read.
        StorageError: No permission.
        DiskFullError: No room to make it.
    """
    path = local_path(url)
    if create and read_only:
        raise UsageError(f"ledger {path}: it cannot be both made and read only; pass only one of create and read_only")
    store = LmdbStore(path, read_only=read_only, job=job, run=run)
    store.open(create=create)
    return store


def ledger_exists(url: str) -> bool:
    """Return whether there is something that claims to be a ledger. Raises UsageError for a remote URL."""
    try:
        return os.path.getsize(os.path.join(local_path(url), DATA_FILE)) > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def local_path(url: str) -> str:
    """Return the absolute local path of a ledger's URL.

    Raises:
        UsageError: The URL is empty or remote.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file":
        raise UsageError(
            f"ledger {url}: expected the path of a local folder, found the scheme {scheme}://; open a remote ledger "
            "with ledgerbeam.ledger.opening.open_store"
        )
    path = rest if separator else url
    if not path:
        raise UsageError("the URL of a ledger is empty; give the path of a local folder")
    return os.path.abspath(path)


def sidecar_folder(url: str) -> str:
    """Return the local folder in which what is read of a remote ledger is kept.

    It lies below ``$LEDGERBEAM_CACHE``, else ``$XDG_CACHE_HOME/ledgerbeam`` or ``~/.cache/ledgerbeam``; below the
    system's temporary folder where those are on a network filesystem, or not writable. Losing it costs only time.

    Args:
        url: Of the ledger, canonical.

    Raises:
        UsageError: There is no such folder, or on the way to it lies what another user can change.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rpartition("://")[2])[-40:].strip("-")
    name = f"{name}-{blake2b(url.encode(), digest_size=8).hexdigest()}"
    home = os.environ.get("LEDGERBEAM_CACHE")
    if home:
        return _below(os.path.abspath(home), name, url)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = os.path.join(cache, "ledgerbeam")
    if _is_usable(root):
        return _below(root, name, url)
    root = os.path.join(tempfile.gettempdir(), f"ledgerbeam-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(root, 0o700)
        refuse_network_filesystem(root)
        found = os.lstat(root)
    except (OSError, UsageError) as error:
        raise UsageError(
            f"ledger {url}: found no local folder to keep what is read of it ({error}); set LEDGERBEAM_CACHE to one on "
            "a local disk"
        ) from error
    # Whoever comes first makes a name in the temporary folder: it may be another user's, or lead anywhere.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise _unsafe(url, root, found, "a folder that only this user can change")
    return _below(root, name, url)


def _is_usable(root: str) -> bool:
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        refuse_network_filesystem(root)
    except (OSError, UsageError):
        return False
    return os.access(root, os.W_OK | os.X_OK)


def _below(root: str, name: str, url: str) -> str:
    """Return the folder of a sidecar below its root; no part of the way is a link of another user."""
    folder = os.path.join(root, "sidecars", name)
    for path in (root, os.path.dirname(folder), folder):
        try:
            found = os.lstat(path)
        except OSError:
            continue  # not there yet, and made by us; or opening says what is wrong
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
            raise _unsafe(url, path, found, "a folder, or a link of this user")
    return folder


def _unsafe(url: str, path: str, found: os.stat_result, expected: str) -> UsageError:
    return UsageError(
        f"ledger {url}: what is read of it is kept below {path}, which must be {expected}, and found "
        f"{stat.filemode(found.st_mode)} of user {found.st_uid}; it is not used. Set LEDGERBEAM_CACHE to a folder of "
        "your own on a local disk"
    )
