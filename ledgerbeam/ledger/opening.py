"""Opening a ledger in a local folder or on an object store.

What is only for remote ones is imported for them: local ones open sooner.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.native import last_words
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import ClaimPlace, Claims, decode_claims
from ledgerbeam.ledger.model.identity import run_order
from ledgerbeam.ledger.model.store import LedgerSink
from ledgerbeam.ledger.places import open_local_store, sidecar_folder
from ledgerbeam.ledger.worker.folder_claims import FolderClaims, read_folder_claims
from ledgerbeam.ledger.worker.run_folders import RunFolder, RunFolders

if TYPE_CHECKING:
    from ledgerbeam.ledger.remote.store import RemoteStore


def open_store(
    url: str,
    storage_options: Options | None = None,
    *,
    create: bool = False,
    read_only: bool = False,
    job: str | None = None,
    run: str = "",
) -> LedgerStore:
    """Open a ledger, and bring what is known here of a remote one up to date.

    Args:
        url: A local path, or the URL of a folder on an object store.
        storage_options: Passed to fsspec unchanged.
        create: Whether to make it if there is none.
        read_only: For looking at it, also while a job runs.
        job: Fingerprint that the ledger must still have whenever something is committed through this store; None
            does not check until `LedgerStore.open_job` is called.
        run: The run that is recorded for, as `LedgerStore.begin_run` gave it to the launcher.

    Raises:
        LedgerNotFoundError: If there is none, and `create` is false.
        LedgerVersionError: If another version of ledgerbeam wrote it.
        LedgerDamagedError: If what is there is not a ledger, or does not read.
        StorageError: If there is no permission, or the store does not answer.
        UsageError: If the folder is on a network filesystem.
    """
    if is_local(url):
        last_words(url, "restore it from a copy, or give another --ledger")
        return open_local_store(url, create=create, read_only=read_only, job=job, run=run)
    if create and read_only:
        raise UsageError(f"ledger {url}: it cannot be both made and read only; pass only one of create and read_only")
    from ledgerbeam.ledger.remote.store import RemoteStore  # noqa: PLC0415

    objects = ObjectFolder(url, storage_options)
    sidecar = sidecar_folder(objects.url)
    last_words(sidecar, "delete that folder, which holds only what this host knows of the ledger, and run it again")
    store = RemoteStore(objects, sidecar, read_only=read_only, job=job, run=run)
    store.open(create=create)
    return store


def open_sink(url: str, storage_options: Options | None = None, *, job: str | None = None, run: str = "") -> LedgerSink:
    """Open a ledger to record in it only, as workers do; see `open_store` for arguments and errors."""
    if is_local(url):
        return open_local_store(url, create=False, job=job, run=run)
    from ledgerbeam.ledger.remote.sink import RemoteSink  # noqa: PLC0415

    return RemoteSink(ObjectFolder(url, storage_options), job=job, run=run)


def open_mirror(url: str) -> LedgerStore:
    """Open what this host knows of a ledger, to look at it: of a remote one as of the launcher's last `refresh`.

    No request is made. Raises as `open_store` does for a local ledger.
    """
    path = url if is_local(url) else sidecar_folder(ObjectFolder(url).url)
    return open_local_store(path, create=False, read_only=True)


def claim_place(store: LedgerStore, folder: RunFolder, run: str) -> ClaimPlace:
    """Return where a launcher leaves claims for others of the same ledger, and finds theirs.

    Args:
        store: The ledger.
        folder: Of the launcher's run.
        run: Its id.
    """
    folders = run_folders(store)
    remote = _as_remote(store)
    if remote is None:
        return FolderClaims(folders, folder, run)
    from ledgerbeam.ledger.remote.claims import ObjectClaims  # noqa: PLC0415

    return ObjectClaims(remote, run, os.uname().nodename, folders.lives)


def said_claims(store: LedgerStore) -> list[Claims]:
    """Return what launchers say now that they have in work, by run: hints, also of those that have died since.

    Of a remote ledger it reads the objects that the last `refresh` has listed. What does not read is left out.

    Raises:
        StorageError: If the store does not answer.
    """
    remote = _as_remote(store)
    if remote is None:
        folders = run_folders(store)
        found = [read_folder_claims(folders, launcher.run) for launcher in folders.launchers() if launcher.lives]
    else:
        found = remote.parts()[0].read(remote.claimed)
    said: list[Claims] = []
    for data in found:
        with suppress(ValueError, LedgerbeamError):
            said += [] if data is None else [decode_claims(data)]
    return sorted(said, key=lambda claims: run_order(claims.run))


def _as_remote(store: LedgerStore) -> RemoteStore | None:
    """Return a store of a ledger that lies on an object store; None for one of a local ledger."""
    if type(store) is LmdbStore:
        return None
    from ledgerbeam.ledger.remote.store import RemoteStore  # noqa: PLC0415

    return store if isinstance(store, RemoteStore) else None


def run_folders(store: LedgerStore) -> RunFolders:
    """Return the folders that launchers on this host have for runs of a ledger: in its own folder, or the sidecar."""
    url = store.url
    return RunFolders(url if is_local(url) else sidecar_folder(url), store.ledger_id())
