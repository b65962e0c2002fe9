"""Jobs of a given shape for `benchmarks.scale`, started as a user starts them, and the memory of their processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer import ROOT

LINE = b'{"text": "' + b"x" * 87 + b'"}\n'
"""A record of 100 bytes."""

SAMPLE_SECONDS = 0.05
_FILES_A_FOLDER = 1_000
_LINKS_A_FILE = 50_000  # ext4 has room for 65,000
_KINDS = {"ledgerbeam-work": "worker", "ledgerbeam-wave": "runner"}  # by the name of a process


@dataclass(frozen=True)
class Shape:
    """The shape of a job: number of sources, of tasks in each, of records of 100 bytes in each task; size of packs."""

    sources: int
    tasks_each: int
    records_each: int
    pack_bytes: int = 0

    @property
    def tasks(self) -> int:
        return self.sources * self.tasks_each

    @property
    def task_bytes(self) -> int:
        return self.records_each * len(LINE)

    @property
    def size(self) -> int:
        return self.tasks * self.task_bytes


@dataclass(frozen=True)
class Measured:
    """A run of a job.

    Attributes:
        tasks: Number of finished tasks. With packs it is smaller than that of the shape.
        seconds: Duration of the whole command, including its start.
        memory: Peak resident memory of the launcher, of the process of the runner, and of a worker, in bytes.
        ledger: Size of the ledger on disk, in bytes.
    """

    shape: Shape
    tasks: int
    seconds: float
    memory: Mapping[str, int]
    ledger: int


def write_sources(folder: Path, shape: Shape) -> None:
    """Create the sources of a job, 1,000 in each folder.

    Many of them are hard links to one file, so that ten million fit on a disk. The job treats them as separate sources.
    """
    content = LINE * (shape.records_each * shape.tasks_each)
    written = folder
    for number in range(shape.sources):
        below = folder / f"{number // _FILES_A_FOLDER:05d}"
        if number % _FILES_A_FOLDER == 0:
            below.mkdir(parents=True)
        path = below / f"{number:08d}.jsonl"
        if number % _LINKS_A_FILE == 0:
            written = path
            written.write_bytes(content)
        else:
            path.hardlink_to(written)


def run_twice(folder: Path, shape: Shape, workers: int) -> tuple[Measured, Measured]:
    """Run a job, and then run the finished job again. Return both measurements."""
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder / "in", shape)
    places = {"sources": f"{folder}/in/**/*.jsonl", "output": f"{folder}/out", "ledger": f"{folder}/ledger"}
    try:
        clean = run(places, shape, workers, ledger=folder / "ledger")
        return clean, run(places, shape, workers, ledger=folder / "ledger")
    finally:
        shutil.rmtree(folder)


def run(
    places: Mapping[str, str], shape: Shape, workers: int, *, ledger: Path, env: Mapping[str, str] | None = None
) -> Measured:
    """Run a job to its end, and measure it.

    Raises:
        RuntimeError: The job ended with an error, or has another number of tasks than its shape.
    """
    command = [sys.executable, "-m", "ledgerbeam", "convert", places["sources"], "--output", places["output"]]
    options = ["--to=jsonl", "--ledger", places["ledger"], f"--workers={workers}", f"--task-bytes={shape.task_bytes}"]
    options += [f"--pack={shape.pack_bytes}"] if shape.pack_bytes else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, *options, "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    memory: dict[str, int] = {}
    watching = threading.Thread(target=_watch, args=(process, memory))
    watching.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - started
    watching.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join([*command, *options])} ended with {process.returncode}:\n{err}")
    done = json.loads(out)["tasks"]["done"]
    if done != shape.tasks and not 0 < done * bool(shape.pack_bytes) < shape.tasks:
        raise RuntimeError(f"{shape}: expected {shape.tasks} tasks, found {done}")
    return Measured(shape, done, seconds, memory, disk_bytes(ledger))


def _watch(process: subprocess.Popen[str], memory: dict[str, int]) -> None:
    """Record the peak memory of a launcher and of the processes that it starts, until it has ended."""
    while process.poll() is None:
        for pid in tree(process.pid):
            try:
                name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            except OSError:  # it has ended
                continue
            kind = "launcher" if pid == process.pid else _KINDS.get(name, "")
            if kind and "VmHWM:" in status:
                peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                memory[kind] = max(memory.get(kind, 0), peak)
        time.sleep(SAMPLE_SECONDS)


def tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            threads = os.listdir(f"/proc/{parent}/task")
            children = [
                Path(f"/proc/{parent}/task/{thread}/children").read_text(encoding="utf-8") for thread in threads
            ]
        except OSError:  # it has ended
            continue
        found += [int(word) for text in children for word in text.split()]
    return found


def disk_bytes(folder: Path) -> int:
    """Return the size on disk of the files below a folder, in bytes; 0 if there is no folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
