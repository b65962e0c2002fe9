"""The loop of kills: jobs are started, killed, checked and started again until they are done."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from tests.fault.corpus import Clean
from tests.fault.findings import Figures
from tests.fault.job import Job, Program, environment, map_program
from tests.fault.processes import Launch, Role, wait_until

Target = Literal["launcher", "starter", "worker", "forker", "wave", "group", "point"]
LIMIT_SECONDS = 240.0  # a job that takes longer to end, or to come to a point, hangs
GONE_SECONDS = 3.0  # how long a process of a job may outlive its launcher
START_SECONDS = 2.5
"""Longest time after a start or a kill at which something is killed; a job starts to work about then."""

WORKING_SECONDS = 1.2  # longest time after the first record that is done since a start or a kill
WORKING_SHARE = 0.7  # how often something is killed at work, and not at whatever it does
JOB_KILLS = 12  # kills after which a job is left to finish
PASSES = 5  # undisturbed runs that a killed job may need: each ends with a quarantine, or done

SCENARIOS: tuple[tuple[Target, ...], ...] = (
    ("launcher",),
    ("worker", "launcher"),
    ("point", "group"),
    ("wave", "worker", "launcher"),
    ("group",),
    ("point", "point", "launcher"),
    ("worker", "wave", "group"),
    ("point", "launcher"),
    ("forker", "worker", "launcher"),
    ("starter", "worker", "group"),
)
"""What is killed in one start of a job, in turn. After all but the launcher and the group the launcher goes on."""

WHOLE = ("launcher", "group")  # kills that end the whole start
SOME_FAILED = 3  # exit status of a launcher that is done, but for failed or quarantined tasks
POINTS = {"publish.before": 8, "publish.after": 8, "flush.begin": 4, "flush.before_commit": 4, "flush.after_commit": 4}
"""The named points, and the latest arrival at each at which a process is killed."""

_Item = TypeVar("_Item")


class Campaign:
    def __init__(
        self,
        folder: Path,
        clean: Clean,
        kills: int,
        seed: str,
        *,
        keep: bool = False,
        stop: threading.Event | None = None,
        program: Program = map_program,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.figures = Figures()
        self._clean = clean
        self._stop = stop or threading.Event()
        self._folder = folder
        self._kills = kills
        self._random = random.Random(seed)
        self._keep = keep
        self._env = environment()
        self._program = program
        self._scenarios = self._in_turn(SCENARIOS)
        self._points = self._in_turn(tuple(POINTS))

    def run(self) -> Figures:
        """Make the kills; no process is left when this returns or raises."""
        number = 0
        while self.figures.kills < self._kills and not self._stop.is_set():
            self._run_job(Job(self._folder / f"job-{number:03d}", 1 + number % 2, self._env, program=self._program))
            number += 1
        return self.figures

    def _in_turn(self, items: Sequence[_Item]) -> Iterator[_Item]:
        """Yield all items in a random order, again and again."""
        while True:
            yield from self._random.sample(items, len(items))

    def _run_job(self, job: Job) -> None:
        kills, anomalies = self.figures.kills, len(self.figures.anomalies)
        last = min(self._kills, kills + JOB_KILLS)
        going_on = True
        while going_on and self.figures.kills < last and not self._stop.is_set():
            going_on = self._run_scenario(job, next(self._scenarios), last)
        if going_on and not self._stop.is_set():
            self._finish(job)
        if self._stop.is_set():
            return
        tasks = job.check_end(self._clean)
        self.figures.add(job.findings, tasks)
        if not (self._keep or job.findings.bad or len(self.figures.anomalies) > anomalies):
            shutil.rmtree(job.folder)

    def _run_scenario(self, job: Job, targets: Sequence[Target], last: int) -> bool:
        """Start a job and kill what a scenario names. Tells whether the job owes work after it."""
        fault = self._fault() if "point" in targets else None
        before = self.figures.kills
        launch = job.start(fault)
        try:
            for target in targets:
                if not self._kill(launch, job, target):
                    break
                self.figures.kills += 1
                self.figures.targets[fault.partition(":")[0] if fault and target == "point" else target] += 1
                job.check(self._clean)
                if self.figures.kills == last:
                    break
            if fault is None:  # else it would come to the point again
                self._wait(launch, job)
                self._check_deaths(launch, job, self.figures.kills - before)
            return self._owes_work(launch, job)
        finally:
            launch.end()

    def _fault(self) -> str:
        point = next(self._points)
        return f"{point}:{self._random.randint(1, POINTS[point])}"

    def _kill(self, launch: Launch, job: Job, target: Target) -> bool:
        """Kill one target, or wait until a point has; tell whether anything was killed."""
        if target == "point":
            return self._wait_for_point(launch, job)
        alone = job.workers == 1  # the wave is its own worker
        forks = alone or self._program is map_program  # the wave forks the workers itself, without a runner of Beam
        in_wave = (target == "worker" and alone) or (target == "forker" and forks)
        role: Role | Literal["group"] = "wave" if in_wave else target
        self._wait_for_moment(launch, job)
        victims = launch.wait_for(role, LIMIT_SECONDS)
        if not victims and launch.status is None:
            self._note(launch, job, f"had no {role} to kill within {LIMIT_SECONDS:.0f} s")
        if role == "worker":
            victims = self._random.sample(victims, min(1, len(victims)))
        job.timeline.see_alive(launch.pids(), time.monotonic_ns())
        killed = launch.kill(victims)
        if role in WHOLE:
            launch.wait(GONE_SECONDS)
        return killed

    def _wait_for_moment(self, launch: Launch, job: Job) -> None:
        """Wait for a random time, from now or from when the next record is done."""
        if self._random.random() < WORKING_SHARE:
            before = job.records_done()
            wait_until(lambda: launch.status is not None or job.records_done() > before, LIMIT_SECONDS)
            time.sleep(self._random.uniform(0, WORKING_SECONDS))
        else:
            time.sleep(self._random.uniform(0, START_SECONDS))

    def _wait_for_point(self, launch: Launch, job: Job) -> bool:
        before = launch.deaths()
        if not wait_until(lambda: launch.status is not None or launch.deaths() > before, LIMIT_SECONDS):
            self._note(launch, job, f"came to no point and no end within {LIMIT_SECONDS:.0f} s")
        return launch.deaths() > before

    def _wait(self, launch: Launch, job: Job) -> None:
        if not launch.wait(LIMIT_SECONDS):
            self._note(launch, job, f"hangs: not at its end after {LIMIT_SECONDS:.0f} s")

    def _check_deaths(self, launch: Launch, job: Job, kills: int) -> None:
        """A launcher that sees more deaths than there were ends healthy workers and blames their tasks."""
        if launch.deaths() > kills:
            self._note(launch, job, f"told of {launch.deaths()} deaths of workers after {kills} kills")

    def _owes_work(self, launch: Launch, job: Job) -> bool:
        """Judge how a start ended, if it has. Tells whether the job owes work after it."""
        if launch.status is None:
            return True
        left = launch.wait_gone(GONE_SECONDS)
        if left:
            self._note(launch, job, f"left processes over: {left}")
        if launch.status == SOME_FAILED:
            quarantined, others = job.forgive()
            self.figures.quarantined += quarantined
            if others:
                self._note(launch, job, f"tasks failed: {others}")
        elif launch.status not in {0, -signal.SIGKILL}:
            self._note(launch, job, f"ended with status {launch.status}")
        return launch.status != 0

    def _finish(self, job: Job) -> None:
        for _ in range(PASSES):
            launch = job.start()
            try:
                self._wait(launch, job)
                self._check_deaths(launch, job, 0)
                if not self._owes_work(launch, job):
                    return
            finally:
                launch.end()
        self._note(launch, job, f"not done after {PASSES} undisturbed runs")

    def _note(self, launch: Launch, job: Job, what: str) -> None:
        self.figures.anomalies.append(f"{job.folder.parent.name}/{job.folder.name}/{launch.name}: {what}")


def run_clean(folder: Path, program: Program = map_program) -> Clean:
    job = Job(folder, 1, environment(), program=program)
    launch = job.start()
    try:
        launch.wait(2 * LIMIT_SECONDS)
        if launch.status != 0:
            raise RuntimeError(f"the clean run ended with status {launch.status}:\n{launch.log()}")
    finally:
        launch.end()
    return Clean.of(job.files.sources, job.files.outputs)
