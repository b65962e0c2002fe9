"""Work that `scale-ledger` and `scale-hosts` run in separate processes: create, fold and compact remote ledgers."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.made_sources import leaf, sources
from benchmarks.serve import serve
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import Job, Source, compact
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.remote.replay import segment_name
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES

JOB = Job("bench", {})
COMMITS, TASKS_A_COMMIT, PAUSE_SECONDS = 20, 10, 1.0
"""Number of commits of a writer, tasks in a commit, and the pause between commits: a worker commits once a second."""

_REGISTERED_AT_ONCE = 10_000
_DONE_AT_ONCE = 64
"""Number of sources of several tasks whose tasks are done in one period, as by many hosts."""
_SAMPLE_SECONDS = 0.2


def make_ledger(ledger: str, sidecar: str, count: int, tasks: int) -> float:
    """Create a remote ledger of complete sources, in segments as launchers and workers write them.

    The order of the sources is random, as in jobs, and so is the order of the tasks of some sources at a time. Return
    the size of all objects in bytes.
    """
    objects = ObjectFolder(ledger)
    store = RemoteStore(objects, sidecar)
    store.open(create=True)
    store.open_job(JOB)
    run = store.begin_run({})
    store.close()
    size = 0
    for sequence, first in enumerate(range(0, count, _REGISTERED_AT_ONCE), 1):
        # Not by `register`, which takes everything into a sidecar that nobody needs here.
        made = sources(range(first, min(first + _REGISTERED_AT_ONCE, count)))
        segment = Segment(int(run), round(time.time(), 6), JOB.fingerprint, sources=made)
        data = encode_segment(segment)
        objects.create(segment_name(segment, int(run), "maker", sequence), data)
        size += len(data)
    sink = RemoteSink(objects, job=JOB.fingerprint, run=run)
    for leaves in _leaves(count, tasks):
        sink.commit(leaves)
    return float(sum(path.stat().st_size for path in Path(ledger).rglob("*.seg")))


def _leaves(count: int, tasks: int) -> Iterator[list[Leaf]]:
    chance = np.random.default_rng(18)
    order = chance.permutation(count)
    step = max(_DONE_AT_ONCE, MAX_ENTRIES // tasks)
    for first in range(0, count, step):
        made = sources(order[first : first + step].tolist())
        drawn = chance.permutation(len(made) * tasks).tolist()
        for begin in range(0, len(drawn), MAX_ENTRIES):
            yield [leaf(made[one // tasks], one % tasks, tasks) for one in drawn[begin : begin + MAX_ENTRIES]]


def fold(ledger: str, sidecar: str, done: int) -> dict[str, float]:
    """Open a ledger on a host without a copy of it. Return the cost; see `Taken`."""
    store = RemoteStore(ObjectFolder(ledger), sidecar)
    with Taken() as taken:
        store.open()
    _check(store, done)
    store.close()
    return {**taken.found, "sidecar": float(os.stat(f"{sidecar}/data.mdb").st_blocks * 512)}


def again(ledger: str, sidecar: str, done: int) -> dict[str, float]:
    """Open a ledger on a host with a complete copy, and refresh it once more. Return the cost of the refresh."""
    store = RemoteStore(ObjectFolder(ledger), sidecar)
    store.open()
    with Taken() as taken:
        store.refresh()
    _check(store, done)
    store.close()
    return taken.found


def compact_ledger(ledger: str, sidecar: str) -> dict[str, float]:
    """Compact a ledger on a host with a complete copy. Return the cost; see `Taken`."""
    store = RemoteStore(ObjectFolder(ledger), sidecar)
    store.open()
    with Taken() as taken:
        found = compact(store)
    store.close()
    return {**taken.found, "parts": float(found.parts), "bytes": float(found.bytes)}


def sources_of_writers(writers: int) -> list[Source]:
    """Return the sources of all writers. Each source has one task."""
    return sources(range(writers * COMMITS * TASKS_A_COMMIT))


def write(url: str, options: dict[str, Any], run: str, writers: int) -> dict[str, float]:
    """Record tasks as `writers` workers do, each with a pause between its commits. Return the duration."""
    made = sources_of_writers(writers)
    each = COMMITS * TASKS_A_COMMIT

    def work(rank: int) -> float:
        sink = RemoteSink(ObjectFolder(url, options), job=JOB.fingerprint, run=run)
        slowest = 0.0
        for first in range(rank * each, (rank + 1) * each, TASKS_A_COMMIT):
            began = time.perf_counter()
            sink.commit([leaf(source) for source in made[first : first + TASKS_A_COMMIT]])
            slowest = max(slowest, time.perf_counter() - began)
            time.sleep(PAUSE_SECONDS)
        return slowest

    began = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        slowest = max(pool.map(work, range(writers)))
    return {"seconds": time.perf_counter() - began, "commits": writers * COMMITS, "slowest": slowest}


def compact_once(url: str, options: dict[str, Any], sidecar: str) -> float:
    """Compact a ledger on a host that also did so before. Return the number of objects that the snapshot replaces."""
    store = RemoteStore(ObjectFolder(url, options), sidecar)
    store.open()
    replaced = compact(store).replaced
    store.close()
    return float(replaced)


def _check(store: RemoteStore, done: int) -> None:
    if store.completed_count() != done:
        raise RuntimeError(f"{store.url}: expected {done} complete sources, found {store.completed_count()}")


class Taken:
    """The cost of the body for this process.

    Attributes:
        found: `seconds` and `cpu` seconds, peak private `memory`, and the number of bytes `written`.
    """

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._ended = threading.Event()
        self._peak = 0
        self._watching = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._began, self._cpu, self._written = time.perf_counter(), _cpu(), _written()
        self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._watching.join()
        self.found = {
            "seconds": time.perf_counter() - self._began,
            "cpu": _cpu() - self._cpu,
            "memory": float(self._peak),
            "written": float(_written() - self._written),
        }

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            # Mapped pages of the sidecar are memory that the system can take back.
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            self._peak = max(self._peak, int(status.partition("RssAnon:")[2].split()[0]) * 1024)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _written() -> int:
    found = Path("/proc/self/io").read_text(encoding="utf-8")
    return int(found.partition("wchar:")[2].split()[0])


WORKS: dict[str, Callable[..., Any]] = {
    "make_ledger": make_ledger,
    "fold": fold,
    "again": again,
    "compact": compact_ledger,
    "write": write,
    "compact_once": compact_once,
}

if __name__ == "__main__":
    serve(WORKS)
