"""One job of the suite: a folder with sources, a ledger and outputs, started as often as it is killed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path

from ledgerbeam.ledger.opening import open_local_store
from tests.fault.corpus import RECORDS, TASK_BYTES, Clean, write_sources
from tests.fault.findings import FLUSH_SECONDS, Findings, JobFiles, Timeline, check_end, check_ledger, check_trace
from tests.fault.processes import Launch, mark_of_this_process
from tests.fault.traced import TRACE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]

FAULT_VARIABLE = "LEDGERBEAM_FAULT"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a job: this process's without what would steer it, with the user function in reach."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEDGERBEAM_"))}
    return {**env, "PYTHONPATH": str(ROOT), **(extra or {})}


Program = Callable[[str, int], list[str]]
"""Makes the words after ``python -m`` of a function, by its name, and a number of workers."""


def map_program(function: str, workers: int) -> list[str]:
    """Return the command of the suite: `ledgerbeam map`."""
    return [
        *("ledgerbeam", "map", function, "in/*.jsonl", "--output", "out", "--to", "jsonl"),
        *("--ledger", "ledger", "--workers", str(workers), "--task-bytes", str(TASK_BYTES)),
        *("--flush-interval", str(FLUSH_SECONDS), "--on-error", "reject"),
        "--audit=off",  # which calls the function twice
    ]


def own_program(*options: str, root: str = ".") -> Program:
    """Return the same job as a pipeline of a user, with Beam options; it has its function itself."""
    return lambda _, workers: ["tests.fault.own_job", root, str(workers), *options]


class Job:
    def __init__(
        self,
        folder: Path,
        workers: int,
        env: Mapping[str, str],
        function: str = "tests.fault.traced:work",
        *,
        program: Program = map_program,
    ) -> None:
        self.folder = folder
        self.workers = workers
        self.files = JobFiles.below(folder)
        self.findings = Findings()
        self.timeline = Timeline()
        temporary = folder / "tmp"  # a killed process leaves Beam's temporary folders behind
        self._env = {**env, TRACE_VARIABLE: str(self.files.trace), "TMPDIR": str(temporary)}
        self._starts = 0
        write_sources(self.files.sources)
        temporary.mkdir()
        self._command = [sys.executable, "-m", *program(function, workers)]

    def start(self, fault: str | None = None) -> Launch:
        """Start the job's command, with a fault point armed in every one of its processes if one is given."""
        self._starts += 1
        env = {**self._env, FAULT_VARIABLE: fault} if fault else self._env
        mark = mark_of_this_process() + str(self.folder)
        return Launch(self._command, self.folder, env, mark, self.folder / f"log-{self._starts:02d}")

    def records_done(self) -> int:
        """Return how many lines the trace has: it grows by one with every record that is done."""
        return self.files.trace.read_bytes().count(b"\n") if self.files.trace.exists() else 0

    def seconds_worked(self) -> float:
        """Return how long ago the first task was done, by the trace; a task at least must be."""
        with self.files.trace.open(encoding="utf-8") as trace:
            *_, last = islice(trace, RECORDS)
        return (time.monotonic_ns() - int(last.split()[2])) / 1e9

    def check(self, clean: Clean) -> None:
        """Check the ledger against the files; the job may be running."""
        tasks = check_ledger(self.files, clean, self.findings)
        self.timeline.see_recorded(tasks, time.monotonic_ns())

    def check_end(self, clean: Clean) -> int:
        """Check the finished job. Returns the number of tasks that its trace knows."""
        self.check(clean)
        check_end(self.files, clean, self.findings)
        return check_trace(self.files.trace, self.timeline, self.findings)

    def forgive(self) -> tuple[int, list[str]]:
        with closing(open_local_store(self.files.ledger, create=False)) as store:
            failures = list(store.failures())
            store.forget("*", failures_only=True)
        others = [row.error for row in failures if not row.quarantined]
        return len(failures) - len(others), others
