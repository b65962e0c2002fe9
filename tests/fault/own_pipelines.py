"""Kills the workers and the launcher of a user's own pipeline, and compares what it leaves with a clean run.

    python -m tests.fault.own_pipelines [--kills N] [--engine local|prism|flink] [--seed S]

On the local runner the kills and their checks are those of `python -m tests.fault`. On an engine a Python worker or the
launcher is killed in turn, and the pipeline started again until it is done.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.fault.campaign import LIMIT_SECONDS, Campaign
from tests.fault.corpus import Clean
from tests.fault.job import Job, environment, own_program
from tests.fault.processes import end_all
from tests.servers import flink, prism
from tests.servers.engine import Engine
from tests.servers.flink import FlinkCluster

__all__ = ["kill_locally", "kill_on_engine", "main"]

ENGINES: dict[str, tuple[Callable[[], str | None], Callable[..., AbstractContextManager[Any]]]] = {
    "prism": (prism.missing, prism.prism),
    "flink": (flink.missing, flink.flink_cluster),
}

WORKING_SECONDS = 1.0
JOB_KILLS = 4
RUNS = 6


def kill_locally(folder: Path, kills: int, seed: str) -> tuple[bool, str]:
    """Kill jobs of the local runner; return whether all is well, and what was found."""
    clean = run_clean(folder / "clean")
    figures = Campaign(folder / "jobs", clean, kills, seed, program=own_program()).run()
    anomalies = "".join(f"anomaly: {anomaly}\n" for anomaly in figures.anomalies)
    return figures.ok, f"{anomalies}{figures.details()}\n{figures.line()}"


def run_clean(folder: Path) -> Clean:
    """Run the pipeline undisturbed, on the local runner.

    Raises:
        RuntimeError: If it does not end well.
    """
    job = Job(folder, 1, environment(), program=own_program())
    launch = job.start()
    try:
        launch.wait(2 * LIMIT_SECONDS)
        if launch.status != 0:
            raise RuntimeError(f"the clean run ended with status {launch.status}:\n{launch.log()}")
    finally:
        launch.end()
    return Clean.of(job.files.sources, job.files.outputs)


def kill_on_engine(folder: Path, name: str, kills: int, seed: str) -> tuple[bool, str]:
    """Kill jobs on an engine; return whether all is well, and what was found.

    Raises:
        RuntimeError: The engine is not here.
    """
    missing, start = ENGINES[name]
    if missing() is not None:
        raise RuntimeError(str(missing()))
    clean = run_clean(folder / "clean")
    chance, killed = random.Random(seed), 0
    problems: list[str] = []
    trace = folder / "trace"
    with start(folder / "engine", env={"LEDGERBEAM_TEST_TRACE": str(trace)}) as engine:
        for number in itertools.count():
            if killed >= kills:
                break
            job = Job(folder / f"job-{number:03d}", 1, environment(), program=own_program(*engine.options))
            killed += _kill_job(job, engine, min(JOB_KILLS, kills - killed), chance)
            problems += _finish(job, engine, clean)
    return not problems, "\n".join([*problems, f"{name}: kills {killed}, jobs {number}, problems {len(problems)}"])


def _kill_job(job: Job, engine: Engine, kills: int, chance: random.Random) -> int:
    killed = 0
    while killed < kills:
        launch = job.start()
        try:
            before = _published(job)
            if not launch.wait_until(lambda before=before: _published(job) > before, LIMIT_SECONDS):  # type: ignore[misc]
                return killed  # it has ended
            time.sleep(chance.uniform(0, WORKING_SECONDS))
            victims = [launch.pid] if killed % 2 else engine.workers[:1]
            if launch.status is not None or not victims:
                return killed
            launch.kill(victims)
            killed += 1
            launch.wait(LIMIT_SECONDS)
        finally:
            launch.end()
            _cancel(engine)
    return killed


def _finish(job: Job, engine: Engine, clean: Clean) -> Iterator[str]:
    for _ in range(RUNS):
        launch = job.start()
        try:
            launch.wait(LIMIT_SECONDS)
            if launch.status == 0:
                break
        finally:
            launch.end()
            _cancel(engine)
    else:
        yield f"{job.folder}: not done after {RUNS} runs:\n{launch.log()[-2000:]}"
        return
    if Clean.of(job.files.sources, job.files.outputs) != clean:
        yield f"{job.folder}: the outputs are not those of the clean run"


def _cancel(engine: Engine) -> None:
    """End what a killed launcher has left on the cluster: its slots are needed."""
    if isinstance(engine, FlinkCluster):
        for left in engine.running():
            engine.cancel(left)


def _published(job: Job) -> int:
    return sum(1 for _ in job.files.outputs.rglob("*.jsonl")) if job.files.outputs.exists() else 0


def main() -> int:
    """Return 0 if nothing was found, 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.own_pipelines", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--engine", choices=["local", *ENGINES], default="local")
    parser.add_argument("--seed", default="1", metavar="S", help="of what is killed, and when (default: 1)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ledgerbeam-own-"))
    started, good = time.monotonic(), False
    try:
        if args.engine == "local":
            good, found = kill_locally(folder, args.kills, args.seed)
        else:
            good, found = kill_on_engine(folder, args.engine, args.kills, args.seed)
    finally:
        end_all()
        if good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"jobs and logs: {folder}")
    print(f"{found}\n{args.engine}: {time.monotonic() - started:.0f} s, seed {args.seed}")
    return int(not good)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a thread of gRPC that Beam leaves behind must not hold the process
