"""A Flink cluster: a job manager, task managers, Beam's job server and pools of Python workers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import java_process, pins
from tests.servers.engine import HOST, PARALLELISM, WorkerPool, portable_options, worker_pool
from tests.servers.java_process import java_command, job_server
from tests.servers.process import Process, ServerError, free_port, server_folder

START_SECONDS = 90.0
TASK_MANAGERS = 2

_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_TOOLS = "org.apache.flink.runtime.util.bash.BashJavaUtils"
_JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_RESULT = "BASH_JAVA_UTILS_EXEC_RESULT:"
_LOGGING = "-Dorg.slf4j.simpleLogger.showDateTime=true"
_ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
# Small, but with room for what Beam's runner needs; the defaults of Flink want 1.7 GB for each.
_MEMORY = {
    "jobmanager.memory.process.size": "1024m",
    "taskmanager.memory.process.size": "1024m",
    "taskmanager.memory.managed.size": "96m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.jvm-metaspace.size": "192m",
    "taskmanager.memory.jvm-overhead.min": "128m",
    "taskmanager.memory.jvm-overhead.max": "128m",
    # A job brings the jars that the cluster has anyway; their own copy of every class would fill the metaspace.
    "classloader.resolve-order": "parent-first",
}


@dataclass(frozen=True)
class Place:
    """Where a task manager and the worker pool that it asks are run."""

    address: str = HOST
    prefix: tuple[str, ...] = ()  # the command that runs another one there


@dataclass
class FlinkCluster:
    """A running Flink cluster."""

    endpoint: str  # of its REST interface, which is also its web page: `http://ADDRESS:PORT`
    job_port: int
    job_manager: Process
    job_server: Process
    task_managers: list[Process]  # also those that were killed
    pools: list[WorkerPool]  # one for each different place, all on the same port
    name: str = "Flink"
    _starter: _Starter = field(repr=False, kw_only=True)

    @property
    def options(self) -> list[str]:
        return [*portable_options(self.job_port, self.pools[0]), f"--parallelism={PARALLELISM}"]

    @property
    def workers(self) -> list[int]:
        """Process ids of the living Python workers, one for each task manager while a job runs."""
        return [pid for pool in self.pools for pid in pool.workers]

    @property
    def executors(self) -> list[int]:
        """Process ids of the living task managers."""
        return [manager.pid for manager in self.task_managers if manager.alive]

    def pids(self) -> list[int]:
        pools = [pid for pool in self.pools for pid in pool.process.tree()]
        return [self.job_manager.pid, self.job_server.pid, *self.executors, *pools]

    def add_task_manager(self) -> Process:
        """Start one more task manager where one was killed, and wait until it is registered."""
        known = set(self.registered())  # by name: the one that was killed may be missed only now
        manager = self._starter.task_manager(self._starter.empty_place())
        self.task_managers.append(manager)
        ready = lambda: not known.issuperset(self.registered())  # noqa: E731
        return manager.wait_until(ready, seconds=START_SECONDS, what="registered")

    def registered(self) -> list[str]:
        """Name the task managers that the job manager believes to be alive; it takes a while to miss one."""
        return [manager["id"] for manager in self._ask("/taskmanagers")["taskmanagers"]]

    def jobs(self) -> dict[str, str]:
        """Return the state of every job that the cluster remembers, by id: RUNNING, FINISHED, FAILED, CANCELED ..."""
        return {job["id"]: job["status"] for job in self._ask("/jobs")["jobs"]}

    def running(self) -> list[str]:
        """Return the ids of the jobs that have not ended: a launcher that is killed leaves its job on the cluster."""
        return [job for job, state in self.jobs().items() if state not in _ENDED]

    def cancel(self, job: str) -> None:
        """Cancel a job and wait until it has ended."""
        request = urllib.request.Request(f"{self.endpoint}/jobs/{job}?mode=cancel", method="PATCH")
        with urllib.request.urlopen(request, timeout=10):
            pass
        self.job_manager.wait_until(lambda: job not in self.running(), seconds=60, what=f"rid of job {job}")

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.endpoint}{path}", timeout=10) as answer:
            return json.load(answer)


@dataclass(frozen=True)
class _Starter:
    """Starts task managers, which end with the cluster."""

    stack: contextlib.ExitStack
    folder: Path
    settings: Mapping[str, str]
    places: Sequence[Place]
    latest: dict[int, Process] = field(default_factory=dict)

    def empty_place(self) -> int:
        """Return the number of the first place whose task manager has ended; the first of all if none has."""
        return next((number for number, manager in self.latest.items() if not manager.alive), 0)

    def task_manager(self, number: int) -> Process:
        where = self.places[number]
        name = f"task-manager-{1 + sum(1 for _ in self.folder.glob('task-manager-*.log'))}"
        work = self.folder / name
        settings = {**self.settings, "taskmanager.host": where.address, "taskmanager.bind-host": where.address}
        conf = _configure(self.folder / f"{name}-conf", settings, work)
        jvm, dynamic = _resources(conf)
        words = ("--configDir", str(conf), *dynamic)
        command = java_command(pins.FLINK.class_path, _TASK_MANAGER, *words, options=[*jvm, _LOGGING])
        process = Process([*where.prefix, *command], name=name, folder=self.folder, work=work)
        self.latest[number] = process
        return self.stack.enter_context(process)


def missing() -> str | None:
    """Return what is missing to run a cluster; None when nothing is."""
    return java_process.missing(pins.FLINK, "Flink")


@contextlib.contextmanager
def flink_cluster(
    folder: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    address: str = HOST,
    places: Sequence[Place] = (Place(),) * TASK_MANAGERS,
    pool: WorkerPool | None = None,
) -> Iterator[FlinkCluster]:
    """Run a Flink cluster.

    Args:
        address: Of the job manager; the task managers must reach it.
        places: Where each task manager runs. Each different place has a worker pool of its own.
        pool: A worker pool that runs already, in place of these.
    """
    with server_folder("flink", folder) as logs, contextlib.ExitStack() as stack:
        rest = free_port()
        settings = {
            **_MEMORY,
            "jobmanager.rpc.address": address,
            "jobmanager.rpc.port": str(free_port()),
            # Whoever takes a job hands its files to the blob server by way of localhost, wherever that is reached from.
            "jobmanager.bind-host": HOST if address == HOST else "0.0.0.0",
            "rest.address": address,
            "rest.bind-address": address,
            "rest.port": str(rest),
            "taskmanager.numberOfTaskSlots": str(PARALLELISM // len(places)),
            "parallelism.default": str(PARALLELISM),
            "heartbeat.interval": "2000",
            "heartbeat.timeout": "10000",
        }
        work = logs / "job-manager"
        conf = _configure(logs / "job-manager-conf", settings, work)
        options = ["-Xmx320m", _LOGGING, f"-Djava.io.tmpdir={work}"]
        command = java_command(pins.FLINK.class_path, _JOB_MANAGER, "--configDir", str(conf), options=options)
        manager = stack.enter_context(Process(command, name="job-manager", folder=logs, work=work))
        pools = [pool] if pool else list(_start_pools(stack, logs, env, places))
        words = (f"--flink-master={address}:{rest}", f"--flink-conf-dir={conf}")
        options = ["-Xmx256m", _LOGGING]
        server, job_port = job_server(pins.FLINK.merged, _JOB_SERVER, *words, options=options, folder=logs)
        stack.enter_context(server)
        starter = _Starter(stack, logs, settings, places)
        managers = [starter.task_manager(number) for number in range(len(places))]
        cluster = FlinkCluster(f"http://{address}:{rest}", job_port, manager, server, managers, pools, _starter=starter)
        manager.wait_until(
            lambda: _count(cluster) == len(places), seconds=START_SECONDS, what=f"joined by {len(places)} task managers"
        )
        yield cluster


def _start_pools(
    stack: contextlib.ExitStack, logs: Path, env: Mapping[str, str] | None, places: Sequence[Place]
) -> Iterator[WorkerPool]:
    """Start a worker pool at each different place, all on one port: a task manager asks its own host."""
    port = free_port()
    for number, place in enumerate(dict.fromkeys(places), start=1):
        yield stack.enter_context(worker_pool(logs, env=env, name=f"workers-{number}", port=port, prefix=place.prefix))


def _count(cluster: FlinkCluster) -> int:
    """Count the registered task managers; say why when one of them ended instead."""
    for manager in cluster.task_managers:
        if not manager.alive:
            raise ServerError(f"{manager.name} ended as it started; the end of {manager.log}:\n{manager.tail()}")
    try:
        return len(cluster.registered())
    except OSError:  # the job manager does not listen yet
        return 0


def _configure(conf: Path, settings: Mapping[str, str], work: Path) -> Path:
    conf.mkdir()
    own = {"io.tmp.dirs": str(work), "blob.storage.directory": str(work)}
    lines = [f"{key}: {value}\n" for key, value in {**settings, **own}.items()]
    (conf / "config.yaml").write_text("".join(lines))
    return conf


def _resources(conf: Path) -> tuple[list[str], list[str]]:
    """Ask Flink for the options of a task manager: those of the Java runtime, and those of the program."""
    command = java_command(pins.FLINK.class_path, _TOOLS, "GET_TM_RESOURCE_PARAMS", "--configDir", str(conf))
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.removeprefix(_RESULT).split() for line in asked.stdout.splitlines() if line.startswith(_RESULT)]
    if len(lines) != 2:
        raise ServerError(f"Flink did not tell how to start a task manager:\n{asked.stdout}{asked.stderr}")
    return lines[0], lines[1]
