"""What a job, or the rest of one, will cost: time, requests, bytes and disk, by the law of docs/scale.md.

The law was measured on two cores with records of 100 bytes and a function that does nothing. Once a ledger has
recorded tasks of the job itself, what a task takes and writes comes from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ledgerbeam._base.disk import size_text
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec

START_SECONDS = 8.0
SOURCE_SECONDS = 0.0021
MEMBER_SECONDS = 0.0002
TASK_SECONDS = 0.0031
BYTE_SECONDS = 32e-9
"""Seconds of a worker: at the start, for each source, small source in a pack, task and byte."""

LEDGER_START, LEDGER_SOURCE, LEDGER_MEMBER, LEDGER_TASK = 200_000, 500, 200, 600
"""Bytes of a ledger on its disk: at the start, for each source, small source in a pack, and task."""

SOURCE_REQUESTS, READ_REQUESTS, WRITE_REQUESTS, LEDGER_REQUESTS = 6, 2, 2, 0.1
"""Requests: for a source to find and make its index; for a task to read, to write, and to be recorded in a ledger on a
store."""

TASK_OUTPUTS = 2
"""Files of a task: a shard and its index."""

WORKER_MEMORY, TASK_MEMORY = 171_000_000, 9.8
"""Bytes of memory of a worker: at the start, and for each byte of its task."""

OTHER_TASKS = (4, 16)
"""How many times larger the tasks of other ways are."""

OTHER_HOSTS = (4, 16)

MOST_SOURCES = 100_000
"""Up to this number of sources, the rest of a job is estimated from their sizes; reading more would take too long."""

SMALL_SOURCE = 1 << 20
"""Sources below this size, in bytes on average, are better packed."""


@dataclass(frozen=True)
class Pace:
    """How fast the tasks of a job were so far, on average.

    Attributes:
        seconds: Of a worker for each task.
        written_bytes: Bytes that it wrote.
    """

    seconds: float
    written_bytes: float


@dataclass(frozen=True)
class Speed:
    """Time that a function takes.

    Attributes:
        set_up: Seconds of a worker to import or build it.
        seconds: Seconds of a worker for each byte of its records.
    """

    set_up: float
    seconds: float


@dataclass(frozen=True)
class Cost:
    """What the work that is left will cost.

    Attributes:
        change: The option that makes this way of doing it another; empty for the job as it is.
        sources: Open sources.
        tasks: Their tasks, by their sizes.
        read_bytes: Their bytes, without those of finished tasks.
        worker_seconds: Of all workers together.
        seconds: From start to end.
        requests: To stores; 0 if everything is local.
        outputs: Files or objects written.
        output_bytes: Their size; None before the job has recorded any.
        ledger_bytes: What the ledger grows by on its disk.
        memory_bytes: Of a worker.
        basis: ``law`` where the time is that of the law, without that of the function; ``measured`` where the function
            was called with some records; ``recorded`` where tasks of the job itself have shown it.
    """

    change: str
    sources: int
    tasks: int
    read_bytes: int
    worker_seconds: float
    seconds: float
    requests: int
    outputs: int
    output_bytes: int | None
    ledger_bytes: int
    memory_bytes: int
    basis: Literal["law", "measured", "recorded"]

    def with_another(self, other: Cost) -> Cost:
        """Return what this and then another one cost."""
        known = None not in (self.output_bytes, other.output_bytes)
        return Cost(
            "",
            self.sources + other.sources,
            self.tasks + other.tasks,
            self.read_bytes + other.read_bytes,
            self.worker_seconds + other.worker_seconds,
            self.seconds + other.seconds,
            self.requests + other.requests,
            self.outputs + other.outputs,
            (self.output_bytes or 0) + (other.output_bytes or 0) if known else None,
            self.ledger_bytes + other.ledger_bytes,
            max(self.memory_bytes, other.memory_bytes),
            self.basis if self.basis == other.basis else "law",
        )


@dataclass
class _Amount:
    """Sources, their members and tasks, and the bytes of the largest task."""

    sources: int = 0
    members: int = 0
    tasks: int = 0
    task_bytes: int = 0


@dataclass(frozen=True)
class CostShape:
    """What of a job shapes its cost, besides its sources.

    Attributes:
        task_bytes: Size of a task; None where it is counted in records or places.
        expected_tasks: Returns the number of tasks of a source, by its size.
        is_packed: Whether small files are packed already, or cannot be.
        workers: Local worker processes.
        on_stores: Which of ``sources``, ``outputs`` and ``ledger`` lie on an object store.
    """

    task_bytes: int | None
    expected_tasks: Callable[[int], int]
    is_packed: bool
    workers: int
    on_stores: frozenset[str]

    @classmethod
    def of_job(cls, job: JobSpec) -> CostShape:
        """Return that of a job, its ledger resolved."""
        files = job.sources()
        places = job.places()
        places_of = {"outputs": places.pop("--output", []), "ledger": places.pop("--ledger", [])}
        places_of["sources"] = [url for urls in places.values() for url in urls]
        on_stores = {name for name, urls in places_of.items() if not all(map(is_local, urls))}
        is_sized = isinstance(files, ListedFiles) and files.task_records is None
        return cls(
            files.task_bytes if is_sized else None,
            lambda size: files.expected_tasks(Source("", size, "")),
            not is_sized or job.packer() is not None,
            job.workers,
            frozenset(on_stores),
        )

    @classmethod
    def of_ledger(cls, store: LedgerStore) -> CostShape | None:
        """Return that of the job of a ledger; None where its tasks have no size in bytes."""
        job, runs = store.job(), store.runs()
        size: Any = None if job is None else job.parameters.get("task_bytes")
        if job is None or not runs or not isinstance(size, int) or job.parameters.get("task_records"):
            return None
        first = next(iter(store.sources()), None)
        places = {"sources": "" if first is None else first.url, "outputs": str(job.parameters.get("output") or "")}
        return cls(
            size,
            lambda total: max(1, -(-total // size)),
            bool(job.parameters.get("pack_bytes")),
            int(runs[-1]["info"].get("workers") or 1),
            # An index job has no folder of outputs, and before the first page of a listing there is no source.
            frozenset(name for name, url in {**places, "ledger": store.url}.items() if url and not is_local(url)),
        )


@dataclass
class CostTally:
    """Adds up the open sources of a job.

    Args:
        shape: That of the job.
        pace: That of its tasks so far; None for that of the law.
        speed: That of its function, if there is no pace; None if it is not known.
    """

    shape: CostShape
    pace: Pace | None = None
    speed: Speed | None = None
    _bytes: int = 0
    _held: int = 0
    _amounts: dict[str, _Amount] = field(default_factory=dict)

    def add(self, size: int, members: int, done: int = 0, held: int | None = None) -> int:
        """Add an open source of which some tasks are done; return how many are left.

        Args:
            size: Its size in bytes.
            members: How many packed files it has; 0 for a plain source.
            done: How many of its tasks are done.
            held: The bytes that it holds; None for its size.
        """
        held = size if held is None else held
        expected = 1 if members and self.shape.task_bytes else self.shape.expected_tasks(held)
        left = max(1, expected - done)
        self._bytes += size * left // max(1, expected)
        self._held += held * left // max(1, expected)
        self._count("", held, members, expected, left)
        for larger in () if self.shape.task_bytes is None else (self.shape.task_bytes * times for times in OTHER_TASKS):
            others = 1 if members else max(1, -(-held // larger))
            change = f"--task-bytes {size_text(larger)}"
            self._count(change, held, members, others, max(1, others * left // max(1, expected)))
        return left

    def _count(self, change: str, size: int, members: int, tasks: int, left: int) -> None:
        amount = self._amounts.setdefault(change, _Amount())
        amount.tasks += left
        amount.task_bytes = max(amount.task_bytes, size // tasks)
        amount.members += members
        amount.sources += 1

    def cost(self) -> Cost:
        """Return what the job costs as it is."""
        return self._cost("", self._here)

    def other_ways(self) -> Iterator[Cost]:
        """Yield what it costs otherwise: in larger tasks, with small sources packed, or on several hosts."""
        here = self._here
        if here.tasks < 2:
            return
        for change, amount in self._amounts.items():
            if amount.tasks < here.tasks:
                yield self._cost(change, amount)
        if (packed := self._packed()) is not None:
            yield self._cost(*packed)
        if "ledger" in self.shape.on_stores:
            yield from (self._cost(f"{hosts} hosts", here, hosts) for hosts in OTHER_HOSTS if hosts <= here.tasks)

    @property
    def _here(self) -> _Amount:
        return self._amounts.get("", _Amount())

    def _packed(self) -> tuple[str, _Amount] | None:
        here, size = self._here, self.shape.task_bytes
        if size is None or self.shape.is_packed:
            return None
        packs = math.ceil(self._bytes / size)
        if self._bytes >= here.sources * SMALL_SOURCE or packs >= here.sources:
            return None
        return f"--pack {size_text(size)}", _Amount(packs, here.sources, packs, size)

    def _cost(self, change: str, amount: _Amount, hosts: int = 1) -> Cost:
        sources, members, tasks = amount.sources, amount.members, amount.tasks
        speed = self.speed or Speed(0.0, 0.0)
        byte_seconds = BYTE_SECONDS + speed.seconds
        work = self._held * byte_seconds if self.pace is None else self._here.tasks * self.pace.seconds
        worker_seconds = work + sources * SOURCE_SECONDS + members * MEMBER_SECONDS + tasks * TASK_SECONDS
        at_once = max(1, min(self.shape.workers * hosts, tasks))
        start = START_SECONDS / 2 + speed.set_up if tasks else 0.0  # of two workers, which was measured
        return Cost(
            change,
            sources,
            tasks,
            self._bytes,
            round(worker_seconds, 3),
            round(start + worker_seconds / at_once, 3),
            self._requests(amount),
            tasks * TASK_OUTPUTS,
            None if self.pace is None else round(self._here.tasks * self.pace.written_bytes),
            round(sources * LEDGER_SOURCE + members * LEDGER_MEMBER + tasks * LEDGER_TASK + LEDGER_START),
            round(WORKER_MEMORY + TASK_MEMORY * min(amount.task_bytes, self._held)),
            self._basis,
        )

    @property
    def _basis(self) -> Literal["law", "measured", "recorded"]:
        if self.pace is not None:
            return "recorded"
        return "law" if self.speed is None else "measured"

    def _requests(self, amount: _Amount) -> int:
        """Return the requests to whatever of sources, outputs and ledger lies on a store."""
        plain = 0 if amount.members else amount.sources
        found = {
            "sources": plain * SOURCE_REQUESTS + amount.members + amount.tasks * READ_REQUESTS,
            "outputs": amount.tasks * WRITE_REQUESTS,
            "ledger": amount.tasks * LEDGER_REQUESTS,
        }
        return math.ceil(sum(found[name] for name in self.shape.on_stores))


def cost_of_rest(store: LedgerStore, states: Mapping[str, int]) -> Cost | None:
    """Return what the rest of the job of a ledger will cost.

    It is None if all is done, before the first run, where the job's tasks have no size in bytes, or of more than
    `MOST_SOURCES` sources, which would take long to read.

    Args:
        store: The ledger.
        states: Its number of sources by state, of `LedgerStore.status`.
    """
    if not states["open"] + states["failed"] or sum(states.values()) > MOST_SOURCES:
        return None
    shape = CostShape.of_ledger(store)
    if shape is None:
        return None
    tally = CostTally(shape, pace_of(store))
    ratio = _tasks_ratio(store, shape)
    for row in store.sources():
        if row.state in ("open", "failed"):
            tally.add(row.size, row.members, row.totals.tasks, round(row.size * ratio))
    return tally.cost()


def _tasks_ratio(store: LedgerStore, shape: CostShape) -> float:
    """Return how many tasks complete sources made for each that their sizes let expect: compressed ones make more."""
    done = expected = 0
    for row in store.sources():
        if row.state == "complete" and not row.members and row.size:
            done += row.totals.tasks
            expected += shape.expected_tasks(row.size)
    return max(1.0, done / expected) if expected else 1.0


def pace_of(store: LedgerStore | None) -> Pace | None:
    """Return how fast the tasks of a ledger were; None if it has recorded none."""
    totals = None if store is None else store.totals()
    if totals is None or not totals.tasks:
        return None
    return Pace(totals.milliseconds / 1000 / totals.tasks, totals.bytes / totals.tasks)
