"""Table: speed-up of a CPU-bound job from one worker to two."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.data import Data, lines
from benchmarks.functions import RECORD_LOOPS
from benchmarks.peer import ROOT
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import alternate, timed

TITLE = "Two local workers: `ledgerbeam map`, the whole command timed, start-up included"

SOURCES = 20
RECORDS = 8_000
TASK_BYTES = 16_000
ROUNDS = 2


def rows(data: Data) -> Iterator[Row]:
    records = data.count(RECORDS)
    work = Work(f"map of {records:,} records, {RECORD_LOOPS:,} loops each", "records", records)
    if len(os.sched_getaffinity(0)) < 2:
        yield absent_row(work.name, ">= 1.8", "a machine with two cores")
        return
    folder = data.work / "workers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for source in range(SOURCES):
        (folder / f"{source:03d}.jsonl").write_bytes(b"".join(lines(records // SOURCES, seed=source)))
    contenders = {str(count): timed(partial(_map, folder, count)) for count in (1, 2)}
    seconds = {name: min(runs) for name, runs in alternate(contenders, ROUNDS, warm_up=False).items()}
    shutil.rmtree(folder)
    yield speed_row(work, seconds["2"], "one worker", seconds["1"], 1.8)


def _map(folder: Path, workers: int) -> None:
    for name in ("out", "ledger"):
        shutil.rmtree(folder / name, ignore_errors=True)
    command = [sys.executable, "-m", "ledgerbeam", "map", "benchmarks.functions:count_loops", f"{folder}/*.jsonl"]
    options = ["--to=jsonl", f"--output={folder}/out", f"--ledger={folder}/ledger", f"--workers={workers}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    limits = [f"--task-bytes={TASK_BYTES}", "--audit=off", "--quiet"]
    done = subprocess.run(
        [*command, *options, *limits], check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
