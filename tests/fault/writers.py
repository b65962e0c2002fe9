"""``python -m tests.fault.writers``: forked writers of one ledger are killed, far faster than whole jobs can be.

A start is 1, 2 or 4 writers that do the tasks of a job, each as the worker of a cluster would; with a remote ledger
each reads it through a sidecar of its own, and a compaction may run beside them. They are killed one by one, at random
times or at a named point, and after every death the ledger is checked against the files.

This process forks, so it never starts a thread: whatever may start one is done in a child.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.ledger import Job, compact
from ledgerbeam.ledger.model.faults import arm
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.transforms.chain.base import LedgerHandle
from tests.fault.chain import Chain
from tests.fault.corpus import SOURCES, TASK_BYTES, TASKS, Clean, write_sources
from tests.fault.findings import Figures, Findings, JobFiles, Timeline, check_end, check_ledger, check_trace
from tests.fault.traced import TRACE_VARIABLE

JOB_KILLS = 16
LIMIT_SECONDS = 240.0
WORKING_SECONDS = {"local": 0.25, "remote": 0.6}  # longest time from a start, or from a kill, to the next kill

POINTS = {
    **dict.fromkeys(("publish.before", "publish.after"), 10),
    **dict.fromkeys(("flush.begin", "flush.before_commit", "flush.after_commit"), 6),
}
REMOTE_POINTS = {"record.before": 2, "record.after": 2}
COMPACT_POINTS = {"compact.before_manifest": 1, "compact.after_manifest": 1, "compact.delete": 2}
POINT_SHARE = 0.4
COMPACT_SHARE = 0.3
FORGET_HOST_SHARE = 0.1
FINISHES = 6


class WriterCampaign:
    """A seeded series of jobs whose writers are killed."""

    def __init__(
        self,
        folder: Path,
        clean: Clean,
        kills: int,
        seed: str,
        *,
        remote: str | None = None,
        on_kill: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.figures = Figures()
        self._folder = folder
        self._clean = clean
        self._kills = kills
        self._random = random.Random(seed)
        self._remote = remote
        self._on_kill = on_kill
        self._kind = "local" if remote is None else "remote"
        self._shared = 0.0

    def run(self) -> Figures:
        """Make the kills; no writer is left when this returns or raises."""
        number = 0
        while self.figures.kills < self._kills:
            self._run_job(self._folder / f"job-{number:05d}", (1, 2, 4)[number % 3])
            number += 1
        return self.figures

    def _run_job(self, folder: Path, writers: int) -> None:
        ledger = None if self._remote is None else f"{self._remote}/{folder.name}"
        files = JobFiles.below(folder, ledger)
        write_sources(files.sources)
        os.environ[TRACE_VARIABLE] = str(files.trace)
        findings, timeline = Findings(), Timeline()
        self._shared = self._random.choice([0.0, 0.0, 0.15])
        last = min(self._kills, self.figures.kills + JOB_KILLS)
        anomalies = len(self.figures.anomalies)
        while self.figures.kills < last:
            self._start(files, writers, findings, timeline, last)
        self._finish(files, findings, timeline)
        tasks = check_trace(files.trace, timeline, findings)
        if self._shared:
            findings.rework.clear()  # the writers did each other's tasks on purpose
        self.figures.add(findings, tasks)
        if not findings.bad and len(self.figures.anomalies) == anomalies:
            shutil.rmtree(folder)

    def _start(self, files: JobFiles, writers: int, findings: Findings, timeline: Timeline, last: int) -> None:
        """Start writers and kill them one by one."""
        running: dict[int, str] = {}
        for rank in range(writers):
            fault = self._fault(POINTS if self._remote is None else {**POINTS, **REMOTE_POINTS})
            writer = self._writer(files, rank, writers, fault)
            running[fork(writer.run, files, "w")] = "writer"
        if self._remote is not None and self._random.random() < COMPACT_SHARE:
            compactor = self._writer(files, 9, writers, self._fault(COMPACT_POINTS))
            running[fork(compactor.compact, files, "c")] = "compaction"
        failed = 0
        while running:
            time.sleep(self._random.uniform(0, WORKING_SECONDS[self._kind]))
            victim = self._random.choice(list(running))
            for pid, status in reap(running, kill=victim if self.figures.kills < last else None):
                what = running.pop(pid)
                if os.WIFSIGNALED(status):
                    self.figures.kills += 1
                    self.figures.targets[f"{self._kind} {what}"] += 1
                    self._check(files, findings, timeline)
                    self._on_kill(self.figures)
                elif os.WEXITSTATUS(status) and what != "compaction":  # it may find no ledger yet
                    failed += 1
        if failed:
            self._note(files, f"{failed} writers ended with an error")

    def _writer(self, files: JobFiles, rank: int, writers: int, fault: str) -> Writer:
        host = files.sources.parent / f"host-{rank}"
        if host.exists() and self._random.random() < FORGET_HOST_SHARE:
            shutil.rmtree(host)  # a new host, which has seen nothing of the ledger
        return Writer(files, rank, writers, self._shared, self._random.getrandbits(32), fault, str(host))

    def _fault(self, points: Mapping[str, int]) -> str:
        if self._random.random() > POINT_SHARE:
            return ""
        point = self._random.choice(sorted(points))
        return f"{point}:{self._random.randint(1, points[point])}"

    def _finish(self, files: JobFiles, findings: Findings, timeline: Timeline) -> None:
        """Run one writer undisturbed, and one more if a kill had left something half planned."""
        for _ in range(FINISHES):
            writer = self._writer(files, 0, 1, "")
            status = wait(fork(writer.run, files, "f"))
            if status:
                self._note(files, f"an undisturbed writer ended with status {status}")
            recorded = self._check(files, findings, timeline)
            if len(recorded) == SOURCES * TASKS:
                break
        else:
            self._note(files, f"not done after {FINISHES} undisturbed writers")

        def sweep() -> Findings:
            for folder in (files.outputs, files.sources):
                remove_stale_temporaries(str(folder))
            check_end(files, self._clean, findings)
            return findings

        findings.add(in_child(sweep, files))

    def _check(self, files: JobFiles, findings: Findings, timeline: Timeline) -> set[Any]:
        def check() -> tuple[set[Any], Findings]:
            os.environ["LEDGERBEAM_CACHE"] = str(files.sources.parent / "checker")
            found = Findings()
            return check_ledger(files, self._clean, found), found

        recorded, found = in_child(check, files)
        findings.add(found)
        timeline.see_recorded(recorded, time.monotonic_ns())
        return recorded

    def _note(self, files: JobFiles, what: str) -> None:
        self.figures.anomalies.append(f"{files.sources.parent.parent.name}/{files.sources.parent.name}: {what}")


def fork(body: Callable[[], Any], files: JobFiles, kind: str) -> int:
    """Run a function in a child, which dies with this process; return its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _die_with_parent()
        body()
        status = 0
    except BaseException:  # noqa: BLE001 - it is told in the log, and by the status
        with open(files.sources.parent / f"log-{kind}-{os.getpid()}", "w", encoding="utf-8") as log:
            traceback.print_exc(file=log)
    finally:
        os._exit(status)


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def reap(running: Mapping[int, str], kill: int | None) -> list[tuple[int, int]]:
    """Kill one process, and return those that have ended by now with their statuses."""
    ended = []
    for pid in running:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append((pid, status))
    if kill is not None and kill not in {pid for pid, _ in ended}:
        os.kill(kill, signal.SIGKILL)
        ended.append((kill, os.waitpid(kill, 0)[1]))
    return ended


