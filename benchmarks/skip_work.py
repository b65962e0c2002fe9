"""Work that the table `skipping` runs in separate processes: create ledgers of finished sources, and skip these."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.made_sources import PAGE, leaf, make_done
from benchmarks.made_sources import pages as made_pages
from benchmarks.serve import serve
from ledgerbeam.io.listing.pages import Page, list_pages
from ledgerbeam.ledger import Job, LedgerStore, Source
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.selection import open_sources
from ledgerbeam.pipelines.jobs.listing import JobListing
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles

_FILES_A_FOLDER = 1_000
_CONTENT = b'{"text": "a line"}\n'


def make_files(folder: str, ledger: str, count: int) -> None:
    """Create small files, 1,000 in each folder, and a ledger in which all of them are complete."""
    if os.path.isdir(ledger):
        return
    for start in range(0, count, _FILES_A_FOLDER):
        below = Path(folder, f"{start // _FILES_A_FOLDER:05d}")
        below.mkdir(parents=True, exist_ok=True)
        for number in range(start, min(start + _FILES_A_FOLDER, count)):
            (below / f"part-{number:08d}.jsonl").write_bytes(_CONTENT)
    _complete(ledger, list_pages([f"{folder}/**/*.jsonl"], None, PAGE))


def skip_files(folder: str, ledger: str) -> tuple[float, float]:
    """List files and skip them. Return seconds, and peak memory in MB."""
    return _skip(ledger, list_pages([f"{folder}/**/*.jsonl"], None, PAGE), 0)


def stat_files(folder: str) -> tuple[float, float]:
    """Get each name and size from the kernel: the least work of a listing. Return seconds, and 0 for the memory."""
    started = time.perf_counter()
    for below in os.scandir(folder):
        with os.scandir(below.path) as entries:
            for entry in entries:
                entry.stat()
    return time.perf_counter() - started, 0.0


def skip_pages(ledger: str, count: int) -> tuple[float, float]:
    """Skip a generated listing. Return seconds, without those to generate it, and peak memory in MB."""
    pages = _Untimed(made_pages(count))
    seconds, memory = _skip(ledger, pages, count)
    return seconds - pages.seconds, memory


def _skip(ledger: str, pages: Iterator[Page], count: int) -> tuple[float, float]:
    """Skip the sources of a listing like the launcher of a rerun. Return seconds, and the peak memory in MB."""
    store = open_local_store(ledger, create=False)
    run = store.begin_run({})
    listed = JobListing(IndexJob(files=ListedFiles()), store, pages=pages, run=run)
    started = time.perf_counter()
    left = sum(len(sources) for sources in listed.open_sources())
    seconds = time.perf_counter() - started
    store.end_run(run, "done")
    if left or not listed.found or listed.found != (count or listed.found):
        raise RuntimeError(f"{ledger}: expected {count} complete sources, found {listed.found}, {left} of them open")
    # Not ru_maxrss: a process starts with that of the one it was forked from.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return seconds, int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


class _Untimed(Iterator[Page]):
    """Pages, and the seconds to generate them."""

    def __init__(self, pages: Iterator[Page]) -> None:
        self._pages = pages
        self.seconds = 0.0

    def __next__(self) -> Page:
        started = time.perf_counter()
        try:
            return next(self._pages)
        finally:
            self.seconds += time.perf_counter() - started


def _open(page: Page, store: LedgerStore) -> list[Source]:
    ids = source_ids(page.urls, page.sizes, page.versions)
    return open_sources(ids, page.urls, page.sizes, page.versions, store)


def _complete(ledger: str, pages: Iterator[Page]) -> None:
    """Register sources, and commit one task of each source, with an output, as a job does."""
    partial = f"{ledger}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    store = open_local_store(partial, create=True)
    store.open_job(Job("bench", {}))
    for page in pages:
        sources = _open(page, store)
        store.commit([leaf(source) for source in sources])
    store.close()
    os.rename(partial, ledger)


WORKS: dict[str, Callable[..., object]] = {
    "make_files": make_files,
    "make_done": make_done,
    "skip_files": skip_files,
    "skip_pages": skip_pages,
    "stat_files": stat_files,
}

if __name__ == "__main__":
    serve(WORKS)
