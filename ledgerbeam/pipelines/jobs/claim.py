"""Opening of the ledger and the output folder for a job, and selection of the sources of a partial rerun.

A partial rerun repeats the tasks that failed, or that rejected records, for a given reason. It removes their failures
and rejects from the ledger, and records the tasks as withdrawn. The run also records its selection. If the run is
killed, the same command finds both and continues.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal

from ledgerbeam._base.disk import nearest_above
from ledgerbeam._base.names import ASIDE
from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import LedgerNotFoundError, StorageError, UsageError
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.listing.nested_folders import RouteFolders
from ledgerbeam.io.storage.files import refuse_links
from ledgerbeam.io.storage.objects import list_files
from ledgerbeam.io.storage.publish import require_atomic
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.answer_files import PACKED
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.owner import Existing, OutputOwner
from ledgerbeam.pipelines.outputs.recorded import routes_of
from ledgerbeam.pipelines.report.run_info import DONE, TASKS_FAILED

Kind = Literal["failed", "rejected"]

_SHOWN_REASONS = 10
_NOTED_AT_ONCE = 10_000


@dataclass(frozen=True)
class OpenedJob:
    """A job with its opened ledger."""

    job: JobSpec  # the job, with all values that are set before it starts
    store: LedgerStore
    owner: OutputOwner | None  # the checked claim to the output folder; None if the job has no output folder
    state: str  # state of the ledger before this run, for messages


def open_job(
    job: JobSpec, on_change: OnJobChange, existing: Existing | None, say: Callable[[str], None] = lambda _: None
) -> OpenedJob:
    """Open the ledger for a job, and check that the output folder belongs to the ledger.

    A refused job creates no ledger and no output folder, and removes nothing.

    Raises:
        JobMismatchError: The ledger belongs to another job, and `on_change` refuses that.
        UsageError: The folder has other owners, and `existing` is None; or a source folder has a written route's name.
    """
    output = job.output if job.output is not None and is_local(job.output) else None
    if output is not None:
        _require_writable(output)
    if job.answers is not None:
        _check_answers(job, job.answers)
    for root in job.places().get("--index-root", ()):
        if not is_local(root):  # without the bucket every task would fail
            next(list_files(f"{root}/{MARKS_FOLDER}", job.storage_options), None)
    owner = None if job.output is None else OutputOwner(job, existing)
    known = open_if_there(job)
    if owner is not None:
        owner.check(known)
    job = job.decided(None if known is None else known.job(), on_change, say)
    store = known or open_store(job.ledger, job.storage_options, create=True)
    if owner is not None and on_change == "restart":
        owner.begin_restart(store)
        if known is not None:
            from ledgerbeam.pipelines.outputs.published import withdraw_earlier  # noqa: PLC0415 - for few runs

            withdraw_earlier(job, say)
    before = store.job()
    store.open_job(job.identity(), on_change=on_change)
    is_new = before is None or (on_change == "restart" and before != store.job())
    if owner is not None and owner.is_new:
        store.drop_stale(store.stale_outputs())  # they are in another folder, to which the earlier job wrote
    _check_routes(job, store)
    if owner is not None:
        owner.replace()
    if output is not None:
        _make(output)
    if job.answers is not None and is_local(job.answers):
        _make(job.answers, "--answers")
    return OpenedJob(job, store, owner, "new" if is_new else _state(store))


def open_if_there(job: JobSpec, *, read_only: bool = False) -> LedgerStore | None:
    """Return the ledger of a job; None if it does not exist."""
    try:
        return open_store(job.ledger, job.storage_options, create=False, read_only=read_only)
    except LedgerNotFoundError:
        return None


def _check_answers(job: JobSpec, folder: str) -> None:
    """Raise an error for a folder in which answers cannot be kept, before any call."""
    for option, other in (("--output", job.output), ("--ledger", job.ledger)):
        one, two = (f"{os.path.realpath(url) if is_local(url) else url}/" for url in (folder, other or folder))
        if other is not None and (one.startswith(two) or two.startswith(one)):
            raise UsageError(
                f"--answers {folder}: expected a folder apart from {option} {other}, because other jobs use it, too; "
                "give another folder"
            )
    if is_local(folder):
        _require_writable(folder, "--answers")
    else:
        require_atomic(folder)
        next(list_files(f"{folder}/{PACKED}", job.storage_options), None)  # without the bucket every task would fail


def _require_writable(folder: str, option: str = "--output") -> None:
    """Raise an error for a folder that is a file or cannot be created, before any work; create nothing yet."""
    found = nearest_above(folder)
    if not os.path.isdir(found):
        if found == folder:
            raise UsageError(f"{folder}: expected a folder, found a file; give another {option}")
        raise StorageError(f"{folder}: cannot be created: {os.strerror(errno.ENOTDIR)}; give another {option}")
    if not os.access(found, os.W_OK | os.X_OK):
        if found == folder:
            raise StorageError(f"{folder}: no permission to write; change its mode or give another {option}")
        raise StorageError(f"{folder}: cannot be created: no permission to write in {found}; give another {option}")


def _make(folder: str, option: str = "--output") -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be created: {error.strerror}; give another {option}") from error


def _check_routes(job: JobSpec, store: LedgerStore) -> None:
    if job.output is None:
        return
    routes = routes_of(store)
    refuse_links(job.output, [f"{job.output}/{name}" for name in (*ASIDE, *routes)])
    if routes:
        folders = RouteFolders(str(job.output), job.sources().base, job.storage_options)
        for route in routes:
            folders.require_free(route)


def _state(store: LedgerStore) -> str:
    sources, tasks = (store.status()[name] for name in ("sources", "tasks"))
    complete, owing = count(sources["complete"], "source"), sources["open"] + sources["failed"]
    return f"resuming: {complete} complete, {owing:,} open, {count(tasks['done'], 'task')} done"


def partial_run(store: LedgerStore, kind: Kind, pattern: str) -> dict[str, str]:
    """Return the selection that a partial run records as ``only``."""
    job = store.job()
    return {kind: pattern, "job": "" if job is None else job.fingerprint}


def require_failed(stores: Sequence[LedgerStore], pattern: str) -> None:
    """Raise UsageError if no failure has a reason that matches, and the last run did not retry such failures either.

    `stores` are the ledgers of all stages of a job, the last stage last.
    """
    for store in stores:
        if _last_only(store).get("failed") == pattern or any(_withdrawn(store, "failed", pattern)):
            return
        if any(fnmatchcase(row.reason, pattern) for row in store.failures()):
            return
    raise UsageError(
        f"--only-failed {pattern}: no failure has such a reason; to see all: ledgerbeam ledger failures "
        f"{shlex.quote(stores[-1].url)}"
    )


def sources_that_failed(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Return the IDs of the sources with a failure whose reason matches, and release their quarantined tasks.

    Incomplete sources that an earlier run selected by such a reason are included.
    """
    withdrawn = frozenset(_withdrawn(store, "failed", pattern))
    reasons = defaultdict[bytes, set[str]](set)
    quarantined: set[bytes] = set()
    for row in store.failures():
        if fnmatchcase(row.reason, pattern):
            reasons[row.source_id].add(row.reason)
            if row.quarantined:
                quarantined.add(row.source_id)
    rest = iter(reasons.items())
    while some := dict(islice(rest, _NOTED_AT_ONCE)):
        store.withdraw_failures(some, quarantined & some.keys())
    return withdrawn | reasons.keys()


