"""A deterministic simulation of a ledger's hosts: launchers, workers, compactions, and what befalls them.

    python -m tests.fault.simulation --seed S [--steps N]       prints the schedule of one seed
    python -m tests.fault.simulation --seed S --seeds COUNT     runs many, and prints those that fail

Launchers share the job by claims, and their workers draw tasks from a board; claims are lost, forged, damaged and late.
Launchers and workers die between any two operations, are replaced, outlive each other; messages are permuted, repeated
and lost with their worker; sources change, change back, leave the listing and are packed anew; a user forgets some, or
takes the ledger for another job. Every machine has a clock of its own, which may be wrong and is set now and then.
Nothing but the seed decides what happens.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from ledgerbeam.errors import JobMismatchError, LedgerError, StorageError
from ledgerbeam.ledger.lmdb import store as lmdb_store
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import ClaimPlace, Claims, Span, encode_claims, order_key
from ledgerbeam.ledger.model.counting import is_done
from ledgerbeam.ledger.model.identity import Lineage, node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark
from ledgerbeam.ledger.model.store import LedgerSink
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import compaction
from ledgerbeam.ledger.remote import replay as folding
from ledgerbeam.ledger.remote import sink as remote_sink
from ledgerbeam.ledger.remote import store as remote_store
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import JOB_NAME, decode_control, decode_ledger
from ledgerbeam.ledger.remote.registration import highest_number
from ledgerbeam.ledger.remote.segment import decode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.worker import task_board
from ledgerbeam.ledger.worker.run_folders import RunFolders
from ledgerbeam.ledger.worker.sharing import FolderClaims, ObjectClaims, Sharing
from ledgerbeam.ledger.worker.task_board import Board, BoardTask
from tests.fault.baton import Actor, Killed, Scheduler
from tests.fault.ledger_model import (
    Deleted,
    Delivery,
    Expected,
    Forgotten,
    LedgerModel,
    Registered,
    Taken,
    staying,
    tree_of,
)
from tests.ledger.builders import sum_of
from tests.ledger.stores import picture

Kind = Literal["local", "remote"]

JOBS = [Job("map", {"to": name}) for name in ("a", "b", "c")]
STEPS = 150
KILL_SHARE = 0.01
FAILURE_SHARE = 0.08
AGAIN_SHARE = 0.15
CHECK_SHARE = 0.03
BEGIN_SHARE = 0.12
WAVES = 4
BEGIN = 1_800_000_000.0
CLOCKS = (-400 * 86_400.0, -3600.0, -1.0, 0.0, 0.0, 1.0, 3600.0, 400 * 86_400.0)
SET_SHARE = 0.02  # of the times that a machine looks at its clock, the share at which somebody has set it since
PATIENCE = 2_000
"""Waves of a launcher, and looks at what others have in work, at most: what is left then is left to another run.

