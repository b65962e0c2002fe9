"""Every engine runs a job, survives or ends one whose worker is killed, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.servers import flink, prism, spark
from tests.servers.engine import Engine
from tests.servers.job import Job
from tests.servers.process import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.slow]


def need(missing: str | None) -> None:
    if missing:
        pytest.skip(missing)


def check_that_it_works(server: AbstractContextManager[Engine], folder: Path, *, kill: bool = True) -> None:
    """Run a job, kills a Python worker of another one, runs a third; then nothing of the server may be left."""
    with server as engine:
        Job(folder / "clean", 20, 0.01, engine.options).check()
        if kill:
            hurt = Job(folder / "hurt", 60, 0.2, engine.options)
            hurt.wait_until_done(3)
            victim = engine.workers[0]
            os.kill(victim, signal.SIGKILL)
            status = hurt.status()
            assert status == 0 or "failed in state FAILED" in hurt.log, hurt.log[-3000:]
            assert victim not in engine.workers
            Job(folder / "after", 20, 0.01, engine.options).check()
        assert wait_until(lambda: not engine.workers, seconds=30), "Python workers outlive their jobs"
        pids = engine.pids()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not [path for path in (folder / "server").iterdir() if path.suffix not in {".log", ""}]


def test_prism(tmp_path: Path) -> None:
    need(prism.missing())
    check_that_it_works(prism.prism(tmp_path / "server"), tmp_path)


def test_flink(tmp_path: Path) -> None:
    need(flink.missing())
    check_that_it_works(flink.flink_cluster(tmp_path / "server"), tmp_path)


def test_spark(tmp_path: Path) -> None:
    need(spark.missing())
    check_that_it_works(spark.spark_cluster(tmp_path / "server"), tmp_path, kill=False)


def test_a_task_manager_that_is_killed_fails_its_job_and_can_be_replaced(tmp_path: Path) -> None:
    need(flink.missing())
    with flink.flink_cluster(tmp_path / "server") as cluster:
        hurt = Job(tmp_path / "hurt", 100, 0.2, cluster.options)
        hurt.wait_until_done(3)
        os.kill(cluster.executors[0], signal.SIGKILL)
        assert hurt.status() != 0
        assert "failed in state FAILED" in hurt.log
        cluster.add_task_manager()
        assert len(cluster.executors) == flink.TASK_MANAGERS
        Job(tmp_path / "after", 20, 0.01, cluster.options).check()


def test_a_job_goes_on_without_its_launcher_until_it_is_cancelled(tmp_path: Path) -> None:
    need(flink.missing())
    with flink.flink_cluster(tmp_path / "server") as cluster:
        job = Job(tmp_path / "left", 400, 0.2, cluster.options)
        job.wait_until_done(3)
        job.process.kill()
        job.process.wait()
        left = len(job.done())
        assert wait_until(lambda: len(job.done()) > left + 5, seconds=30)
        running = cluster.running()
        assert len(running) == 1
        cluster.cancel(running[0])
        assert cluster.jobs() == {running[0]: "CANCELED"}
        assert wait_until(lambda: not cluster.workers, seconds=30)
