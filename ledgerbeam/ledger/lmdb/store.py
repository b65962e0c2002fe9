"""The ledger in a local LMDB environment: `store.LedgerStore` on this machine."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from ledgerbeam.errors import LedgerError, UsageError
from ledgerbeam.ledger.lmdb import accounts as lmdb_accounts
from ledgerbeam.ledger.lmdb import commit as lmdb_commit
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb import views as lmdb_views
from ledgerbeam.ledger.lmdb import withdrawal as lmdb_withdrawal
from ledgerbeam.ledger.lmdb.commit import prepare
from ledgerbeam.ledger.lmdb.data_file import BeingPublishedError, Replacing
from ledgerbeam.ledger.lmdb.environment import Environment, acquire, key_pages, release
from ledgerbeam.ledger.lmdb.failures import Stamp, count_deaths
from ledgerbeam.ledger.lmdb.files import INITIAL_MAP_BYTES, require_room
from ledgerbeam.ledger.lmdb.tables import COMPLETED, FAILED, OUTPUTS, PENDING, PENDING_ROW, SOURCES, Transaction
from ledgerbeam.ledger.lmdb.views import CompletedIds
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.job import Job, OnJobChange
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf, Mark, OutputRow, SourceProgress, Withdrawn
from ledgerbeam.ledger.model.store import Noted
from ledgerbeam.ledger.model.task import Source

_Result = TypeVar("_Result")
_Values = ParamSpec("_Values")

_LOOKUPS = 1000  # look-ups of single tasks between two calls of `trim`

_stores: weakref.WeakSet[LmdbStore] = weakref.WeakSet()


def _reads(
    view: Callable[Concatenate[Transaction, _Values], _Result],
) -> Callable[Concatenate[LmdbStore, _Values], _Result]:
    """Return the method of a view that one transaction reads."""

    def method(self: LmdbStore, /, *args: _Values.args, **options: _Values.kwargs) -> _Result:
        return self._read(lambda txn: view(txn, *args, **options))

    return method


def _reads_pages(
    view: Callable[Concatenate[Environment, _Values], _Result],
) -> Callable[Concatenate[LmdbStore, _Values], _Result]:
    """Return the method of a view that several transactions read."""

    def method(self: LmdbStore, /, *args: _Values.args, **options: _Values.kwargs) -> _Result:
        return view(self._open(), *args, **options)

    return method


class LmdbStore:
    """A ledger in a local folder, shared by the processes of one host; see `store.LedgerStore` for its methods.

    It opens on first use. A pickled or forked copy opens again in its process.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool = False,
        job: str | None = None,
        run: str = "",
        map_bytes: int = INITIAL_MAP_BYTES,
    ) -> None:
        """Create a store without opening it; see `opening.open_local_store`.

        The initial address space, `map_bytes`, is a multiple of the page size. It grows as needed.
        """
        self._path = os.path.abspath(path)
        self._read_only = read_only
        self._job = job
        self._run = run
        self._map_bytes = map_bytes
        self._environment: Environment | None = None
        self._lock = threading.Lock()
        self._completed = CompletedIds()
        self._looked_up = 0
        _stores.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {"read_only": self._read_only, "job": self._job, "run": self._run}
        return partial(LmdbStore, **settings, map_bytes=self._map_bytes), (self._path,)

    def __repr__(self) -> str:
        return f"LmdbStore({self._path!r})"

    @property
    def url(self) -> str:
        return self._path

    def open(self, *, create: bool = False) -> None:
        """Open the environment now, to raise its errors early; see `opening.open_store` for them."""
        if create:
            require_room(self._path)
        self._adopt(acquire(self._path, read_only=self._read_only, create=create, map_bytes=self._map_bytes))

    def _adopt(self, environment: Environment) -> None:
        """Use an environment that was just acquired, unless another thread was faster."""
        with self._lock:
            if self._environment is None:
                self._environment = environment
                return
        release(environment)

    def close(self) -> None:
        """Close the environment. The next use of the store opens it again."""
        with self._lock:
            environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)

    def _open(self) -> Environment:
        environment = self._environment
        while environment is None:
            self.open()
            environment = self._environment
        return environment

    def forget_parent(self) -> None:
        """Drop the state inherited by a forked process; locks may belong to threads that do not exist here."""
        self._lock = threading.Lock()
        self._environment = None
        self._completed = CompletedIds()

    def _read(self, view: Callable[[Transaction], _Result]) -> _Result:
        with self._open().read() as txn:
            return view(txn)

    def _write(self, change: Callable[[Transaction], _Result]) -> _Result:
        self._require_writable()
        return self._open().write(change)

    def _require_writable(self) -> None:
        if self._read_only:
            raise UsageError(f"ledger {self.url}: it was opened read only; open it for writing to change it")

    def refresh(self) -> None:
        """Do nothing: all processes of this host see each commit."""

    def ledger_id(self) -> str:
        return self._read(lmdb_jobs.read_id)

    def open_job(self, job: Job, on_change: OnJobChange = "refuse") -> None:
        self._write(lambda txn: lmdb_jobs.open_job(txn, job, on_change, self._path))
        self._job = job.fingerprint

    def register(self, sources: Sequence[Source]) -> None:
        is_entered = not sources
        with Replacing(self._path) as replacing:
            while not is_entered:
                try:
                    self._write(lambda txn: lmdb_sources.register(txn, sources, before_retiring=replacing.hold))
                    is_entered = True
                except BeingPublishedError:  # wait outside the transaction, so that others can commit
                    replacing.wait()

    def completed_mask(self, ids: Sequence[bytes]) -> list[bool]:
        """Return for each source of a page whether it is complete; see `views` for the memory needed."""
        return self._completed.mask(self._open(), ids)

    def pending(self, source_id: bytes) -> int:
        with self._open().read() as txn:
            if txn.get(SOURCES, source_id) is None or txn.get(COMPLETED, source_id) is not None:
                return 0
            row = txn.get(PENDING, source_id)
            return 1 if row is None else int(PENDING_ROW.unpack(row)[0])

    def progress(self, ids: Sequence[bytes]) -> list[SourceProgress | None]:
        return self._read(lambda txn: [lmdb_views.progress(txn, source) for source in ids])

    def finished(self, tasks: Sequence[tuple[bytes, Lineage]]) -> list[bool]:
        environment = self._open()
        with environment.read() as txn:
            found = [lmdb_views.is_finished(txn, source, lineage) for source, lineage in tasks]
        self._looked_up += len(tasks)
        if self._looked_up > _LOOKUPS:
            self._looked_up = 0
            environment.trim()
        return found

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        started = time.monotonic()
        prepared = prepare(leaves)
        now = time.time()

        def change(txn: Transaction) -> lmdb_commit.CommitChanges:
            if self._job is not None:
                lmdb_jobs.check_fingerprint(txn, self._job, self._path)
            stamp = Stamp(lmdb_jobs.newest_number(txn), now)
            number = int(self._run) if self._run else None
            lmdb_sources.supersede_late(txn, prepared)
            outcome = lmdb_commit.record(txn, prepared, failures, stamp, number=number)
            fault_point("flush.before_commit")
            return outcome

        outcome = self._write(change)
        if outcome.refused:
            raise first_error(outcome.refused)
        return CommitResult(outcome.completed, len(outcome.fresh), time.monotonic() - started)

    def record_deaths(self, marks: Sequence[Mark]) -> list[Mark]:
        for mark in marks:
            mark.check()
        now = time.time()
        return self._write(lambda txn: count_deaths(txn, marks, Stamp(lmdb_jobs.newest_number(txn), now)))

    def forget(self, pattern: str, *, failures_only: bool = False) -> list[str]:
        """Make sources run again; see `LedgerStore.forget`. Its time grows with the number of registered sources."""
        self.refresh()
        return self._forget(lmdb_sources.matching(self._open(), pattern), failures_only=failures_only)

    def forget_sources(self, ids: Iterable[bytes]) -> None:
        found = list(ids)
        if found:
            self._forget(found, failures_only=False)

    def _forget(self, sources: Sequence[bytes], *, failures_only: bool) -> list[str]:
        return self._write(lambda txn: lmdb_sources.forget(txn, sorted(sources), failures_only=failures_only))

    def note_file_times(self, times: Mapping[bytes, list[int]]) -> None:
        self._require_writable()
        if times:  # for a remote ledger, the times are recorded in the sidecar only
            self._open().write(lambda txn: lmdb_sources.note_file_times(txn, times))

    def withdraw(self, tasks: Iterable[tuple[bytes, Collection[bytes]]]) -> int:
        """Make single finished tasks run again; see `LedgerStore.withdraw`. Each source is one transaction."""
        now = time.time()
        number = 0
        for source, nodes in tasks:

            def change(txn: Transaction, source: bytes = source, nodes: Collection[bytes] = nodes) -> int:
                plan = lmdb_withdrawal.plan(txn, source, nodes)
                if plan is None:
                    return 0
                lmdb_withdrawal.note(txn, source, plan.why.plus(lmdb_withdrawal.noted(txn, source)))
                lmdb_sources.forget(txn, [source], failures_only=False)
                stamp = Stamp(lmdb_jobs.newest_number(txn), now)
                lmdb_commit.record(txn, prepare(plan.staying), (), stamp, again=True)
                return plan.withdrawn

            number += self._write(change)
            fault_point("withdraw.forgotten")
        return number

    def withdraw_failures(self, reasons: Mapping[bytes, Collection[str]], quarantined: Iterable[bytes]) -> None:

        def change(txn: Transaction) -> None:
            for source, failed in reasons.items():
                why = Withdrawn(failed=tuple(failed))
                lmdb_withdrawal.note(txn, source, why.plus(lmdb_withdrawal.noted(txn, source)))
            lmdb_sources.forget(txn, quarantined, failures_only=True)

        self._write(change)

    def drop_stale(self, names: Iterable[str]) -> None:
        dropped = list(names)
        self._write(lambda txn: lmdb_withdrawal.drop_stale(txn, dropped))

    def set_gone(self, ids: Iterable[bytes]) -> None:
        gone = sorted(ids)
        self._write(lambda txn: lmdb_sources.set_gone(txn, gone))

    def source_urls(self, ids: Iterable[bytes]) -> dict[bytes, str]:
        return self._read(lambda txn: {source: url for source in ids if (url := lmdb_views.url_of(txn, source))})

    def source_ids(self) -> Iterator[list[bytes]]:
        return key_pages(self._open(), SOURCES)

    def begin_run(self, info: Mapping[str, Any]) -> str:
        """Record the start of a run, and return its id. From then on, this store records for the run."""
        now = time.time()
        lmdb_jobs.require_info(info)
        self._run = self._write(lambda txn: lmdb_jobs.begin_run(txn, info, now))
        return self._run

    def note_listing(self, run: str, *, listed: int, finished: bool, gone: Iterable[bytes] = ()) -> None:
        self._change_run(run, {"listed": listed, "listing_finished": finished}, gone=sorted(gone) if finished else None)

    def note(self, run: str, found: Noted) -> None:
        self._change_run(run, lmdb_jobs.noted(found))

    def end_run(self, run: str, outcome: str, *, tidied: bool = False) -> None:
        self._change_run(run, {"ended": time.time(), "outcome": outcome, "tidied": tidied})

    def _change_run(self, run: str, changed: Mapping[str, Any], gone: Sequence[bytes] | None = None) -> None:
        """Replace fields of the row of a run; with `gone`, also the set of gone sources."""

        def change(txn: Transaction) -> None:
            lmdb_jobs.update_run(txn, run, changed)
            if gone is not None:
                lmdb_sources.set_gone(txn, gone)

        self._write(change)

    def failed_mask(self, ids: Sequence[bytes], run: str = "") -> list[bool]:
        return lmdb_views.failed_mask(self._open(), ids, int(run or 0))

    def outputs(self, *, ordered: bool = True) -> Iterator[OutputRow]:
        view = lmdb_views.ordered_outputs if ordered else lmdb_views.outputs
        return view(self._open())

    completed_count = _reads(lambda txn: txn.count(COMPLETED))
    source_count = _reads(lambda txn: txn.count(SOURCES))
    failure_count = _reads(lambda txn: txn.count(FAILED))
    output_count = _reads(lambda txn: txn.count(OUTPUTS))
    records = _reads(lambda txn: lmdb_accounts.record_counts(txn, lmdb_commit.read_totals(txn)))
    environment_id = _reads(lmdb_jobs.read_id)
    job = _reads(lmdb_jobs.read_job)
    runs = _reads(lmdb_jobs.all_runs)
    status = _reads(lmdb_views.status)
    gone_ids = _reads(lmdb_views.gone_ids)
    applied = _reads(lmdb_views.applied)
    attempts = _reads(lmdb_views.attempts)
    source_outputs = _reads(lmdb_views.source_outputs)
    file_times = _reads(lmdb_sources.file_times)
    totals = _reads(lmdb_commit.read_totals)
    history = _reads(lmdb_accounts.read_history)
    recorded = _reads(lmdb_accounts.read_recorded)
    durations = _reads(lmdb_accounts.read_durations)
    statistics = _reads_pages(lmdb_accounts.all_statistics)
    rejected_tasks = _reads_pages(lmdb_accounts.rejected_tasks)
    sources = _reads_pages(lmdb_views.sources)
    task_counts = _reads_pages(lmdb_views.task_counts)
    failures = _reads_pages(lmdb_views.failures)
    output_columns = _reads_pages(lmdb_views.output_columns)
    content_columns = _reads_pages(lmdb_views.content_columns)
    withdrawn = _reads_pages(lmdb_withdrawal.withdrawn)
    stale_outputs = _reads_pages(lmdb_withdrawal.stale_outputs)
    superseded_names = _reads_pages(lmdb_withdrawal.superseded_names)


def first_error(refused: Sequence[tuple[Leaf, LedgerError]]) -> LedgerError:
    """Return the error of the first leaf that a commit refused, with the number of the others."""
    error = refused[0][1]
    more = f"{len(refused) - 1} more {'task' if len(refused) == 2 else 'tasks'}"
    return error if len(refused) == 1 else type(error)(f"{error} (and {more} in error)")


def _after_fork() -> None:
    for store in list(_stores):
        store.forget_parent()


os.register_at_fork(after_in_child=_after_fork)
