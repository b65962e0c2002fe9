"""Cost estimates of a job or its remaining work: time, requests, bytes and disk, by the law of docs/scale.md.

The law is a set of formulas. Their constants were measured on two cores with records of 100 bytes and a function that
does nothing. If a ledger has recorded tasks of the job, the time and output of a task come from the ledger.
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

# Seconds of a worker: at the start, and per source, small source in a pack, task and byte.
START_SECONDS, SOURCE_SECONDS, MEMBER_SECONDS, TASK_SECONDS, BYTE_SECONDS = 1.6, 0.0005, 0.00008, 0.0018, 26e-9

LEDGER_START, LEDGER_SOURCE, LEDGER_MEMBER, LEDGER_TASK = 200_000, 600, 300, 650
"""Disk bytes of a ledger: at the start, and per source, small source in a pack, and task."""

SOURCE_REQUESTS, READ_REQUESTS, WRITE_REQUESTS, LEDGER_REQUESTS = 4, 2, 2, 0.1
"""Requests to find a source and make its index; then of a task: to read, to write, and to record it in a ledger on an
object store."""

TASK_OUTPUTS = 2  # number of files of a task: a shard and its index

WORKER_MEMORY, TASK_MEMORY = 76_000_000, 9.8
"""Bytes of memory of a worker: at the start, and per byte of its task."""

OTHER_TASKS = (4, 16)  # factors of the larger task sizes whose costs are shown as alternatives

OTHER_HOSTS = (4, 16)

MOST_SOURCES = 100_000
"""Maximum number of sources whose sizes are read to estimate the remaining work; reading more takes too long."""

SMALL_SOURCE = 1 << 20  # mean size of sources in bytes below which packing is suggested


@dataclass(frozen=True)
class Pace:
    """Mean time and output of the tasks of a job so far."""

    seconds: float  # worker seconds per task
    written_bytes: float  # bytes written per task


@dataclass(frozen=True)
class Speed:
    """Speed of a function."""

    set_up: float  # seconds of a worker to import or build the function
    seconds: float  # seconds of a worker per byte of its records


@dataclass(frozen=True)
class Cost:
    """Estimated cost of the remaining work."""

    change: str  # option that changes the job to this alternative; empty for the job as it is
    sources: int
    tasks: int  # number of their tasks, from their sizes
    read_bytes: int  # bytes of the sources, without the bytes of finished tasks
    worker_seconds: float  # seconds of all workers together
    seconds: float  # seconds from start to end
    requests: int  # requests to object stores; 0 if everything is local
    outputs: int
    output_bytes: int | None  # size of the outputs in bytes; None before the job has recorded any
    ledger_bytes: int  # growth of the ledger on its disk in bytes
    memory_bytes: int
    # Source of the time. ``law``: the law alone, without the function. ``measured``: the law and the function, called
    # with some records. ``recorded``: recorded tasks of the job.
    basis: Literal["law", "measured", "recorded"]

    def with_another(self, other: Cost) -> Cost:
        """Return the cost of this work followed by other work."""
        known = None not in (self.output_bytes, other.output_bytes)
        return Cost(
            change="",
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            output_bytes=(self.output_bytes or 0) + (other.output_bytes or 0) if known else None,
            memory_bytes=max(self.memory_bytes, other.memory_bytes),
            basis=self.basis if self.basis == other.basis else "law",
        )


_SUMMED = ("sources", "tasks", "read_bytes", "worker_seconds", "seconds", "requests", "outputs", "ledger_bytes")


@dataclass
class _Amount:
    """Numbers of sources, of packed files (members) and of tasks, and the bytes of the largest task."""

    sources: int = 0
    members: int = 0
    tasks: int = 0
    task_bytes: int = 0


@dataclass(frozen=True)
class CostShape:
    """Parameters of a job that determine its cost, besides its sources."""

    task_bytes: int | None  # size of a task; None if it is counted in records or places
    expected_tasks: Callable[[int], int]  # returns the number of tasks of a source of a given size
    is_packed: bool  # whether small files are packed already, or cannot be packed
    workers: int
    on_stores: frozenset[str]  # subset of ``sources``, ``outputs`` and ``ledger`` that is on an object store

    @classmethod
    def of_job(cls, job: JobSpec) -> CostShape:
        """Return the shape of a job whose ledger has a URL."""
        files = job.sources()
        places = job.places()
        places_of = {"outputs": places.pop("--output", []), "ledger": places.pop("--ledger", [])}
        places.pop("--answers", None)
        places_of["sources"] = [url for urls in places.values() for url in urls]
        on_stores = {name for name, urls in places_of.items() if not all(map(is_local, urls))}
        is_sized = isinstance(files, ListedFiles) and files.task_records is None
        return cls(
            files.task_bytes if is_sized else None,
            lambda size: files.expected_tasks(Source("", size, "")),
            not is_sized or job.packer() is not None or job.writes_columns,
            job.workers,
            frozenset(on_stores),
        )

    @classmethod
    def of_ledger(cls, store: LedgerStore) -> CostShape | None:
        """Return the shape of the job of a ledger; None if its tasks have no size in bytes."""
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
            # An index job has no output folder, and there is no source before the first page of a listing.
            frozenset(name for name, url in {**places, "ledger": store.url}.items() if url and not is_local(url)),
        )


@dataclass
class CostTally:
    """Sums the cost of the open sources of a job."""

    shape: CostShape
    pace: Pace | None = None  # pace of the tasks so far; None to use the law
    speed: Speed | None = None  # speed of the function, used without a pace; None if it is not known
    _bytes: int = 0
    _held: int = 0
    _amounts: dict[str, _Amount] = field(default_factory=dict)

    def add(self, size: int, members: int, done: int = 0, held: int | None = None) -> int:
        """Add an open source and return the number of its remaining tasks.

        Args:
            size: Size of the source in bytes.
            members: Number of packed files; 0 for a plain source.
            done: Number of done tasks.
            held: Size after decompression in bytes; None if it equals `size`.
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
        """Return the cost with the job's present options."""
        return self._cost("", self._here)

    def other_ways(self) -> Iterator[Cost]:
        """Yield the costs of alternatives: larger tasks, packed small sources, or several hosts."""
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
        # Sources, outputs or a ledger on a disk need no requests.
        requests = {
            "sources": (0 if members else sources) * SOURCE_REQUESTS + members + tasks * READ_REQUESTS,
            "outputs": tasks * WRITE_REQUESTS,
            "ledger": tasks * LEDGER_REQUESTS,
        }
        at_once = max(1, min(self.shape.workers * hosts, tasks))
        start = START_SECONDS / 2 + speed.set_up if tasks else 0.0  # START_SECONDS was measured with two workers
        return Cost(
            change,
            sources,
            tasks,
            self._bytes,
            round(worker_seconds, 3),
            round(start + worker_seconds / at_once, 3),
            math.ceil(sum(requests[name] for name in self.shape.on_stores)),
            tasks * TASK_OUTPUTS,
            None if self.pace is None else round(self._here.tasks * self.pace.written_bytes),
            round(sources * LEDGER_SOURCE + members * LEDGER_MEMBER + tasks * LEDGER_TASK + LEDGER_START),
            round(WORKER_MEMORY + TASK_MEMORY * min(amount.task_bytes, self._held)),
            "recorded" if self.pace is not None else "law" if self.speed is None else "measured",
        )


def cost_of_rest(store: LedgerStore, states: Mapping[str, int]) -> Cost | None:
    """Return the estimated cost of the remaining work of a ledger's job, from its number of sources by state.

    None if all work is done, before the first run, if tasks have no size in bytes, or with over `MOST_SOURCES` sources.
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
    """Return recorded tasks per expected task of complete sources, at least 1. Compressed sources make more tasks."""
    done = expected = 0
    for row in store.sources():
        if row.state == "complete" and not row.members and row.size:
            done += row.totals.tasks
            expected += shape.expected_tasks(row.size)
    return max(1.0, done / expected) if expected else 1.0


def pace_of(store: LedgerStore | None) -> Pace | None:
    """Return the mean time and output of the tasks of a ledger; None if it has no tasks."""
    totals = None if store is None else store.totals()
    if totals is None or not totals.tasks:
        return None
    return Pace(totals.milliseconds / 1000 / totals.tasks, totals.bytes / totals.tasks)
