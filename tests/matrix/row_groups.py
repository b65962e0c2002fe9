"""``python -m tests.matrix.row_groups --kills 20``: one large Parquet file, mapped by a job that is killed.

The file has 64 row groups. The outputs must be those of a clean run, and the rows that are done again at most those
that were in work when something was killed, and those of one flush interval.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.matrix.runs import Launcher, descendants
from tests.servers import pins

GROUPS = 64
WORKERS = 2
FLUSH_SECONDS = 1.0
ROW_BYTES = 1_000
MOST_STARTS = 200
TRACE = "ROW_GROUPS_TRACE"  # environment variable: the file in which each batch is noted


def work(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Note how many rows a batch has, and return it with the lengths of its texts."""
    import pyarrow.compute as pc

    with open(os.environ[TRACE], "ab", buffering=0) as file:
        file.write(b"%d\n" % batch.num_rows)
    return batch.append_column("length", pc.binary_length(batch["text"]))


def write_source(path: Path, megabytes: int) -> int:
    """Write the file; return its rows."""
    rows = megabytes * 10**6 // ROW_BYTES // GROUPS
    chance = np.random.default_rng(1)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in range(GROUPS):
            words = chance.bytes(ROW_BYTES * rows * 3 // 4).hex()
            texts = [words[at : at + ROW_BYTES] for at in range(0, ROW_BYTES * rows, ROW_BYTES)]
            ids = pa.array(np.arange(group * rows, (group + 1) * rows))
            writer.write_table(pa.table({"id": ids, "text": texts}, schema=schema), row_group_size=rows)
    return rows * GROUPS


class Job:
    """The job over the file, in a folder of its own."""

    def __init__(self, folder: Path, name: str, *more: str) -> None:
        self.output = folder / name
        self.trace = folder / f"{name}.trace"
        self._folder = folder
        self._command = [
            *("map", "tests.matrix.row_groups:work", "big.parquet", "--as", "arrow", "--to", "parquet"),
            *("--output", name, "--ledger", f"{name}-ledger", "--workers", str(WORKERS), "--audit=off"),
            *("--flush-interval", str(FLUSH_SECONDS), *more),
        ]
        self._starts = 0

    def start(self) -> Launcher:
        """Start it, or go on with it."""
        self._starts += 1
        env, log = pins.environment({TRACE: str(self.trace)}), f"{self.output.name}-{self._starts:03d}.log"
        return Launcher(self._command, self._folder, env, self._folder / log)

    def rows(self) -> int:
        """Return how many rows the function was given so far."""
        return sum(map(int, self.trace.read_text().split())) if self.trace.exists() else 0

    def digests(self) -> dict[str, str]:
        """Return a checksum of each output by name."""
        files = sorted(self.output.glob("*.parquet"))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run_killed(job: Job, kills: int, choice: random.Random, pause: float) -> int:
    """Run a job until it is done, with so many kills if it lasts long enough; return how many there were."""
    killed = 0
    for _ in range(MOST_STARTS):
        launcher, before = job.start(), job.rows()
        while killed < kills and _waited(job, launcher, before, choice.uniform(0, pause)):
            alive = descendants(launcher.process.pid)
            victim = choice.choice([launcher.process.pid, *alive])
            os.kill(victim, signal.SIGKILL)
            killed += 1
            before = job.rows()
        if launcher.end() == 0:
            return killed
    raise AssertionError(f"not done after {MOST_STARTS} starts\n{launcher.log()}")


def _waited(job: Job, launcher: Launcher, before: int, pause: float) -> bool:
    """Wait until the function has had more rows, and a while longer; return whether the job is still at work."""
    while not launcher.ended and job.rows() == before:
        time.sleep(0.05)
    time.sleep(pause)
    return not launcher.ended


def main() -> int:
    """Run the clean job and the killed one; return 0 if the second is as it must be."""
    parser = argparse.ArgumentParser(prog="tests.matrix.row_groups", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--task-bytes", default="4M")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with TemporaryDirectory() as made:
        folder = Path(made)
        rows = write_source(folder / "big.parquet", args.megabytes)
        clean = Job(folder, "clean", "--task-bytes", args.task_bytes)
        started = time.monotonic()
        launcher = clean.start()
        assert launcher.end() == 0, launcher.log()
        seconds = time.monotonic() - started
        expected = clean.digests()
        figures = _killed(folder, args, expected, rows, rows / seconds)
    print(figures)
    return 1 if figures["wrong"] else 0


def _killed(folder: Path, args: argparse.Namespace, expected: dict[str, str], rows: int, rate: float) -> dict[str, Any]:
    job = Job(folder, "killed", "--task-bytes", args.task_bytes)
    killed = run_killed(job, args.kills, random.Random(args.seed), rows / rate / args.kills)
    again, most = job.rows() - rows, rows // len(expected) * 2
    allowed = killed * int(WORKERS * most + FLUSH_SECONDS * rate)
    found = job.digests()
    return {
        "rows": rows, "tasks": len(expected), "kills": killed, "rows again": again, "allowed": allowed,
        "identical": found == expected, "wrong": found != expected or again > allowed or killed < args.kills,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
