"""The ledger on an object store: any number of hosts write to it, and each reads it through a local sidecar.

==============================  ======================================================================
``job.json``                    makes the folder a ledger, see `controls`
``controls/000007.json``        ordered events: runs, forgetting, another job
``segments/000007/W-S.seg``     the S-th batch of writer W, which had seen control object 7
``snapshots/NAME.json``         the manifest of a snapshot: its parts, and the objects that it replaces
``snapshots/NAME/000001.seg``   a part of a snapshot
``claims/000007/HOST.json``     the work of run 7 in progress on a host: a hint, not part of the ledger (`claims`)
==============================  ======================================================================

Only claims are ever changed, and nothing is locked. An object is created, folded into the sidecars of its readers, and
deleted once a snapshot replaces it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ledgerbeam._base.disk import make_folders
from ledgerbeam.errors import JobMismatchError, LedgerDamagedError, LedgerNotFoundError, LedgerVersionError
from ledgerbeam.ledger.lmdb import commit as lmdb_commit
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb import withdrawal as lmdb_withdrawal
from ledgerbeam.ledger.lmdb.environment import Environment, acquire, release
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.files import DATA_FILE, LOCK_FILE, refuse_network_filesystem
from ledgerbeam.ledger.lmdb.store import LmdbStore, first_error
from ledgerbeam.ledger.lmdb.tables import GONE, KEY_FINGERPRINT, META, SOURCES, Transaction
from ledgerbeam.ledger.lmdb.withdrawal import Withdrawal
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.job import Job, OnJobChange
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf, Mark, Withdrawn
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.controls import (
    CONTROLS,
    JOB_NAME,
    Control,
    Kind,
    control_name,
    decode_ledger,
    encode_control,
    encode_ledger,
)
from ledgerbeam.ledger.remote.registration import highest_number, mark_folded
from ledgerbeam.ledger.remote.replay import SEGMENTS, SNAPSHOTS, Replayer, segment_name
from ledgerbeam.ledger.remote.segment import Objects, Segment, create_own, encode_segment

_LEAF_BYTES = 500  # approximate size of a leaf in a segment, without its statistics
_BATCH_BYTES = 16 << 20


def writer_name() -> str:
    """Return a unique name for one writer: host, process and a random part."""
    host = re.sub(r"[^A-Za-z0-9.]", "-", os.uname().nodename)[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Create a folder, and exclude other processes of this host while the body opens or removes its files."""
    refuse_network_filesystem(folder)  # locks may not work there
    with translated(folder):
        make_folders(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile would keep it
            os.close(descriptor)


def _ledger_of(environment: Environment) -> bytes | None:
    with environment.read() as txn:
        return txn.get(META, sidecar.KEY_LEDGER)


class RemoteStore(LmdbStore):
    """A ledger on an object store, read through a sidecar on this host; see `store.LedgerStore`.

    All reads use the sidecar, with the state of the last `refresh`. A change is made in the sidecar and created as an
    object in one step. If the process dies between the two, the next refresh folds the object.
    """

    def __init__(
        self, objects: Objects, sidecar_path: str, *, read_only: bool = False, job: str | None = None, run: str = ""
    ) -> None:
        """Create a store without opening it.

        The sidecar is written also if the ledger is opened for reading only. Losing it costs only time.
        """
        super().__init__(sidecar_path, read_only=read_only, job=job, run=run)
        self._objects = objects
        self._create = False  # if true, the store may be used before the ledger has a job
        self._is_maker = False  # whether this store created the ledger; checked when a run starts
        self._writer = ""
        self._sequence = 0
        self.claimed: list[str] = []  # names of the claims in the listing of the last refresh

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {"read_only": self._read_only, "job": self._job, "run": self._run}
        return partial(RemoteStore, **settings), (self._objects, self._path), {"_create": self._create}

    def __repr__(self) -> str:
        return f"RemoteStore({self._objects.url!r}, {self._path!r})"

    @property
    def url(self) -> str:
        return self._objects.url

    def open(self, *, create: bool = False) -> None:
        """Open the sidecar and refresh it; see `opening.open_store` for errors."""
        self._create = self._create or create
        self._fold(self._open_sidecar(*self._read_job()))

    def _read_job(self) -> tuple[bytes | None, bytes]:
        """Return the bytes of ``job.json`` and the id in it; None and an empty id if it is missing, to be created."""
        (data,) = self._objects.read([JOB_NAME])
        if data is None and not self._create and any(map(self._objects.names, (CONTROLS, SEGMENTS, SNAPSHOTS))):
            (data,) = self._objects.read([JOB_NAME])  # another launcher may have created it before these
            if data is None:
                raise self._lost_error()
        if data is not None:
            return data, decode_ledger(data, f"{self.url}/{JOB_NAME}")[0].encode()
        if self._create:
            return None, b""
        raise LedgerNotFoundError(
            f"ledger {self.url}: it does not exist ({JOB_NAME} is missing); check the URL, or run the job that creates "
            f"it with --ledger {self.url}"
        )

    def _open_sidecar(self, data: bytes | None, ledger: bytes) -> bytes | None:
        """Open the sidecar. A sidecar that is damaged, of another version, or of a former ledger here is recreated.

        `data` is the content of ``job.json``, and `ledger` the id in it. Return the content: it may exist by now.
        """
        with _locked(self._path):
            environment = self._usable(ledger)
            if environment is None:
                data, ledger = self._read_job()  # another process may have created it since it was read
                environment = self._usable(ledger)
            if environment is None:
                for name in (DATA_FILE, LOCK_FILE):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self._path, name))
                environment = acquire(self._path, read_only=False, create=True)
        if ledger and _ledger_of(environment) is None:
            environment.write(lambda txn: txn.put(META, sidecar.KEY_LEDGER, ledger))
        self._adopt(environment)
        return data

    def _usable(self, ledger: bytes) -> Environment | None:
        """Open the sidecar; return None if it is damaged or belongs to another ledger."""
        try:
            environment = acquire(self._path, read_only=False, create=True)
        except (LedgerDamagedError, LedgerVersionError):
            return None
        if _ledger_of(environment) in (None, ledger):
            return environment
        release(environment)
        return None

    def forget_parent(self) -> None:
        """Drop the state inherited by a forked process."""
        super().forget_parent()
        self._writer = ""

    def refresh(self) -> None:
        self._fold()

    def _fold(self, job: bytes | None = None) -> Replayer:
        replayer = Replayer(self._objects, self._open(), job)
        replayer.fold_new()
        self.claimed = replayer.claims
        return replayer

    def _deleted_error(self) -> LedgerNotFoundError:
        return LedgerNotFoundError(f"ledger {self.url}: {JOB_NAME} was deleted just after its creation; run again")

    def _lost_error(self) -> LedgerDamagedError:
        return LedgerDamagedError(
            f"ledger {self.url}: {JOB_NAME} is missing, so the job of its other objects is unknown; nothing was "
            "changed. Restore it from a copy (a bucket with versions keeps one). If there is none, delete the folder "
            "or give another --ledger: everything is done again"
        )

    def parts(self) -> tuple[Objects, Environment]:
        """Return the access to the objects of the ledger, and its open sidecar."""
        return self._objects, self._open()

    def ledger_id(self) -> str:
        with self._open().read() as txn:
            if txn.get(META, sidecar.KEY_LEDGER) is None:
                raise LedgerNotFoundError(f"ledger {self.url}: it does not exist yet; start a job with it first")
            return lmdb_jobs.read_id(txn, sidecar.KEY_LEDGER)

    # Recording

    def _record(
        self, change: Callable[[Transaction], Segment | None], number: int | None = None
    ) -> tuple[lmdb_commit.CommitChanges, list[Mark]]:
        """Apply a segment to the sidecar and create its object, or do neither. Refused leaves are left out.

        Nothing is recorded if `change` returns None. The time, job and number of the segment are set here. Without a
        number, it has the number of this store's run, or without a run the greatest number in the sidecar. Returns the
        result of `apply.apply_segment`.
        """
        self._require_writable()
        at = round(time.time(), 6)
        names: dict[int, str] = {}  # of the first attempt, in case LMDB repeats the change with a larger map

        def both(txn: Transaction) -> tuple[lmdb_commit.CommitChanges, list[Mark]]:
            segment = change(txn)
            if segment is None:
                return lmdb_commit.CommitChanges(), []
            numbered = number or int(self._run or highest_number(txn))
            whole = dataclasses.replace(segment, number=numbered, at=at, job=self._job)
            outcome, quarantined = sidecar.apply_segment(txn, whole)
            if outcome.refused:
                refused = {id(leaf) for leaf, _ in outcome.refused}
                good = [leaf for leaf in whole.leaves if id(leaf) not in refused]
                if not good and not whole.failures:
                    return outcome, quarantined
                whole = dataclasses.replace(whole, leaves=good)
            self._writer = self._writer or writer_name()
            self._sequence += 1  # other threads wait for this transaction
            name = names.setdefault(numbered, segment_name(segment, numbered, self._writer, self._sequence))
            mark_folded(txn, name)
            fault_point("record.before")
            create_own(self._objects, name, encode_segment(whole))
            fault_point("record.after")
            return outcome, quarantined

        return self._open().write(both)

    def register(self, sources: Sequence[Source]) -> None:

        def change(txn: Transaction) -> Segment | None:
            ids = [source.id for source in sources]
            known = txn.get_many(SOURCES, ids)
            # A known source is not registered again: on a host that has not seen its replacement yet, it would come
            # back.
            news = [source for source in sources if source.id not in known]
            back = list(txn.get_many(GONE, ids).keys() & known.keys())
            return Segment(sources=news, back=back) if news or back else None

        if sources:
            self._record(change)

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        """Record finished and failed tasks; see `LedgerStore.commit`. They are compared with the sidecar."""
        started = time.monotonic()
        self.refresh()

        def change(txn: Transaction) -> Segment:
            self._require_own_job(txn)
            return Segment(leaves=leaves, failures=failures)

        outcome, _ = self._record(change)
        if outcome.refused:
            raise first_error(outcome.refused)
        return CommitResult(outcome.completed, len(outcome.fresh), time.monotonic() - started)

    def record_deaths(self, marks: Sequence[Mark]) -> list[Mark]:
        return self._record(lambda _: Segment(deaths=marks))[1]

    def drop_stale(self, names: Iterable[str]) -> None:
        dropped = list(names)
        if dropped:
            number = self._read(highest_number)  # includes all that this run has seen superseded since its start
            self._record(lambda _: Segment(dropped=dropped), number)

    def set_gone(self, ids: Iterable[bytes]) -> None:
        gone = list(ids)
        self._record(lambda _: Segment(gone=gone))

    def _change_run(self, run: str, changed: Mapping[str, Any], gone: Sequence[bytes] | None = None) -> None:
        def change(txn: Transaction) -> Segment:
            lmdb_jobs.get_run(txn, run)  # raises for an unknown run
            return Segment(runs={run: changed}, gone=gone)

        self._record(change)

    # Ordered events

    def _create_control(self, kind: Kind, due: Callable[[Transaction], Mapping[str, Any] | None]) -> Control | None:
        """Create the next control object, and fold it; return None if it was cancelled.

        `due` reads a sidecar with all earlier control objects, and returns the fields of the new one; None cancels it.
        """
        self._require_writable()
        token = secrets.token_hex(8)
        while True:
            with self._open().read() as txn:
                fields = due(txn)
                if fields is None:
                    return None
                number = highest_number(txn) + 1
            control = Control(number=number, kind=kind, at=round(time.time(), 3), token=token, **fields)
            name, data = control_name(control, exclusive=self._objects.exclusive), encode_control(control)
            created = self._objects.create(name, data)
            if created and self._objects.exclusive:  # then its number follows the greatest number of the sidecar
                Replayer(self._objects, self._open()).fold_control(name, data)
                return control
            self.refresh()
            if created:
                return control

    def open_job(self, job: Job, on_change: OnJobChange = "refuse") -> None:
        if self.job() is not None:
            self.refresh()
        stored = self.job() or self._create_ledger(job.with_texts())

        def due(txn: Transaction) -> Mapping[str, Any] | None:
            return None if txn.get(META, KEY_FINGERPRINT) == job.fingerprint.encode() else {"job": job.with_texts()}

        if stored.fingerprint != job.fingerprint:
            if on_change == "refuse":
                raise JobMismatchError(lmdb_jobs.mismatch(job, stored, self.url))
            self._create_control("restart" if on_change == "restart" else "accept", due)
        self._job = job.fingerprint

    def _create_ledger(self, job: Job) -> Job:
        """Create ``job.json``; of several launchers one wins. Return the job of the ledger.

        Raises LedgerDamagedError if ``job.json`` was deleted: the job of the existing runs is then unknown.
        """
        self._require_writable()
        if self._read(lambda txn: lmdb_jobs.read_job(txn) is None and highest_number(txn) > 0):
            # The folded objects must not be taken for a part of the ledger that is created here next.
            self._open().write(lambda txn: txn.put(META, sidecar.KEY_LEDGER, b"lost"))
            raise self._lost_error()
        made = encode_ledger(secrets.token_hex(16), job)
        if self._objects.create(JOB_NAME, made) and self._objects.exclusive:
            self._is_maker = True
            Replayer(self._objects, self._open(), made).fold_job()
            return self.job() or job
        (data,) = self._objects.read([JOB_NAME])
        if data is None:
            raise self._deleted_error()
        self._fold(data)  # the job may have changed by now
        return self.job() or decode_ledger(data, f"{self.url}/{JOB_NAME}")[1]

    def begin_run(self, info: Mapping[str, Any]) -> str:
        """Record the start of a run, and return its id. From then on, this store records for the run.

        Raises JobMismatchError or LedgerNotFoundError if the job was changed, or the ledger deleted, meanwhile.
        """
        lmdb_jobs.require_info(info)
        if not self._fold().has_job and self._is_maker:
            raise self._deleted_error()

        def due(txn: Transaction) -> Mapping[str, Any]:
            self._require_own_job(txn)
            return {"info": dict(info)}

        run = self._create_control("run", due)
        if run is not None:
            self._run = run.run
        return self._run

    def _require_own_job(self, txn: Transaction) -> None:
        if self._job is not None:
            lmdb_jobs.check_fingerprint(txn, self._job, self.url)

    def _forget(self, sources: Sequence[bytes], *, failures_only: bool) -> list[str]:
        def due(txn: Transaction) -> Mapping[str, Any]:
            noted = {} if failures_only else {source: lmdb_withdrawal.noted(txn, source) for source in sources}
            why = {source: reasons for source, reasons in noted.items() if any(reasons)}
            return {"sources": sources, "failures_only": failures_only, "withdrawn": why}

        urls = self._read(lambda txn: lmdb_sources.urls_of_sources(txn, sources))
        if sources:
            self._create_control("forget", due)
        return urls

    def withdraw(self, tasks: Iterable[tuple[bytes, Collection[bytes]]]) -> int:
        """Make single finished tasks run again; see `LedgerStore.withdraw`.

        A control object forgets the sources of the tasks. The other tasks of these sources are recorded again, with the
        number of the control object.
        """
        self.refresh()
        return sum(self._withdraw(batch) for batch in self._batches(tasks))

    def _withdraw(self, tasks: Mapping[bytes, Collection[bytes]]) -> int:
        plans: dict[bytes, Withdrawal] = {}

        def due(txn: Transaction) -> Mapping[str, Any] | None:
            # The tasks that stay must be computed with all earlier numbers, for instance with a restart of the job.
            self._require_own_job(txn)
            found = ((source, lmdb_withdrawal.plan(txn, source, nodes)) for source, nodes in tasks.items())
            plans.clear()
            plans.update((source, plan) for source, plan in found if plan is not None)
            if not plans:
                return None
            why = {source: plan.why.plus(lmdb_withdrawal.noted(txn, source)) for source, plan in plans.items()}
            return {"sources": list(plans), "failures_only": False, "withdrawn": why}

        control = self._create_control("forget", due)
        fault_point("withdraw.forgotten")
        segment = Segment(leaves=[leaf for plan in plans.values() for leaf in plan.staying], again=True)
        if control is not None and segment.leaves:
            outcome, _ = self._record(lambda _: segment, control.number)
            if outcome.refused:
                raise first_error(outcome.refused)
        return sum(plan.withdrawn for plan in plans.values())

    def withdraw_failures(self, reasons: Mapping[bytes, Collection[str]], quarantined: Iterable[bytes]) -> None:
        freed = list(quarantined)

        def due(txn: Transaction) -> Mapping[str, Any]:
            known = {source: lmdb_withdrawal.noted(txn, source) for source in reasons}
            why = {source: Withdrawn(failed=tuple(reasons[source])).plus(noted) for source, noted in known.items()}
            return {"sources": freed, "failures_only": True, "withdrawn": why}

        self._create_control("forget", due)

    def _batches(self, tasks: Iterable[tuple[bytes, Collection[bytes]]]) -> Iterator[dict[bytes, Collection[bytes]]]:
        """Yield tasks by source, in batches: the leaves that are recorded again for a batch have a bounded size."""
        batch: dict[bytes, Collection[bytes]] = {}
        size = 0
        for source, nodes in tasks:
            with self._open().read() as txn:
                plan = lmdb_withdrawal.plan(txn, source, nodes)
            if plan is None:
                continue
            batch[source] = nodes
            size += _LEAF_BYTES + sum(_LEAF_BYTES + leaf.sketch_bytes for leaf in plan.staying)
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = {}, 0
        if batch:
            yield batch
