"""What all engines have in common: Beam options, processes to kill, and a pool of Python workers on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.servers import pins
from tests.servers.process import Process, command_of, free_port, listens, server_folder

HOST = "localhost"
PARALLELISM = 2
START_SECONDS = 60.0
_WORKER = "sdk_worker"
_READY = "Started worker pool"


@dataclass(frozen=True)
class WorkerPool:
    """A running worker pool: what `--environment_type=EXTERNAL` asks for workers."""

    port: int
    process: Process

    @property
    def options(self) -> list[str]:
        """Beam options that send a job's workers here."""
        return ["--environment_type=EXTERNAL", f"--environment_config={HOST}:{self.port}"]

    @property
    def workers(self) -> list[int]:
        """Process ids of the living workers."""
        return [pid for pid in self.process.descendants() if _WORKER in command_of(pid)]


class Engine(Protocol):
    """An engine that runs Beam jobs."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> list[str]:
        """Beam options that run a job on it, its Python workers in its worker pool."""

    @property
    def workers(self) -> list[int]:
        """Process ids of the living Python workers."""

    @property
    def executors(self) -> list[int]:
        """Process ids of what the engine itself works in, apart from Python: task managers, executors."""

    def pids(self) -> list[int]:
        """Process ids of all that is running of it."""


def portable_options(job_port: int, pool: WorkerPool) -> list[str]:
    """Return the Beam options of a job that is sent to a job server."""
    return ["--runner=PortableRunner", f"--job_endpoint={HOST}:{job_port}", *pool.options]


@contextlib.contextmanager
def worker_pool(
    folder: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    name: str = "workers",
    port: int | None = None,
    prefix: Sequence[str] = (),
    python: str = sys.executable,
) -> Iterator[WorkerPool]:
    """Run a worker pool whose workers are a Python, by default this one, with this package.

    Args:
        folder: Takes the log, in which the workers' errors are; a temporary one by default.
        prefix: Command that runs the pool elsewhere, such as in a network namespace.
    """
    port = port or free_port()
    # The pool starts `python` from PATH. The folder of its interpreter must come first there, unresolved: in a venv
    # it is a link, and its target would not find the venv's packages.
    own = pins.environment({"PATH": f"{os.path.dirname(python)}:{os.environ['PATH']}"})
    with server_folder(name, folder) as logs:
        command = [*prefix, python, "-m", "tests.servers.pool_main", f"--service_port={port}"]
        with Process(command, name=name, folder=logs, env={**own, **(env or {})}) as process:
            ready = (lambda: _READY in process.log.read_text()) if prefix else (lambda: listens(port))
            process.wait_until(ready, seconds=START_SECONDS)
            yield WorkerPool(port, process)
