"""Workers of a local job, forked from a process that has imported Beam. The import can take longer than the job.

FnApiRunner starts a worker by a command. Here the command is `worker_relay`, which requests a worker from the server
and exits with the status of the worker. The server is forked from the wave's process before that uses gRPC or starts a
thread of Beam. Only workers import user code.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import end_work, report_error
from ledgerbeam.ledger.worker.stopwatch import begin_times
from ledgerbeam.pipelines.runners import worker_relay
from ledgerbeam.pipelines.runners.fn_api import serve_worker
from ledgerbeam.pipelines.runners.forking import ForkServer, fork_to
from ledgerbeam.pipelines.runners.profiler import begin_profile
from ledgerbeam.user_code.objects import close_objects

DEVICES = "CUDA_VISIBLE_DEVICES"


@contextmanager
def fork_server(run_dir: str, devices: Sequence[str] = (), *, profile: bool = False) -> Iterator[str]:
    """Run a fork server. Enter the context after Beam is imported and before it runs anything.

    Args:
        run_dir: Folder of the run, in which workers leave marks that they live.
        devices: Ids of CUDA devices. Each worker sees one, in turn. Empty leaves the environment unchanged.
        profile: Whether workers leave profiles in the folder.

    Yields:
        The shell command that starts a worker, with ``exec`` so that no shell process stays.
    """
    name = f"ledgerbeam-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen()
    server = _Workers(listener, run_dir, devices, profile=profile)
    pid = fork_to(server.serve, "ledgerbeam-fork")
    listener.close()
    try:
        yield f'exec "{sys.executable}" -I -S "{worker_relay.__file__}" {name}'
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # otherwise the wait for the wave's process group would not end


class _Workers(ForkServer):
    name = "ledgerbeam-work"
    leads = False

    def __init__(self, listener: socket.socket, run_dir: str, devices: Sequence[str], *, profile: bool) -> None:
        super().__init__(listener)
        self._run_dir = run_dir
        self._profile = profile
        self._devices = devices
        self._device: dict[str, str] = {}
        self._started = 0

    def accepted(self) -> None:
        self._device = one_device(self._devices, self._started)
        self._started += 1

    def work(self, request: bytes, descriptors: list[int]) -> int:
        """Serve the runner until it closes the channel."""
        for number, output in enumerate(descriptors, start=1):
            os.dup2(output, number)
            os.close(output)
        os.environ.clear()
        os.environ.update(json.loads(request) | self._device)
        np.random.seed(None)
        marks = InflightMarks(self._run_dir)
        try:
            marks.register()  # the process is visible before its first task
        except LedgerbeamError as error:
            report_error(self._run_dir, error)
            return 1
        begin_times(self._run_dir)
        if self._profile:
            begin_profile(self._run_dir)
        serve_worker()
        close_objects()
        end_work()
        marks.close()
        return 0


def one_device(devices: Sequence[str], position: int) -> dict[str, str]:
    """Return the environment variable that shows a worker one device. Workers take the devices in turn."""
    return {DEVICES: devices[position % len(devices)]} if devices else {}