def wait(pid: int) -> int:
    """Wait for a child; return 0, its exit status, or its signal as a negative number."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGALRM


def in_child(body: Callable[[], Any], files: JobFiles) -> Any:
    path = files.sources.parent / "result"

    def store() -> None:
        path.write_bytes(pickle.dumps(body()))

    status = wait(fork(store, files, "check"))
    if status:
        raise RuntimeError(f"a check ended with status {status}; its log is in {files.sources.parent}")
    return pickle.loads(path.read_bytes())


FLUSH_SECONDS = 0.02
FLUSH_ENTRIES = 6

JOB = Job("map", {"output": "out"})


@dataclass(frozen=True)
class Writer:
    """One of so many writers of a start."""

    files: JobFiles
    rank: int
    writers: int
    shared: (
        float  # of the tasks of others, the part that it does too, as when a bundle is retried while its worker lives
    )
    seed: int
    fault: str  # where it kills itself; empty for nowhere
    cache: str  # local folder in which it keeps what it reads of a remote ledger: its host

    def run(self) -> None:
        """Do its share of whatever the ledger holds as open. Rank 0 also records the run."""
        os.environ["LEDGERBEAM_CACHE"] = self.cache
        arm(self.fault)
        store = open_store(self.files.ledger, create=True)
        store.open_job(JOB)
        run = store.begin_run({"pid": os.getpid()}) if self.rank == 0 else ""
        handle = LedgerHandle(self.files.ledger, JOB.fingerprint, FLUSH_SECONDS, FLUSH_ENTRIES, run=run)
        chain = Chain(self.files.sources, self.files.outputs, "tests.fault.traced:quick", handle, task_bytes=TASK_BYTES)
        choice = random.Random(self.seed)
        sources = list(chain.open_sources(store))
        tasks = [task for source in sources for task in chain.plan(source) if self._is_mine(task, choice)]
        choice.shuffle(tasks)
        for task in tasks:
            chain.do(task)
        chain.finish()
        if run:
            store.end_run(run, "done")

    def compact(self) -> None:
        os.environ["LEDGERBEAM_CACHE"] = self.cache
        arm(self.fault)
        store = open_store(self.files.ledger, create=False)
        if not isinstance(store, RemoteStore):
            raise UsageError(f"{self.files.ledger} is not remote")
        compact(store)

    def _is_mine(self, task: Any, choice: random.Random) -> bool:
        mine = sum(task.node) % self.writers == self.rank if hasattr(task, "node") else self.rank == 0
        return mine or choice.random() < self.shared


def main() -> int:
    """Print one JSON line after every kill, and one at the end with all figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.writers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clean", type=Path, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--remote")
    args = parser.parse_args()
    _die_with_parent()
    clean = pickle.loads(args.clean.read_bytes())
    if args.remote is not None:  # what every child would import, without a thread or a connection
        for module in ("s3fs", "aiobotocore.session", "aiobotocore.endpoint", "aiohttp", "botocore.signers"):
            importlib.import_module(module)

    def show(figures: Figures) -> None:
        print(json.dumps({"kills": figures.kills}), flush=True)

    campaign = WriterCampaign(args.folder, clean, args.kills, args.seed, remote=args.remote, on_kill=show)
    figures = campaign.run()
    print(json.dumps({"figures": pickle.dumps(figures).hex()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