A look takes half a second. Launchers wait until a claim expires, so these are for longer than one can hold: a claim
that outlasts a wait costs waves that what is given back would have needed.
"""


class World:
    """One ledger, its hosts and the actors on them."""

    def __init__(self, seed: int, kind: Kind, folder: Path) -> None:
        self.seed = seed
        self.kind = kind
        self.folder = folder
        self.choice = random.Random(f"{seed} {kind}")
        self.scheduler = Scheduler(random.Random(f"{seed} {kind} schedule"), KILL_SHARE)
        self.objects = SimulatedObjects(self.scheduler, self._on_create)
        self.model = LedgerModel(JOBS[0].fingerprint)
        self.hosts = self.choice.randint(1, 3) if kind == "remote" else 1
        self.published: dict[str, str] = {}
        self.recorded: dict[str, set[bytes]] = {}
        self.deleted: set[str] = set()
        self.workers: list[Actor] = []
        self.job = JOBS[0]
        self.errors: list[str] = []
        self.begun = 0
        self.overdue = 0
        self._boards: dict[str, Actor] = {}
        self._opened: list[Board] = []
        self._names = Counter[str]()
        self._versions = dict.fromkeys("abcd"[: self.choice.randint(1, 4)], 1)
        self._gone: set[str] = set()
        self._cuts: set[str] = set()
        self._packed = self.choice.random() < 0.4
        self._passed = 0.0
        self._clock = random.Random(f"{seed} {kind} clocks")
        self._offsets: dict[str, float] = {}
        self._local_number = 0
        self._stores: dict[Actor | None, list[LmdbStore]] = {}
        self._writing: dict[Actor, tuple[Sequence[Leaf], int, str]] = {}

    # Time and chance, for the ledger's modules

    def monotonic(self) -> float:
        self._passed += self.choice.random()
        return self._passed

    def time(self) -> float:
        """Seconds since 1970 by the clock of the machine that asks; clocks differ, and are set while something runs.

        A local ledger is on one machine. The workers of a remote one may be anywhere.
        """
        actor = self.scheduler.current
        machine = actor.place if actor is not None and self.kind == "remote" else ""
        if machine not in self._offsets or self._clock.random() < SET_SHARE:
            self._offsets[machine] = self._clock.choice(CLOCKS)
        return BEGIN + self.monotonic() + self._offsets[machine]

    def token_hex(self, length: int) -> str:
        return self.choice.randbytes(length).hex()

    def writer_name(self) -> str:
        return f"host-{self.token_hex(4)}"

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the ledger take its time and chance from here."""
        with contextlib.ExitStack() as stack:
            for module in (remote_store, remote_sink, compaction, lmdb_store):
                stack.enter_context(mock.patch.object(module, "time", self))
            for module in (remote_store, folding):
                stack.enter_context(mock.patch.object(module, "secrets", self))
            for module in (remote_store, compaction):
                stack.enter_context(mock.patch.object(module, "fault_point", self.objects.fault_point))
            stack.enter_context(mock.patch.object(task_board, "time", self))
            stack.enter_context(mock.patch.object(lmdb_store, "fault_point", self._reach_local))
            for module in (remote_store, remote_sink):
                stack.enter_context(mock.patch.object(module, "writer_name", self.writer_name))
            yield

    def _reach_local(self, _: str) -> None:
        actor = self.scheduler.current
        if actor is not None and self.scheduler.chance(self.scheduler.kill_share):
            raise Killed

    # What is listed

    def listing(self) -> list[Source]:
        """Return what the patterns of the job find now, packed if the job packs."""
        plain = [
            Source(f"/data/{name}.jsonl", 10, f"{version}")
            for name, version in self._versions.items()
            if name not in self._gone
        ]
        if not self._packed:
            return plain
        packs: list[list[Source]] = [[]]
        for source in plain:
            packs[-1].append(source)
            if source.url[6] in self._cuts:
                packs.append([])
        return [Source.pack(pack) for pack in packs if pack]

    def _change_listing(self) -> None:
        name = self.choice.choice(sorted(self._versions))
        what = self.choice.choice(["change", "change", "gone", "cut"])
        if what == "change":
            self._versions[name] = self.choice.randint(1, 3)
        elif what == "gone":
            self._gone ^= {name}
        else:
            self._cuts ^= {name}
        self.scheduler.schedule.append(f"world: {what} {name}")

    # Stores

    def open(self, host: str, **settings: Any) -> LmdbStore:
        """Return a store on a host, closed when the current actor ends."""
        path = str(self.folder / host)
        store = LmdbStore(path, **settings) if self.kind == "local" else RemoteStore(self.objects, path, **settings)
        self._stores.setdefault(self.scheduler.current, []).append(store)
        store.open(create=True)
        return store

    def close(self, actor: Actor | None) -> None:
        for store in self._stores.pop(actor, []):
            store.close()

    # Sharing

    @contextlib.contextmanager
    def claims(self, store: LmdbStore, host: str, run: str) -> Iterator[ClaimPlace]:
        """Return where a launcher leaves claims, while it has the folder of its run."""
        folders = RunFolders(str(self.folder / host), store.ledger_id())
        with folders.enter(f"{run}-{self.token_hex(2)}" if self.kind == "local" else run) as folder:
            if isinstance(store, RemoteStore):
                yield ObjectClaims(store, run, host, folders.lives)
            else:
                yield FolderClaims(folders, folder, os.path.basename(folder.path))

    def board(self, host: str) -> Board:
        self._names["board"] += 1
        board = Board(str(self.folder / f"board-{self._names['board']}"))
        assert self.scheduler.current is not None
        self._boards[board.path] = self.scheduler.current
        self._opened.append(board)
        return board

    def launcher_of(self, board: Board) -> Actor:
        return self._boards[board.path]

    def job_of(self, store: LmdbStore) -> str:
        return store._job or ""

    def close_boards(self) -> None:
        for board in self._opened:
            board.close()

    # What is recorded

    def _on_create(self, name: str, data: bytes) -> None:
        if name == JOB_NAME:
            self.model.job = decode_ledger(data, name)[1].fingerprint
        elif name.startswith("controls/"):
            control = decode_control(data, name)
            if control.kind == "forget" and not control.failures_only:
                self.model.forgotten.append(Forgotten(control.number, control.sources))
            elif control.job is not None:
                restarts = control.kind == "restart"
                self.model.taken.append(Taken(control.number, control.job.fingerprint, restarts))
        elif name.startswith("segments/"):
            segment = decode_segment(data, name)
            self.model.registered += [Registered(segment.number, source) for source in segment.sources]
            if segment.dropped:
                self.model.deleted.append(Deleted(segment.number, segment.dropped))
            actor = self.scheduler.current
            if segment.again:
                self.deliver(segment.leaves, segment.number, segment.job or "")
            elif actor in self._writing:
                self.deliver(*self._writing[actor])

    def deliver(self, leaves: Sequence[Leaf], number: int, job: str) -> None:
        self.model.deliveries += [Delivery(number, leaf.source_id, leaf.lineage, job) for leaf in leaves]
        for leaf in leaves:
            for output in leaf.outputs:
                self.recorded.setdefault(output.name, set()).add(leaf.source_id)

    def local_number(self) -> int:
        """Return the next number of a local ledger, where everything is ordered."""
        self._local_number += 1
        return self._local_number

    def commit(self, sink: LedgerSink, leaves: Sequence[Leaf], failures: Sequence[Failure], run: str, job: str) -> None:
        """Records as a worker does, again when the store did not answer."""
        actor = self.scheduler.current
        for leaf in leaves:
            for output in leaf.outputs:
                self.published[output.name] = output.checksum
        while True:
            if actor is not None:
                self._writing[actor] = (leaves, int(run), job)
            try:
                sink.commit(leaves, failures)
                break
            except StorageError:
                self.scheduler.point("commit again")
            except LedgerError:
                if self.kind == "remote" or isinstance(sys.exception(), JobMismatchError):
                    raise
                # Its job was restarted, and taken back: others know nothing of its sources any more.
                known = {source.id for source in self.model.expected().leaves}
                leaves = [leaf for leaf in leaves if leaf.source_id in known]
                break
            finally:
                if actor is not None:
                    del self._writing[actor]
        if self.kind == "local":
            self.deliver(leaves, self.local_number(), job)

    # Actors

    def begin(self, what: str, body: Any, place: str = "", *arguments: Any) -> Actor:
        self._names[what] += 1
        name = f"{what}-{self._names[what]}"
        return self.scheduler.start(name, place or name, lambda _: body(self, *arguments), self.close)

    def host(self) -> str:
        return f"host-{self.choice.randrange(self.hosts)}"

    def begin_something(self) -> None:
        what = self.choice.choices(
            ["launch", "change", "forget", "withdraw", "compact", "read", "job", "forge"],
            [6, 3, 1, 1, 2 * (self.kind == "remote"), 1, 0.5, self.kind == "remote"],
        )[0]
        host = self.host()
        if what == "launch":
            self.begin("launcher", launch, host, host)
        elif what == "change":
            self._change_listing()
        elif what == "forget":
            pattern = f"*{self.choice.choice(sorted(self._versions))}.jsonl"
            self.begin("forgetter", forget, host, host, pattern, self.choice.random() < 0.3)
        elif what == "withdraw":
            self.begin("withdrawer", withdraw, host, host, self.choice.choice([None, "bad", "worse"]))
        elif what == "compact":
            self.begin("compactor", run_compaction, host, host)
        elif what == "forge":
            self.begin("forger", forge)
        elif what == "read":
            self.begin("reader", read, host, host)
        else:
            self.job = self.choice.choice(JOBS)
            self.scheduler.schedule.append(f"world: job {self.job.parameters}")

    # Checks

    def fail(self, message: str) -> None:
        raise SimulationError(f"{self.kind} seed {self.seed}: {message}")

    def check_hosts(self) -> None:
        """No host may hold a source for complete that is not, as far as that host has seen."""
        for host in range(self.hosts):
            if not (self.folder / f"host-{host}" / "data.mdb").exists():
                continue
            store = LmdbStore(str(self.folder / f"host-{host}"))
            with store._open().read() as txn:
                highest = highest_number(txn)
                complete = {key for key, _ in txn.scan("completed", b"")}
            store.close()
            leaves: dict[bytes, set[Any]] = {}
            forgotten = [step for step in self.model.forgotten if step.number <= highest]
            cutoffs = {source: step.number for step in forgotten for source in step.sources}
            restarts = [step.number for step in self.model.taken if step.restarts and step.number <= highest]
            start = max(restarts, default=0)
            for delivery in self.model.deliveries:
                if delivery.number >= max(start if self.kind == "local" else 0, cutoffs.get(delivery.source_id, 0)):
                    leaves.setdefault(delivery.source_id, set()).add(delivery.lineage)
            known = {step.source.id: step.source for step in self.model.registered}
            for source in complete:
                if not leaves.get(source, set()) >= tree_of(known[source]).keys():
                    self.fail(f"host-{host} holds {known[source].urls} for complete, which it is not")

    def check(self, store: LmdbStore, what: str) -> dict[str, Any]:
        """Check that a store holds what the model holds."""
        expected = self.model.expected()
        sources = {source.id: source for source in expected.leaves}
        found = {source for page in store.source_ids() for source in page}
        if found != sources.keys():
            self.fail(f"{what}: registered {sorted(s.hex() for s in found)}, expected {list(sources.values())}")
        complete = {source for source in found if store.completed_mask([source])[0]}
        if complete != expected.complete:
            wrong = [sources[source].url for source in complete ^ expected.complete]
            self.fail(f"{what}: {wrong} {'lost' if expected.complete - complete else 'falsely complete'}")
        for source, lineages in expected.leaves.items():
            names = {output.name for lineage in lineages for output in tree_of(source)[lineage].outputs}
            got = {row.output.name for row in store.outputs() if row.source_id == source.id}
            if names != got:
                self.fail(f"{what}: outputs of {source.url}: {sorted(got)}, expected {sorted(names)}")
            entries = store.applied(source.id)
            done = {lineage for lineage in tree_of(source) if is_done(lineage, source.id, entries)}
            if source.id not in complete and done != set(lineages) & tree_of(source).keys():
                self.fail(f"{what}: finished tasks of {source.url}: {entries}, expected {lineages}")
        tasks = sum(len(lineages) for lineages in expected.leaves.values())
        if store.totals().tasks != tasks:
            self.fail(f"{what}: {store.totals().tasks} tasks, expected {tasks}")
        # A local ledger ignores what comes late from a source that was replaced: nothing there is superseded late.
        if self.kind == "remote" and (stale := store.stale_outputs()) != expected.stale:
            self.fail(f"{what}: {stale} are out of date, expected {expected.stale}")
        self._check_accounts(store, expected, what)
        return picture(store)

    def _check_accounts(self, store: LmdbStore, expected: Expected, what: str) -> None:
        """What became of records, in all and by source, and the statistics are those of the tasks that count."""
        counting = {source: [tree_of(source)[one] for one in lineages] for source, lineages in expected.leaves.items()}
        every = [leaf for leaves in counting.values() for leaf in leaves]
        if (found := store.status()["records"]) != (known := sum_of(every).as_dict()):
            self.fail(f"{what}: records {found}, expected {known}")
        by_source = {source.id: sum_of(leaves) for source, leaves in counting.items()}
        for row in store.sources():
            if row.counts.as_dict() != by_source[row.source_id].as_dict():
                self.fail(f"{what}: records of {row.url} {row.counts}, expected {by_source[row.source_id]}")
        sketches, wanted = Counter(store.statistics()), Counter(i for one in every for i in one.statistics.items())
        if sketches != wanted:
            self.fail(f"{what}: statistics {sketches}, expected {wanted}")
        rejected = {(source, node) for source, nodes in store.rejected_tasks() for node in nodes}
        if rejected != {(one.source_id, node_id(one.source_id, one.lineage)) for one in every if rejects(one)}:
            self.fail(f"{what}: tasks with rejected records {rejected}")

    def check_all(self, when: str) -> None:
        """Return every host, and one that is new, must show the same."""
        hosts = [f"host-{host}" for host in range(self.hosts)]
        if self.kind == "remote":
            hosts.append(f"new-{when}")
        pictures = {}
        for host in hosts:
            store = self.open(host)
            store.refresh()
            pictures[host] = self.check(store, f"{when}, {host}")
            if when == "quiet":
                pictures[host] = without_gone(pictures[host])
        first, *rest = pictures
        for host in rest:
            if pictures[host] != pictures[first]:
                pairs = {name: (shown, pictures[host][name]) for name, shown in pictures[first].items()}
                different = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
                self.fail(f"{when}: {first} and {host} differ: {different}")
        self.close(None)

    def check_new(self) -> None:
        """Check that a new host shows what the model has, whatever goes on."""
        if self.kind == "remote" and JOB_NAME in self.objects.content:
            self._names["new"] += 1
            current, self.scheduler.current = self.scheduler.current, None
            self.check(self.open(f"new-{self._names['new']}"), "a new host")
            self.close(None)
            self.scheduler.current = current


