"""Opening a ledger in a local folder or on an object store; and the sidecar folder of a remote ledger.

Modules for remote ledgers are imported on first use, so that local ledgers open faster.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from hashlib import blake2b

from ledgerbeam.errors import UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.native import set_crash_message
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger.lmdb.files import refuse_network_filesystem
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.store import LedgerSink, LedgerStore
from ledgerbeam.ledger.worker.run_folders import RunFolders


def open_store(
    url: str,
    storage_options: Options | None = None,
    *,
    create: bool = False,
    read_only: bool = False,
    job: str | None = None,
    run: str = "",
) -> LedgerStore:
    """Open a ledger. If it is remote, read the objects that other hosts have created since the last refresh.

    Args:
        url: A local path, or the URL of a folder on an object store.
        storage_options: Passed to fsspec unchanged.
        create: Whether to create the ledger if it does not exist.
        read_only: Whether to open it for reading only; this also works while a job runs.
        job: Fingerprint that the ledger must have at each commit through this store. None checks nothing until
            `LedgerStore.open_job` is called.
        run: Id of the run whose work is recorded, as `LedgerStore.begin_run` returned it to the launcher.

    Raises:
        LedgerNotFoundError: The ledger does not exist, and `create` is false.
        LedgerVersionError: Another version of ledgerbeam wrote it.
        LedgerDamagedError: The folder holds something else, or the ledger is damaged.
        StorageError: Permission is missing, or the store does not answer.
        UsageError: The folder is on a network filesystem.
    """
    if is_local(url):
        set_crash_message(url, "restore it from a copy, or give another --ledger")
        return open_local_store(url, create=create, read_only=read_only, job=job, run=run)
    if create and read_only:
        raise UsageError(f"ledger {url}: a read-only ledger cannot be created; pass only one of create and read_only")
    from ledgerbeam.ledger.remote.store import RemoteStore  # noqa: PLC0415

    objects = ObjectFolder(url, storage_options)
    sidecar = sidecar_folder(objects.url)
    set_crash_message(
        sidecar, "delete that folder, which is only a local copy of the ledger, and run the same command again"
    )
    store = RemoteStore(objects, sidecar, read_only=read_only, job=job, run=run)
    store.open(create=create)
    return store


def open_sink(url: str, storage_options: Options | None = None, *, job: str | None = None, run: str = "") -> LedgerSink:
    """Open a ledger for recording only, as workers do; see `open_store` for arguments and errors."""
    if is_local(url):
        return open_local_store(url, create=False, job=job, run=run)
    from ledgerbeam.ledger.remote.sink import RemoteSink  # noqa: PLC0415

    return RemoteSink(ObjectFolder(url, storage_options), job=job, run=run)


def open_mirror(url: str) -> LedgerStore:
    """Open the local copy of a ledger for reading, without a request to the store.

    For a local ledger, this is the ledger itself. For a remote ledger, it is the sidecar, as of the last `refresh` on
    this host. Raises like `open_local_store`.
    """
    path = url if is_local(url) else sidecar_folder(ObjectFolder(url).url)
    return open_local_store(path, create=False, read_only=True)


def run_folders(store: LedgerStore) -> RunFolders:
    """Return the run folders of a ledger on this host: in the ledger's folder, or in the sidecar of a remote ledger."""
    url = store.url
    return RunFolders(url if is_local(url) else sidecar_folder(url), store.ledger_id())


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_local_store(
    url: str, *, create: bool, read_only: bool = False, job: str | None = None, run: str = ""
) -> LedgerStore:
    """Open a local ledger by a path or ``file://`` URL. Raises like `open_store`, and DiskFullError on a full disk."""
    path = local_path(url)
    if create and read_only:
        raise UsageError(f"ledger {path}: a read-only ledger cannot be created; pass only one of create and read_only")
    store = LmdbStore(path, read_only=read_only, job=job, run=run)
    store.open(create=create)
    return store


def local_path(url: str) -> str:
    """Return the absolute local path of a ledger's URL. Raises UsageError if it is empty or remote."""
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
    """Return the sidecar of a remote ledger: the local folder with this host's copy of the ledger.

    The sidecar is below ``$LEDGERBEAM_CACHE``, else below ``$XDG_CACHE_HOME/ledgerbeam`` or ``~/.cache/ledgerbeam``. If
    that folder is on a network filesystem or not writable, the sidecar is below the system's temporary folder. A lost
    sidecar is built again. Raises UsageError if no such folder can be used, or another user can change its path.
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
            f"ledger {url}: no local folder can hold its sidecar, the local copy of the ledger ({error}); set "
            "LEDGERBEAM_CACHE to a folder on a local disk"
        ) from error
    # Any user can create this name in the temporary folder first, also as a link to another place.
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
    """Return the folder of a sidecar below its root. Raises UsageError if another user's link is on the path."""
    folder = os.path.join(root, "sidecars", name)
    for path in (root, os.path.dirname(folder), folder):
        try:
            found = os.lstat(path)
        except OSError:
            continue  # it does not exist yet and will be ours; other errors are raised when the ledger is opened
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
            raise _unsafe(url, path, found, "a folder, or a link of this user")
    return folder


def _unsafe(url: str, path: str, found: os.stat_result, expected: str) -> UsageError:
    return UsageError(
        f"ledger {url}: the path of its local copy contains {path}: expected {expected}, found the mode "
        f"{stat.filemode(found.st_mode)} and the owner {found.st_uid}; set LEDGERBEAM_CACHE to your own local folder"
    )