def withdraw_rejected(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Withdraw the tasks that rejected records, so that they run again, and return the IDs of their sources.

    Their outputs stay in place until they are written again. If the last run had the same selection and did not finish,
    no more tasks are withdrawn. The pattern is a shell pattern, or the exact text, of the reasons.

    Raises:
        UsageError: No record was rejected for such a reason, and the last run did not repeat such tasks either.
    """
    withdrawn = frozenset(_withdrawn(store, "rejected", pattern))
    last = _last_only(store)
    if last == partial_run(store, "rejected", pattern) and (withdrawn or not _has_ended(store)):
        return withdrawn
    known = store.status()["records"]["rejected"]
    reasons = [reason for reason in known if _matches(reason, pattern)]
    if not reasons and not withdrawn and last.get("rejected") != pattern:
        named = ", ".join(map(printable, sorted(known)[:_SHOWN_REASONS])) or "none"
        raise UsageError(
            f"--only-rejected {pattern}: no record was rejected for such a reason; the reasons are: {named}; to see "
            f"all: ledgerbeam ledger rejects {shlex.quote(store.url)}"
        )
    tasks: dict[bytes, set[bytes]] = {}
    for reason in reasons:
        for source, nodes in store.rejected_tasks(reason):
            tasks.setdefault(source, set()).update(nodes)
    store.withdraw(tasks.items())
    return withdrawn | tasks.keys()


def _withdrawn(store: LedgerStore, kind: Kind, pattern: str) -> Iterator[bytes]:
    """Yield the IDs of sources with tasks that were withdrawn for a matching reason, and have not all run again."""
    for source, why in store.withdrawn():
        if any(_matches(reason, pattern) for reason in getattr(why, kind)):
            yield source


def _matches(reason: str, pattern: str) -> bool:
    return reason == pattern or fnmatchcase(reason, pattern)


def _last_only(store: LedgerStore) -> dict[str, Any]:
    """Return the selection of the last run; empty if that was no partial run."""
    last = store.status()["last_run"]
    only = {} if last is None else last["info"].get("only")
    return only if isinstance(only, dict) else {}


def _has_ended(store: LedgerStore) -> bool:
    last = store.status()["last_run"]
    return last is not None and last["outcome"] in (DONE, TASKS_FAILED)
