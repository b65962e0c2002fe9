"""Kills the workers and the launcher of a user's own pipeline, and compares what it leaves with a clean run.

    python -m tests.fault.own_pipelines [--kills N] [--engine local|prism|flink] [--seed S]

On the local runner the kills and their checks are those of `python -m tests.fault`. On an engine a Python worker or the
launcher is killed in turn, and the pipeline started again until it is done.
"""

from __future__ import annotations

import argparse
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

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.fault.campaign import LIMIT_SECONDS, Campaign, run_clean
from tests.fault.job import Job, environment, own_program
from tests.fault.processes import Launch, end_all
from tests.fault.traced import TRACE_VARIABLE
from tests.servers import flink, prism, s3
from tests.servers.engine import Engine
from tests.servers.flink import FlinkCluster
from tests.servers.s3 import S3Server

__all__ = ["kill_locally", "kill_on_engine", "main"]

ENGINES: dict[str, tuple[Callable[[], str | None], Callable[..., AbstractContextManager[Any]]]] = {
    "prism": (prism.missing, prism.prism),
    "flink": (flink.missing, flink.flink_cluster),
}

WORKING_SECONDS = 0.5
FRUITLESS_JOBS = 5
JOB_KILLS = 4
RUNS = 6


def kill_locally(folder: Path, kills: int, seed: str) -> tuple[bool, str]:
    """Kill jobs of the local runner; return whether all is well, and what was found."""
    clean = run_clean(folder / "clean", own_program())
    figures = Campaign(folder / "jobs", clean, kills, seed, program=own_program()).run()
    anomalies = "".join(f"anomaly: {anomaly}\n" for anomaly in figures.anomalies)
    return figures.ok, f"{anomalies}{figures.details()}\n{figures.line()}"


def kill_on_engine(folder: Path, name: str, kills: int, seed: str) -> tuple[bool, str]:
    """Kill jobs on an engine, all on S3; return whether all is well, and what was found."""
    missing, start = ENGINES[name]
    for lacking in (missing(), s3.missing()):
        if lacking is not None:
            raise RuntimeError(lacking)
    run_clean(folder / "clean", own_program())
    chance, killed, number, problems = random.Random(seed), 0, 0, list[str]()
    fruitless = 0
    with s3.s3_server(folder) as server:
        env = {**server.env, TRACE_VARIABLE: str(folder / "trace"), "LEDGERBEAM_CACHE": str(folder / "cache")}
        with start(folder / "engine", env=env) as engine:
            while killed < kills and not problems:
                job = EngineJob(folder, f"job-{number:03d}", engine, server)
                made = job.kill(min(JOB_KILLS, kills - killed), chance)
                killed, number = killed + made, number + 1
                problems += job.finish()
                fruitless = 0 if made else fruitless + 1  # a job may be done before its turn to be killed comes
                if fruitless == FRUITLESS_JOBS:
                    problems.append(f"{job.root}: {fruitless} jobs in a row ended before anything could be killed")
    return not problems, "\n".join([*problems, f"{name}: kills {killed}, jobs {number}, problems {len(problems)}"])


class EngineJob:
    def __init__(self, folder: Path, name: str, engine: Engine, server: S3Server) -> None:
        self.root = f"s3://{server.bucket()}"
        self._engine = engine
        self._clean = folder / "clean"
        self._objects = ObjectFolder(self.root, server.options)
        for path in (self._clean / "in").glob("*.jsonl"):
            self._objects.create(f"in/{path.name}", path.read_bytes())
        env = environment({**server.env, "LEDGERBEAM_CACHE": str(folder / "cache")})
        self._job = Job(folder / name, 1, env, program=own_program(*engine.options, root=self.root))

    def kill(self, kills: int, chance: random.Random) -> int:
        """Start the job and kill a Python worker or the launcher, again and again; return how often."""
        for killed in range(kills):
            launch = self._job.start()
            try:
                before = len(self._outputs())
                if not launch.wait_until(lambda before=before: len(self._outputs()) > before, LIMIT_SECONDS):  # type: ignore[misc]
                    return killed  # it has ended
                time.sleep(chance.uniform(0, WORKING_SECONDS))
                victims = [launch.pid] if killed % 2 else self._engine.workers[:1]
                if launch.status is not None or not launch.kill(victims):
                    return killed
                launch.wait(LIMIT_SECONDS)
            finally:
                self._end(launch)
        return kills

    def finish(self) -> Iterator[str]:
        """Start the job until it is done; yield what is wrong then."""
        for _ in range(RUNS):
            launch = self._job.start()
            try:
                launch.wait(LIMIT_SECONDS)
                if launch.status == 0:
                    break
            finally:
                self._end(launch)
        else:
            yield f"{self.root}: not done after {RUNS} runs:\n{launch.log()[-2000:]}"
            return
        names = self._outputs()
        found = dict(zip((name.removeprefix("out/") for name in names), self._objects.read(names), strict=True))
        kept = [
            path for path in (self._clean / "out").rglob("*") if path.is_file() and path.parent.name != "_ledgerbeam"
        ]
        wanted = {path.relative_to(self._clean / "out").as_posix(): path.read_bytes() for path in kept}
        # Rows of rejected records name their sources, which lie elsewhere here.
        differing = {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}
        if differing := {name for name in differing if "_rejects/" not in name or found.keys() ^ wanted.keys()}:
            yield f"{self.root}: these outputs are not those of the clean run: {', '.join(sorted(differing)[:5])}"

    def _outputs(self) -> list[str]:
        return [name for name in self._objects.names("out/") if "/_ledgerbeam/" not in name]

    def _end(self, launch: Launch) -> None:
        """End the processes, and what a killed launcher has left on the cluster: its slots are needed."""
        launch.end()
        if isinstance(self._engine, FlinkCluster):
            for left in self._engine.running():
                self._engine.cancel(left)


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
