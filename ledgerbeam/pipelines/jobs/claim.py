"""Opening the ledger and checking the output folder for a job, before the full listing and any work."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from ledgerbeam._base.disk import nearest_above
from ledgerbeam._base.names import REJECTS
from ledgerbeam.errors import LedgerNotFoundError, StorageError, UsageError
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.listing.nested_folders import list_files
from ledgerbeam.io.storage.files import refuse_links
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.owner import Existing, OutputOwner


@dataclass(frozen=True)
class OpenedJob:
    """A job with its opened ledger.

    Attributes:
        job: The job, with all values that are set before it starts.
        owner: The claim to the output folder, checked; None if the job has no output folder.
        state: State of the ledger before, for messages.
    """

    job: JobSpec
    store: LedgerStore
    owner: OutputOwner | None
    state: str


def open_job(
    job: JobSpec, on_change: OnJobChange, existing: Existing | None, say: Callable[[str], None] = lambda _: None
) -> OpenedJob:
    """Open the ledger for a job, and check that the output folder is this ledger's.

    A refused job creates no ledger and no output folder, and removes nothing.

    Raises:
        JobMismatchError: The ledger belongs to another job, and `on_change` refuses that.
        UsageError: The folder has other owners, and `existing` is None; or a folder of sources has the name of a route
            that the job has written to.
    """
    output = job.output if job.output is not None and is_local(job.output) else None
    if output is not None:
        _require_writable(output)
    for root in job.places().get("--index-root", ()):
        if not is_local(root):  # without the bucket every task would fail
            next(list_files(f"{root}/{MARKS_FOLDER}", job.storage_options), None)
    owner = None if job.output is None else OutputOwner(job, existing)
    known = _open_if_there(job)
    if owner is not None:
        owner.check(known)
    job = job.decided(None if known is None else known.job(), on_change, say)
    store = known or open_store(job.ledger, job.storage_options, create=True)
    if owner is not None and on_change == "restart":
        owner.begin_restart(store)
    resumed = store.job() is not None
    store.open_job(job.identity(), on_change=on_change)
    if owner is not None and owner.is_new:
        store.drop_stale(store.stale_outputs())  # they are in another folder, to which the earlier job wrote
    _check_routes(job, store)
    if owner is not None:
        owner.replace()
    if output is not None:
        _make(output)
    return OpenedJob(job, store, owner, _state(store) if resumed else "new")


def _open_if_there(job: JobSpec) -> LedgerStore | None:
    try:
        return open_store(job.ledger, job.storage_options, create=False)
    except LedgerNotFoundError:
        return None


def _require_writable(folder: str) -> None:
    """Raise an error for an output folder that is a file or cannot be created, before any work; create nothing yet."""
    found = nearest_above(folder)
    if not os.path.isdir(found):
        if found == folder:
            raise UsageError(f"{folder}: expected a folder to write below, found a file")
        raise StorageError(f"{folder}: cannot be made: {os.strerror(errno.ENOTDIR)}; give another --output")
    if not os.access(found, os.W_OK | os.X_OK):
        if found == folder:
            raise StorageError(f"{folder}: no permission to write; change it or give another --output")
        raise StorageError(f"{folder}: cannot be made: no permission to write in {found}; give another --output")


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made: {error.strerror}; give another --output") from error


def _check_routes(job: JobSpec, store: LedgerStore) -> None:
    if job.output is None:
        return
    routes = routes_of(store)
    refuse_links(job.output, [f"{job.output}/{name}" for name in (REJECTS, *routes)])
    if routes:
        from ledgerbeam.transforms.chain.route_folders import RouteFolders  # noqa: PLC0415 - brings Beam

        folders = RouteFolders(str(job.output), job.sources().base, job.storage_options)
        for route in routes:
            folders.require_free(route)


def _state(store: LedgerStore) -> str:
    sources, tasks = (store.status()[name] for name in ("sources", "tasks"))
    complete, owing = count(sources["complete"], "source"), sources["open"] + sources["failed"]
    return f"resuming: {complete} complete, {owing:,} open, {count(tasks['done'], 'task')} done"


def routes_of(store: LedgerStore) -> list[str]:
    """Return the names of the routes to which a job has written records."""
    return sorted(name for name in store.status()["records"]["written"] if name)
