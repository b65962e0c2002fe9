"""One job on every engine: undisturbed, killed in every part, started again. The outputs are the same bytes each time.

Sources, indexes, ledgers and outputs lie on a real S3 server; engines run in processes of their own.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.matrix.conftest import EXCHANGING
from tests.matrix.runs import LIMIT_SECONDS, SOURCES, Contents, Jobs, Launcher, Row, descendants, most_memory
from tests.servers.dataflow import Dataflow
from tests.servers.flink import FlinkCluster
from tests.servers.process import name_of, wait_until

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(1200)]


@contextmanager
def told(row: Row, column: str) -> Iterator[None]:
    """Note in the table whether the body went well."""
    row.passed[column] = False
    yield
    row.passed[column] = True


def check_identical(jobs: Jobs, output: str, reference: Contents) -> None:
    left = jobs.left(output)
    row = jobs.row
    row.passed["identical"] = left == reference and row.passed.get("identical", True)
    different = {name for name in left.keys() | reference.keys() if left.get(name) != reference.get(name)}
    assert not different, (output, {name: (left.get(name), reference.get(name)) for name in sorted(different)[:3]})


def python_workers(jobs: Jobs, launcher: Launcher) -> list[int]:
    if jobs.engine is not None:
        return jobs.engine.workers
    found = descendants(launcher.process.pid)
    named = {name: [pid for pid in found if name_of(pid) == name] for name in ("ledgerbeam-work", "ledgerbeam-wave")}
    return named["ledgerbeam-work"] or named["ledgerbeam-wave"]


def kill_one(pids: Callable[[], Sequence[int]]) -> None:
    assert wait_until(lambda: bool(pids()), seconds=LIMIT_SECONDS)
    os.kill(random.choice(list(pids())), signal.SIGKILL)


class TestMatrix:
    """The same job, on one engine after the other."""

    def test_an_undisturbed_run(self, jobs: Jobs, reference: Contents) -> None:
        with told(jobs.row, "clean"):
            launcher = jobs.start("clean")
            pids = lambda: [*descendants(launcher.process.pid), *(jobs.engine.pids() if jobs.engine else [])]  # noqa: E731
            with most_memory(pids, jobs.row):
                assert launcher.end() == 0, launcher.log()
            check_identical(jobs, "clean", reference)
            assert jobs.index() == 0
            (index,) = jobs.contents("idx").values()
            assert index is not None
            assert len(index) == 8 * 3001

    def test_another_format(self, jobs: Jobs, converted: Contents) -> None:
        with told(jobs.row, "converted"):
            assert jobs.convert() == converted
            if isinstance(jobs.engine, FlinkCluster):  # of several hosts each had its part
                logs = [pool.process.log.read_text() for pool in jobs.engine.pools]
                assert all("Starting worker" in log for log in logs)

    def test_exchanges_with_a_kill_inside_of_a_stage(
        self, request: pytest.FixtureRequest, jobs: Jobs, exchanged: dict[str, Contents]
    ) -> None:
        if jobs.row.engine not in EXCHANGING and not request.config.getoption("--exchanges", default=False):
            pytest.skip("takes minutes on each engine: make matrix ARGS=--exchanges")
        with told(jobs.row, "exchanges"):
            launcher = jobs.start_exchange("sort")
            assert wait_until(lambda: launcher.ended or len(jobs.names("sort")) >= 6, seconds=LIMIT_SECONDS)
            assert not launcher.ended, launcher.log()
            engine = jobs.engine
            executors = [] if engine is None or engine.name in {"Prism", "Dataflow"} else engine.executors
            kill_one(lambda: executors or python_workers(jobs, launcher))
            jobs.row.killed += 1
            launcher.end()
            if executors and isinstance(engine, FlinkCluster):
                engine.add_task_manager()
            for name, expected in exchanged.items():
                assert jobs.exchange(name) == expected, name

    def test_a_finished_job_is_skipped(self, jobs: Jobs, reference: Contents) -> None:
        with told(jobs.row, "rerun"):
            jobs.finish("clean")
            again = jobs.finish("clean")
            assert f"({SOURCES + 1} skipped" in again.log() or "0 tasks and 0 records" in again.log(), again.log()
            check_identical(jobs, "clean", reference)

    def test_a_killed_python_worker(self, jobs: Jobs, reference: Contents) -> None:
        with told(jobs.row, "killed worker"):
            launcher = jobs.start("worker")
            jobs.wait_for_outputs("worker", launcher)
            kill_one(lambda: python_workers(jobs, launcher))
            jobs.row.killed += 1
            if launcher.end():
                jobs.finish("worker")
            check_identical(jobs, "worker", reference)

    def test_a_killed_executor(self, jobs: Jobs, reference: Contents) -> None:
        if jobs.engine is None or jobs.engine.name in {"Prism", "Dataflow"}:
            pytest.skip("this engine works in one process")
        with told(jobs.row, "killed executor"):
            launcher = jobs.start("executor")
            jobs.wait_for_outputs("executor", launcher)
            engine = jobs.engine
            kill_one(lambda: engine.executors)
            jobs.row.killed += 1
            status = launcher.end()
            if isinstance(engine, FlinkCluster):
                engine.add_task_manager()
            if status:
                jobs.finish("executor")
            check_identical(jobs, "executor", reference)

    def test_a_killed_launcher_and_a_rerun_beside_what_it_left(self, jobs: Jobs, reference: Contents) -> None:
        with told(jobs.row, "killed launcher"):
            launcher = jobs.start("launcher")
            jobs.wait_for_outputs("launcher", launcher)
            launcher.kill()
            jobs.row.killed += 1
            again = jobs.finish("launcher")
            if jobs.engine is not None:
                assert "an older run may still be at work" in again.log() or "skipped" in again.log()
                if isinstance(jobs.engine, FlinkCluster):
                    for job in jobs.engine.running():
                        jobs.engine.cancel(job)
                if isinstance(jobs.engine, Dataflow):
                    jobs.engine.cancel_all()
                time.sleep(1)
            check_identical(jobs, "launcher", reference)
