"""The job of the table `ledger`: its tasks read, compute for 10 ms and publish, with and without a ledger."""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

logging.getLogger().setLevel(logging.ERROR)  # before Beam is imported: it warns of extras that nobody asked for

import apache_beam as beam  # noqa: E402
from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402

from benchmarks.data import lines  # noqa: E402
from benchmarks.serve import serve  # noqa: E402
from ledgerbeam.io import write_index  # noqa: E402
from ledgerbeam.io.index.newlines import build_jsonl_index  # noqa: E402
from ledgerbeam.io.listing.pages import list_pages  # noqa: E402
from ledgerbeam.ledger import Job, Source, Task  # noqa: E402
from ledgerbeam.ledger.opening import open_local_store  # noqa: E402
from ledgerbeam.ledger.worker.writer import close_shared_writers  # noqa: E402
from ledgerbeam.transforms import CommitTasks, PlanTasks, ProcessTask, ReadTasks, WriteTasks  # noqa: E402
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle  # noqa: E402
from ledgerbeam.transforms.on_beam import give_values  # noqa: E402

TASK_SECONDS = 0.010
RECORDS_A_TASK = 20

_numbers = itertools.count()


def make(folder: str, tasks: int) -> None:
    """Create ten sources with `tasks` tasks in total."""
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder, "in").mkdir(parents=True)
    for source in range(10):
        path = Path(folder, "in", f"{source}.jsonl")
        path.write_bytes(b"".join(lines(tasks * RECORDS_A_TASK // 10, seed=source)))
        write_index(f"{path}.idx", build_jsonl_index(str(path)))


def run(folder: str, output: str, tasks: int, ledger: bool) -> float:
    """Run the job into a new folder. Return its seconds, including those to open and fill the ledger."""
    number = next(_numbers)
    published, ledger_path = Path(output, f"out-{number}"), Path(folder, f"ledger-{number}")
    page = next(iter(list_pages([f"{folder}/in/*.jsonl"])))
    sources = [Source(*row) for row in zip(page.urls, page.sizes, page.versions, strict=True)]
    started = time.perf_counter()
    handle = _open_ledger(ledger_path, sources) if ledger else None
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        written: Any = (
            pipeline
            | beam.Create(sources, reshuffle=False)
            | PlanTasks(task_records=RECORDS_A_TASK)
            | ReadTasks()
            | ProcessTask(work)
            | WriteTasks(str(published), "jsonl")
        )
        if handle is not None:
            written | CommitTasks()
        give_values(pipeline, ChainValues(handle, base=f"{folder}/in/"))
    if handle is not None:
        close_shared_writers()
    seconds = time.perf_counter() - started
    _check(published, ledger_path if ledger else None, len(sources), tasks)
    shutil.rmtree(published)
    shutil.rmtree(ledger_path, ignore_errors=True)
    return seconds


def work(task: Task) -> Task:
    """Uses 10 ms of CPU time."""
    end = time.thread_time() + TASK_SECONDS
    while time.thread_time() < end:
        pass
    return task


def _open_ledger(path: Path, sources: list[Source]) -> LedgerHandle:
    job = Job("bench", {})
    store = open_local_store(str(path), create=True)
    store.open_job(job)
    store.register(sources)
    store.close()
    marks = path / "run"
    marks.mkdir()
    return LedgerHandle(str(path), job.fingerprint, run_dir=str(marks))


def _check(output: Path, ledger: Path | None, sources: int, tasks: int) -> None:
    """Raise RuntimeError if the job has other outputs, sources or tasks than expected."""
    published = sum(1 for _ in output.rglob("*.jsonl"))
    if published != tasks:
        raise RuntimeError(f"{output}: expected {tasks} outputs, found {published}")
    if ledger is not None:
        store = open_local_store(str(ledger), create=False)
        counts = store.completed_count(), store.totals().tasks
        store.close()
        if counts != (sources, tasks):
            raise RuntimeError(f"{ledger}: expected {sources} sources and {tasks} tasks, found {counts}")


WORKS: dict[str, Callable[..., object]] = {"make": make, "run": run}

if __name__ == "__main__":
    serve(WORKS)