class SimulationError(AssertionError):
    """What a ledger held was not what it should have held."""


def without_gone(shown: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is gone: of listings that were killed or overtaken, hosts may have another opinion."""
    rows = [row._replace(state="complete" if row.state == "complete" else "open") for row in shown["rows"]]
    return {name: value for name, value in shown.items() if name not in ("gone", "sources")} | {"rows": rows}


def launch(world: World, host: str) -> None:
    """A launcher: it registers what it lists, plans what is open, starts workers, and tidies up after them."""
    job, scheduler = world.job, world.scheduler
    store = world.open(host)
    on_change: Any = world.choice.choice(["restart", "accept"])
    with contextlib.suppress(StorageError, JobMismatchError):
        before = store.job()
        store.open_job(job, on_change)
        if world.kind == "local" and before is not None and before != job:
            world.model.taken.append(Taken(world.local_number(), job.fingerprint, on_change == "restart"))
        elif world.kind == "local":
            world.model.job = job.fingerprint if before is None else world.model.job
        run = store.begin_run({})
        scheduler.point("listing")
        listing = world.listing()
        half = len(listing) // 2
        for sources in (listing[:half], listing[half:]):
            store.register(sources)
            if world.kind == "local":
                world.model.registered += [Registered(world.local_number(), source) for source in sources]
            scheduler.point("registered")
        with world.claims(store, host, run) as place:
            share(world, store, place, run, listing)
        store.refresh()
        gone = {source for page in store.source_ids() for source in page} - {source.id for source in listing}
        scheduler.point("listed")
        store.note_listing(run, listed=len(listing), finished=True, gone=gone)
        delivered = len(world.model.deliveries)
        store.refresh()
        if all(worker.ended for worker in world.workers) and len(world.model.deliveries) == delivered:
            stale = store.stale_outputs()
            for name in stale:
                world.published.pop(name, None)
                world.deleted.add(name)
            store.drop_stale(stale)
            if world.kind == "local":
                world.model.deleted.append(Deleted(world.local_number(), stale))
        scheduler.point("tidy")
        store.end_run(run, "done")


def share(world: World, store: LmdbStore, place: ClaimPlace, run: str, listing: Sequence[Source]) -> None:
    """Return as the local runner: waves of workers that draw from a board, until nothing is left or others have it."""
    scheduler, host = world.scheduler, os.path.basename(store._path)
    count = world.choice.randint(1, 3)
    sharing = Sharing(store, place, run, workers=count, clock=world.monotonic)
    for _ in range(WAVES):
        tasks = open_tasks(store, listing)
        scheduler.point("planned")
        board = world.board(host)
        board.post([(task, pickle.dumps(leaves)) for task, leaves in planned(run, tasks)])
        workers = [world.begin("worker", work, "", board, run, world.job_of(store), host) for _ in range(count)]
        world.workers += workers
        while not all(worker.ended for worker in workers):
            store.refresh()
            sharing.turn(board)
            scheduler.point("turn")
        died = [worker for worker in workers if worker.died]
        if died and tasks:
            task = tasks[0]
            store.record_deaths([Mark(task.source_id, node_id(task.source_id, task.lineage), f"{task.lineage}")])
        left = board.undrawn()
        for _ in range(PATIENCE):
            store.refresh()
            left, held = sharing.open_tasks(left)
            if held.free or not held.tasks:
                break
            sharing.publish_idle()
            scheduler.point("wait for others")
        else:
            world.overdue += 1
        if not left:
            break
    sharing.close()


def planned(run: str, tasks: Sequence[Leaf]) -> Iterator[tuple[BoardTask, list[Leaf]]]:
    """Yield the leaves that grow from one planned task together, as the board has them."""
    groups: dict[tuple[bytes, Lineage], list[Leaf]] = {}
    for leaf in tasks:
        groups.setdefault((leaf.source_id, leaf.lineage[:1]), []).append(leaf)
    for (source, lineage), leaves in groups.items():
        start = lineage[0][0] if lineage else 0
        yield BoardTask(order_key(run, source, lineage), Span(source, start, start + 1), (lineage,)), leaves


def open_tasks(store: LmdbStore, listing: Sequence[Source]) -> list[Leaf]:
    """Return what of a listing is left to do."""
    mask = store.completed_mask([source.id for source in listing])
    left = [source for source, done in zip(listing, mask, strict=True) if not done]
    found = zip(left, store.progress([source.id for source in left]), strict=True)
    return [
        leaf
        for source, progress in found
        if progress is not None
        for lineage, leaf in tree_of(source).items()
        if not is_done(lineage, source.id, progress.applied)
    ]


def work(world: World, board: Board, run: str, job: str, host: str) -> None:
    """A worker: it draws tasks and records their leaves in batches, some of them again, some as failed."""
    sink: LedgerSink = (
        world.open(host, job=job) if world.kind == "local" else RemoteSink(world.objects, job=job, run=run)
    )
    mirror = LmdbStore(str(world.folder / host), read_only=True)
    launcher = world.launcher_of(board)
    with contextlib.suppress(JobMismatchError), contextlib.closing(mirror):
        while not board.is_done():
            drawn = next(iter(board.draw()), None)
            if drawn is None:
                if launcher.ended:
                    break
                world.scheduler.point("wait")
                continue
            tasks: list[Leaf] = pickle.loads(drawn.element)
            if not mirror.finished([(tasks[0].source_id, tasks[0].lineage[:1])])[0]:
                world.begun += 1
                do(world, tasks, sink, run, job)
            board.draw(0, ended=[drawn.key])


def do(world: World, tasks: Sequence[Leaf], sink: LedgerSink, run: str, job: str) -> None:
    queue = [*tasks, *(task for task in tasks if world.choice.random() < AGAIN_SHARE)]
    while queue:
        batch = [queue.pop() for _ in range(min(len(queue), world.choice.randint(1, 3)))]
        failed = [task for task in batch if world.choice.random() < FAILURE_SHARE]
        failures = [Failure(task.source_id, task.lineage, f"{task.lineage}", "ValueError") for task in failed]
        world.scheduler.point("work")
        world.commit(sink, [task for task in batch if task not in failed], failures, run, job)


def forget(world: World, host: str, pattern: str, failures_only: bool) -> None:
    with contextlib.suppress(StorageError):
        store = world.open(host)
        urls = [] if world.kind == "remote" else [s for page in store.source_ids() for s in page]
        rows = {row.source_id for row in store.sources() if fnmatchcase(row.url, pattern)} if urls else set()
        found = store.forget(pattern, failures_only=failures_only)
        if world.kind == "local" and found and not failures_only:
            known = {step.source.id: step.source for step in world.model.registered}
            rows |= {source for source in urls if any(fnmatchcase(url, pattern) for url in known[source].urls)}
            world.model.forgotten.append(Forgotten(world.local_number(), rows))


def rejects(leaf: Leaf) -> bool:
    return leaf.counts is not None and bool(leaf.counts.rejected)


def withdraw(world: World, host: str, reason: str | None) -> None:
    with contextlib.suppress(StorageError):
        store = world.open(host)
        tasks = list(store.rejected_tasks(reason))
        before = world.model.expected().leaves if world.kind == "local" else {}
        store.withdraw(tasks)
        by_id = {source.id: source for source in before}
        for source_id, nodes in tasks if world.kind == "local" else ():
            source = by_id[source_id]
            gone = {lineage for lineage in before[source] if node_id(source_id, lineage) in nodes}
            world.model.forgotten.append(Forgotten(world.local_number(), [source_id]))
            stay = [tree_of(source)[lineage] for lineage in staying(source, before[source], gone)]
            world.deliver(stay, world.local_number(), "")


def forge(world: World) -> None:
    """Somebody writes claims that no launcher has said, damages those that are there, or deletes them."""
    with contextlib.suppress(StorageError):
        _forge(world)


def _forge(world: World) -> None:
    names = [name for name in world.objects.content if name.startswith("claims/")]
    what = world.choice.choice(["forge", "damage", "delete"])
    if what == "forge" or not names:
        spans = [Span(source.id, 0, 5) for source in world.listing() if world.choice.random() < 0.5]
        seconds = world.choice.choice([0.0, 30.0, 500.0])
        claims = Claims(world.token_hex(2), "", world.choice.randrange(9), seconds, spans)
        world.objects.replace(f"claims/{world.choice.randrange(9):06d}/forged.json", encode_claims(claims))
    elif what == "damage":
        name = world.choice.choice(sorted(names))
        data = world.objects.content.get(name, b"")
        world.objects.replace(name, data[: len(data) // 2])
    else:
        world.objects.delete(names)


def run_compaction(world: World, host: str) -> None:
    with contextlib.suppress(StorageError):
        store = world.open(host)
        if isinstance(store, RemoteStore):
            compact(store)


def read(world: World, host: str) -> None:
    with contextlib.suppress(StorageError):
        store = world.open(host)
        store.refresh()
        picture(store)


def simulate(seed: int, kind: Kind, folder: Path, steps: int = STEPS) -> World:
    """Run one seed. Raises SimulationError, and whatever the ledger raises that it should not."""
    world = World(seed, kind, folder)
    with world.installed():
        try:
            _run(world, steps)
        except BaseException as error:
            error.add_note("\n".join(world.scheduler.schedule[-400:]))
            raise
        finally:
            with contextlib.suppress(BaseException):
                world.scheduler.kill_all()
            world.close(None)
            world.close_boards()
    return world


def _run(world: World, steps: int) -> None:
    scheduler, choice = world.scheduler, world.choice
    for _ in range(steps):
        if choice.random() < BEGIN_SHARE or not scheduler.step():
            world.begin_something()
        world.check_hosts()
        if choice.random() < CHECK_SHARE:
            world.check_new()
    if choice.random() < 0.5:
        scheduler.kill_all()
    scheduler.kill_share = 0
    while scheduler.step():
        pass
    world.check_all("quiet")
    world.objects.error_share = 0
    _finish(world)
    world.check_all("done")
    if world.kind == "remote":
        for host in range(world.hosts):
            world.begin("compactor", run_compaction, f"host-{host}", f"host-{host}")
        while scheduler.step():
            pass
        world.check_all("compacted")


def _finish(world: World) -> None:
    """Run an undisturbed job to its end: what is left must be what one clean run leaves."""
    with mock.patch(f"{__name__}.FAILURE_SHARE", 0):
        world.begin("launcher", launch, "host-0", "host-0")
        while world.scheduler.step():
            pass
    store = world.open("host-0")
    listing = world.listing()
    store.refresh()
    if not all(store.completed_mask([source.id for source in listing])):
        world.fail("an undisturbed run did not complete what it listed")
    clean = {output.name: output.checksum for s in listing for leaf in tree_of(s).values() for output in leaf.outputs}
    ids = {source.id for source in listing}
    got = {row.output.name: row.output.checksum for row in store.outputs() if row.source_id in ids}
    if got != clean:
        world.fail(f"outputs are {got}, of a clean run {clean}")
    kept = {row.output.name for row in store.outputs()}
    if lost := kept & world.deleted - world.published.keys():
        world.fail(f"outputs that count were deleted as stale: {sorted(lost)}")
    if stale := world.published.keys() & set(store.stale_outputs()):
        world.fail(f"outputs are stale after they were removed: {stale}")
    world.close(None)


ERROR_SHARE = 0.01


class SimulatedObjects:
    """As strong as S3: listing, reading and creating are consistent, but a listing is made in pages."""

    url = "memory:/ledger"
    exclusive = True

    def __init__(self, scheduler: Scheduler, on_create: Callable[[str, bytes], None]) -> None:
        self.content: dict[str, bytes] = {}
        self.error_share = ERROR_SHARE  # of the creations that fail: half of them have taken effect all the same
        self._scheduler = scheduler
        self._on_create = on_create
        self._in_write = False

    def fault_point(self, point: str) -> None:
        """Stand for `faults.fault_point` of the stores: between these points a write lock is held."""
        if point == "record.before":
            self._in_write = True

    def _point(self, label: str) -> None:
        self._scheduler.point(label)

    def names(self, folder: str) -> list[str]:
        """List in two pages, between which others may create and delete."""
        self._point(f"list {folder}")
        prefix = f"{folder}/" if folder else ""
        below = sorted(name for name in self.content if name.startswith(prefix))
        if len(below) < 2 or self._scheduler.current is None:
            return below
        last = below[len(below) // 2 - 1]
        self._point(f"list {folder} after {last}")
        rest = sorted(name for name in self.content if name.startswith(prefix) and name > last)
        return [name for name in below if name <= last] + rest

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read in two goes."""
        self._point(f"read {len(names)}")
        half = len(names) // 2
        found = [self.content.get(name) for name in names[:half]]
        if half:
            self._point("read on")
        return found + [self.content.get(name) for name in names[half:]]

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; the caller may die, or get an error, before and after it took effect."""
        point = self._scheduler.locked_point if self._in_write else self._scheduler.point
        self._in_write = False
        point(f"create {name}")
        if self._fails():
            raise StorageError(f"{name}: the store did not answer")
        if name not in self.content:
            self.content[name] = data
            self._on_create(name, data)
        is_own = self.content[name] == data  # as the store answers: by the time it is heard a compaction may be done
        point(f"created {name}")
        if self._fails():
            raise StorageError(f"{name}: the answer was lost")
        return is_own

    def replace(self, name: str, data: bytes) -> None:
        """Write an object anew; the writer may die, or get an error, before and after."""
        self._point(f"write {name}")
        if self._fails():
            raise StorageError(f"{name}: the store did not answer")
        self.content[name] = data
        self._point(f"wrote {name}")

    def exists(self, name: str) -> bool:
        self._point(f"look {name}")
        return name in self.content

    def delete(self, names: Iterable[str]) -> None:
        """Delete one by one."""
        for name in names:
            self._point(f"delete {name}")
            self.content.pop(name, None)

    def _fails(self) -> bool:
        return self._scheduler.current is not None and self._scheduler.chance(self.error_share / 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--kind", choices=["local", "remote"], action="append")
    args = parser.parse_args()
    started, failed, steps = time.monotonic(), 0, 0
    for seed in range(args.seed, args.seed + args.seeds):
        for kind in args.kind or ["local", "remote"]:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                try:
                    world = simulate(seed, kind, Path(folder), args.steps)
                except Exception as error:  # noqa: BLE001 - the next seed is of use all the same
                    failed += 1
                    shown = "".join(traceback.format_exception(error)) if args.seeds == 1 else f"{error}"[:600]
                    print(f"{kind} seed {seed} --steps {args.steps}: {type(error).__name__}: {shown}", flush=True)
                    continue
                steps += len(world.scheduler.schedule)
                if args.seeds == 1:
                    print("\n".join(world.scheduler.schedule))
    print(f"{args.seeds} seeds, {steps} steps, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
