"""Opening a ledger in a local folder or on an object store.

Modules for remote ledgers are imported on first use, so that local ledgers open faster.
"""

from __future__ import annotations

from ledgerbeam.errors import UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.native import set_crash_message
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.store import LedgerSink
from ledgerbeam.ledger.places import open_local_store, sidecar_folder
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
    """Open a ledger. A remote ledger is refreshed: the objects that this host has not read yet are read.

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
        raise UsageError(f"ledger {url}: it cannot be created and be read only; pass only one of create and read_only")
    from ledgerbeam.ledger.remote.store import RemoteStore  # noqa: PLC0415

    objects = ObjectFolder(url, storage_options)
    sidecar = sidecar_folder(objects.url)
    set_crash_message(
        sidecar, "delete that folder, which holds only what this host has read of the ledger, and run it again"
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

    A local ledger is opened itself. The copy of a remote ledger has the state of the launcher's last `refresh`. Raises
    the errors of `open_store` for a local ledger.
    """
    path = url if is_local(url) else sidecar_folder(ObjectFolder(url).url)
    return open_local_store(path, create=False, read_only=True)


def run_folders(store: LedgerStore) -> RunFolders:
    """Return the run folders of a ledger on this host: in the ledger's folder, or in the sidecar of a remote ledger."""
    url = store.url
    return RunFolders(url if is_local(url) else sidecar_folder(url), store.ledger_id())
