"""A Spark stand-alone cluster: a master, workers of one core each, Beam's job server and a pool of Python workers."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import java_process, pins
from tests.servers.engine import HOST, WorkerPool, portable_options, worker_pool
from tests.servers.java_process import LEAN, MODULE_OPTIONS, java_command, job_server
from tests.servers.process import Process, command_of, free_port, server_folder

START_SECONDS = 90.0
WORKERS = 2

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_JOB_SERVER = "org.apache.beam.runners.spark.SparkJobServerDriver"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c: %m%n
"""


@dataclass
class SparkCluster:
    """A running Spark cluster."""

    endpoint: str
    job_port: int
    master: Process
    job_server: Process
    spark_workers: list[Process]  # each starts an executor for a job
    pool: WorkerPool
    name: str = "Spark"

    @property
    def options(self) -> list[str]:
        # Beam would send all its jars along, 240 MB for each executor, which has them already.
        return [*portable_options(self.job_port, self.pool), f"--files_to_stage={_smallest_jar()}"]

    @property
    def workers(self) -> list[int]:
        """Process ids of the living Python workers, one for each executor while a job runs."""
        return self.pool.workers

    @property
    def executors(self) -> list[int]:
        """Process ids of the living executors; Spark starts another for one that dies while a job runs."""
        below = [pid for worker in self.spark_workers for pid in worker.descendants()]
        return [pid for pid in below if _EXECUTOR in command_of(pid)]

    def pids(self) -> list[int]:
        workers = [pid for worker in self.spark_workers for pid in worker.tree()]
        return [self.master.pid, self.job_server.pid, *workers, *self.pool.process.tree()]

    def state(self) -> Any:
        """Return what the master tells about itself: `workers`, `activeapps`, `completedapps` and more."""
        with urllib.request.urlopen(f"{self.endpoint}/json/", timeout=10) as answer:
            return json.load(answer)


def missing() -> str | None:
    """Return what is missing to run a cluster; None when nothing is."""
    return java_process.missing(pins.SPARK, "Spark")


@contextlib.contextmanager
def spark_cluster(folder: Path | None = None, *, env: Mapping[str, str] | None = None) -> Iterator[SparkCluster]:
    """Run a Spark cluster."""
    with server_folder("spark", folder) as logs, contextlib.ExitStack() as stack:
        own = _home(logs / "spark-home")
        port, page = free_port(), free_port()
        url = f"spark://{HOST}:{port}"
        master_command = _command(_MASTER, "--host", HOST, "--port", str(port), "--webui-port", str(page), heap="192m")
        master = stack.enter_context(Process(master_command, name="master", folder=logs, env=own))
        endpoint = f"http://{HOST}:{page}"
        workers = []
        for number in range(1, WORKERS + 1):
            name = f"worker-{number}"
            work = logs / name
            size = ["--cores", "1", "--memory", "1G", "--webui-port", "0", "--work-dir", str(work)]
            command = _command(_WORKER, "--host", HOST, *size, url, heap="192m")
            workers.append(stack.enter_context(Process(command, name=name, folder=logs, env=own)))
        pool = stack.enter_context(worker_pool(logs, env=env))
        words, options = (_JOB_SERVER, f"--spark-master-url={url}"), ["-Xmx512m", *_driver_options(logs)]
        server, job_port = job_server(pins.SPARK.class_path, *words, options=options, folder=logs, env=own)
        stack.enter_context(server)
        cluster = SparkCluster(endpoint, job_port, master, server, workers, pool)
        master.wait_until(
            lambda: _alive(cluster) == WORKERS, seconds=START_SECONDS, what=f"joined by {WORKERS} workers"
        )
        yield cluster


def _command(main: str, *arguments: str, heap: str) -> list[str]:
    return java_command(pins.SPARK.class_path, main, *arguments, options=[f"-Xmx{heap}"])


def _driver_options(logs: Path) -> list[str]:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": " ".join([*MODULE_OPTIONS, *LEAN]),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(logs / "job-server"),
    }
    return [f"-D{key}={value}" for key, value in settings.items()]


def _smallest_jar() -> str:
    return str(min((pins.SPARK.path / "lib").iterdir(), key=lambda jar: jar.stat().st_size))


def _home(folder: Path) -> dict[str, str]:
    """Make what Spark takes for its installation; return the environment that says so."""
    (folder / "conf").mkdir(parents=True)
    (folder / "jars").symlink_to(pins.SPARK.path / "lib")
    (folder / "RELEASE").touch()
    (folder / "conf" / "log4j2.properties").write_text(_LOGGING)
    return {
        "SPARK_HOME": str(folder),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.12",
    }


def _alive(cluster: SparkCluster) -> int:
    try:
        return sum(worker["state"] == "ALIVE" for worker in cluster.state()["workers"])
    except OSError:  # the master does not listen yet
        return 0
