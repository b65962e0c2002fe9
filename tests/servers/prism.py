"""Prism, Beam's own portable runner, as a server of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers import pins
from tests.servers.engine import WorkerPool, portable_options, worker_pool
from tests.servers.process import Process, free_port, listens, server_folder

START_SECONDS = 120.0


@dataclass(frozen=True)
class Prism:
    """A running Prism."""

    job_port: int
    process: Process
    pool: WorkerPool
    name = "Prism"

    @property
    def options(self) -> list[str]:
        return portable_options(self.job_port, self.pool)

    @property
    def workers(self) -> list[int]:
        """Process ids of the living Python workers; Prism takes one for a job."""
        return self.pool.workers

    @property
    def executors(self) -> list[int]:
        """None: Prism works in one process."""
        return []

    def pids(self) -> list[int]:
        return [self.process.pid, *self.pool.process.tree()]


def missing() -> str | None:
    """Return what is missing to run it; None when nothing is."""
    return None if pins.PRISM.path.is_file() else f"no Prism: {pins.REMEDY}"


@contextlib.contextmanager
def prism(
    folder: Path | None = None, *, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Prism]:
    """Run Prism with a worker pool."""
    port = free_port()
    command = [str(pins.PRISM.path), f"--job_port={port}", "--serve_http=false", "--log_kind=text"]
    with (
        server_folder("prism", folder) as logs,
        worker_pool(logs, env=env, python=python) as pool,
        Process(command, name="prism", folder=logs) as process,
    ):
        process.wait_until(lambda: listens(port), seconds=START_SECONDS)
        yield Prism(port, process, pool)
