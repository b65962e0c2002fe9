"""Work that the table `commits` runs in separate processes: commit, fold, compact, look up."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.made_sources import MADE_AT_ONCE, leaf, make_done, pages, sources
from benchmarks.serve import serve
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import Job, compact
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES

GROUP = MAX_ENTRIES


def _groups(leaves: list[Leaf]) -> Iterator[list[Leaf]]:
    for first in range(0, len(leaves), GROUP):
        yield leaves[first : first + GROUP]


def register(ledger: str, count: int) -> None:
    """Create a ledger with `count` sources, none of them complete."""
    shutil.rmtree(ledger, ignore_errors=True)
    store = open_local_store(ledger, create=True)
    for first in range(0, count, MADE_AT_ONCE):
        store.register(sources(range(first, min(first + MADE_AT_ONCE, count))))
    store.close()


def commit(ledger: str, first: int, count: int, start: float) -> list[float]:
    """Commit tasks in groups, each durably. Return the times of the start and of the end."""
    leaves = [leaf(source) for source in sources(range(first, first + count))]
    store = open_local_store(ledger, create=False)
    store.completed_count()
    time.sleep(max(0.0, start - time.time()))
    began = time.time()
    for group in _groups(leaves):
        store.commit(group)
    ended = time.time()
    store.close()
    return [began, ended]


def commit_sqlite(folder: str, count: int) -> float:
    """Commit the same rows to SQLite, durably, too: write-ahead log, synchronous=FULL. Return seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    leaves = [leaf(source) for source in sources(range(count))]
    base = sqlite3.connect(f"{folder}/tasks.db", isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE completed (source BLOB PRIMARY KEY, time INTEGER, tasks INTEGER) WITHOUT ROWID")
    base.execute("CREATE TABLE outputs (source BLOB, name TEXT, row TEXT, PRIMARY KEY (source, name)) WITHOUT ROWID")
    started = time.perf_counter()
    for group in _groups(leaves):
        base.execute("BEGIN")
        base.executemany("INSERT INTO completed VALUES (?, ?, 1)", [(leaf.source_id, int(started)) for leaf in group])
        rows = [
            (leaf.source_id, out.name, json.dumps([out.size, out.checksum, out.records]))
            for leaf in group
            for out in leaf.outputs
        ]
        base.executemany("INSERT INTO outputs VALUES (?, ?, ?)", rows)
        base.execute("COMMIT")
    seconds = time.perf_counter() - started
    base.close()
    shutil.rmtree(folder)
    return seconds


def mark_files(folder: str, count: int) -> list[float]:
    """Create an empty file for each task, then list the files as a rerun does. Return the seconds of both."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    started = time.perf_counter()
    for number in range(count):
        descriptor = os.open(f"{folder}/{number:09d}", os.O_CREAT | os.O_WRONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    made = time.perf_counter()
    found = set(os.listdir(folder))
    listed = time.perf_counter()
    shutil.rmtree(folder)
    if len(found) != count:
        raise RuntimeError(f"{folder}: expected {count} markers, found {len(found)}")
    return [made - started, listed - made]


def fold_and_compact(folder: str, count: int) -> list[float]:
    """Write segments of a remote ledger to a local folder; return seconds of folding and of compacting them."""
    shutil.rmtree(folder, ignore_errors=True)
    objects = ObjectFolder(f"{folder}/ledger")
    writer = RemoteStore(objects, f"{folder}/writer")
    writer.open(create=True)
    writer.open_job(Job("bench", {}))
    run = writer.begin_run({})
    made = sources(range(count))
    writer.register(made)
    sink = RemoteSink(objects, run=run)
    for group in _groups([leaf(source) for source in made]):
        sink.commit(group)
    reader = RemoteStore(objects, f"{folder}/reader")
    started = time.perf_counter()
    reader.open()
    folded = time.perf_counter()
    if reader.completed_count() != count:
        raise RuntimeError(f"{folder}: expected {count} complete sources, found {reader.completed_count()}")
    compact(reader)
    compacted = time.perf_counter()
    writer.close()
    reader.close()
    shutil.rmtree(folder)
    return [folded - started, compacted - folded]


def start_up(ledger: str, count: int) -> list[float]:
    """Open a finished ledger and look up all sources in pages. Return seconds, peak memory in MB and bytes on disk."""
    began = time.perf_counter()
    store = open_local_store(ledger, create=False)
    asked = time.perf_counter() - began
    found = 0
    for page in pages(count):
        ids = source_ids(page.urls, page.sizes, page.versions)
        began = time.perf_counter()
        found += sum(store.completed_mask(ids))
        asked += time.perf_counter() - began
    store.close()
    if found != count:
        raise RuntimeError(f"{ledger}: expected {count} complete sources, found {found}")
    return [asked, _peak_mb(), os.stat(f"{ledger}/data.mdb").st_blocks * 512]


def set_of_names(count: int) -> list[float]:
    """Fill a set with the names of finished sources, from a text in memory. Return seconds and peak memory in MB."""
    text = "\n".join(url for page in pages(count) for url in page.urls)
    began = time.perf_counter()
    done = set(text.split("\n"))
    seconds = time.perf_counter() - began
    if len(done) != count:
        raise RuntimeError(f"expected {count} names, found {len(done)}")
    return [seconds, _peak_mb()]


def _peak_mb() -> float:
    # Not ru_maxrss: a process starts with that of the one it was forked from.
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


WORKS: dict[str, Callable[..., object]] = {
    "register": register,
    "commit": commit,
    "commit_sqlite": commit_sqlite,
    "mark_files": mark_files,
    "fold_and_compact": fold_and_compact,
    "make_done": make_done,
    "start_up": start_up,
    "set_of_names": set_of_names,
}

if __name__ == "__main__":
    serve(WORKS)
