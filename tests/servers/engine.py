"""What all engines have in common for a test: Beam options to run on it, and processes to kill."""

from __future__ import annotations

from typing import Protocol

from tests.servers.worker_pool import WorkerPool

HOST = "localhost"
PARALLELISM = 2


class Engine(Protocol):
    """An engine that runs Beam jobs."""

    @property
    def name(self) -> str:
        """What it is called in tables and messages."""

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
