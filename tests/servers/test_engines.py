"""Every engine runs a job, survives or ends one whose worker is killed, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import flink, prism, spark
from tests.servers.engine import Engine
from tests.servers.flink import FlinkCluster
from tests.servers.job import Job
from tests.servers.process import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.slow]


@pytest.mark.parametrize(
    ("module", "start", "kill"),
    [(prism, prism.prism, True), (flink, flink.flink_cluster, True), (spark, spark.spark_cluster, False)],
    ids=["prism", "flink", "spark"],
)
def test_an_engine_runs_jobs_and_leaves_nothing(
    tmp_path: Path, module: Any, start: Callable[[Path], AbstractContextManager[Engine]], kill: bool
) -> None:
    """Run a job, kill a Python worker of another one, run a third; then nothing of the server may be left."""
    if missing := module.missing():
        pytest.skip(missing)
    with start(tmp_path / "server") as engine:
        Job(tmp_path / "clean", 20, 0.01, engine.options).check()
        if kill:
            hurt = Job(tmp_path / "hurt", 60, 0.2, engine.options)
            hurt.wait_until_done(3)
            victim = engine.workers[0]
            os.kill(victim, signal.SIGKILL)
            status = hurt.status()
            assert status == 0 or "failed in state FAILED" in hurt.log, hurt.log[-3000:]
            assert victim not in engine.workers
            Job(tmp_path / "after", 20, 0.01, engine.options).check()
        assert wait_until(lambda: not engine.workers, seconds=30), "Python workers outlive their jobs"
        pids = engine.pids()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not [path for path in (tmp_path / "server").iterdir() if path.suffix not in {".log", ""}]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FlinkCluster]:
    if missing := flink.missing():
        pytest.skip(missing)
    with flink.flink_cluster(tmp_path / "server") as cluster:
        yield cluster


def test_a_task_manager_that_is_killed_fails_its_job_and_can_be_replaced(tmp_path: Path, cluster: FlinkCluster) -> None:
    hurt = Job(tmp_path / "hurt", 100, 0.2, cluster.options)
    hurt.wait_until_done(3)
    os.kill(cluster.executors[0], signal.SIGKILL)
    assert hurt.status() != 0
    assert "failed in state FAILED" in hurt.log
    cluster.add_task_manager()
    assert len(cluster.executors) == flink.TASK_MANAGERS
    Job(tmp_path / "after", 20, 0.01, cluster.options).check()


def test_a_job_goes_on_without_its_launcher_until_it_is_cancelled(tmp_path: Path, cluster: FlinkCluster) -> None:
    job = Job(tmp_path / "left", 400, 0.2, cluster.options)
    job.wait_until_done(3)
    job.process.kill()
    job.process.wait()
    left = len(job.done())
    assert wait_until(lambda: len(job.done()) > left + 5, seconds=30)
    (running,) = cluster.running()
    cluster.cancel(running)
    assert cluster.jobs() == {running: "CANCELED"}
    assert wait_until(lambda: not cluster.workers, seconds=30)
