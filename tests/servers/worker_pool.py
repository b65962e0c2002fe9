"""A pool of Beam's Python workers on this machine: what `--environment_type=EXTERNAL` asks for workers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.servers import pins
from tests.servers.process import Process, command_of, free_port, listens, server_folder

START_SECONDS = 60.0
_WORKER = "sdk_worker"
_READY = "Started worker pool"


@dataclass(frozen=True)
class WorkerPool:
    """A running worker pool."""

    port: int
    process: Process

    @property
    def options(self) -> list[str]:
        """Beam options that send a job's workers here."""
        return ["--environment_type=EXTERNAL", f"--environment_config=localhost:{self.port}"]

    @property
    def workers(self) -> list[int]:
        """Process ids of the living workers."""
        return [pid for pid in self.process.descendants() if _WORKER in command_of(pid)]


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
    programs = os.path.dirname(python)
    paths = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(pins.ROOT), os.environ.get("PYTHONPATH")])),
    }
    with server_folder(name, folder) as logs:
        command = [*prefix, python, "-m", "tests.servers.pool_main"]
        command.append(f"--service_port={port}")
        with Process(command, name=name, folder=logs, env={**paths, **(env or {})}) as process:
            if prefix:
                process.wait_until(lambda: _READY in process.log.read_text(), seconds=START_SECONDS)
            else:
                process.wait_until(lambda: listens(port), seconds=START_SECONDS)
            yield WorkerPool(port, process)
