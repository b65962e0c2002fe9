"""Workers of a local job, forked from a process that has imported Beam: that takes longer than many a job.

FnApiRunner starts a worker by a command. Here the command is `worker_relay`, which asks the server for a worker and
ends as that one ends. The server is forked from the wave's process, before that has used gRPC or started a thread of
Beam, and stays without threads: it may fork at any time. User code is imported by workers only.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Never

import numpy as np
from apache_beam.runners.worker import sdk_worker_main

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.worker.ending import end_work
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.stopwatch import begin_times
from ledgerbeam.ledger.worker.worker_errors import leave_error
from ledgerbeam.pipelines.runners import worker_relay
from ledgerbeam.pipelines.runners.profiler import begin_profile
from ledgerbeam.transforms.user_object import close_objects

__all__ = ["DEVICES", "fork_server", "one_device"]

DEVICES = "CUDA_VISIBLE_DEVICES"

_PEER = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # of linux/prctl.h
_SIGNALLED = 128  # what a shell adds to the signal that ended a program


@contextmanager
def fork_server(run_dir: str, devices: Sequence[str] = (), *, profile: bool = False) -> Iterator[str]:
    """Have a fork server. Enter it when Beam has been imported, and before it runs anything.

    Args:
        run_dir: Folder of the run, in which workers show that they live.
        devices: Ids of the CUDA devices of which workers see one each, in turn; empty leaves that as it is.
        profile: Whether workers leave profiles there.

    Yields:
        The shell command that starts a worker: ``exec``, so that no shell is between.
    """
    name = f"ledgerbeam-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen()
    with warnings.catch_warnings():
        # The only other thread waits for the launcher's end, and holds nothing that the server needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run(lambda: _Server(listener, run_dir, devices, profile=profile).serve())
    listener.close()
    try:
        yield f'exec "{sys.executable}" -I -S "{worker_relay.__file__}" {name}'
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # else the wait for the wave's process group would not end


class _Server:
    def __init__(self, listener: socket.socket, run_dir: str, devices: Sequence[str], *, profile: bool) -> None:
        self._listener = listener
        self._run_dir = run_dir
        self._profile = profile
        self._devices = devices
        self._started = 0
        self._relays: dict[int, socket.socket] = {}  # by the pid of their worker
        self._events = selectors.DefaultSelector()

    def serve(self) -> None:
        _become("ledgerbeam-fork")
        self._events.register(self._listener, selectors.EVENT_READ, self._start)
        while True:
            for key, _ in self._events.select():
                key.data()

    def _start(self) -> None:
        relay, _ = self._listener.accept()
        _, user, _ = _PEER.unpack(relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.getuid():
            relay.close()
            return
        head, outputs, _, _ = socket.recv_fds(relay, 8, 2)
        with relay.makefile("rb") as sent:
            environment = sent.read(int.from_bytes(head, "big"))
        device = one_device(self._devices, self._started)
        self._started += 1
        pid = os.fork()
        if pid == 0:
            for open_socket in (self._listener, relay, *self._relays.values()):
                open_socket.close()
            self._events.close()
            _run(lambda: _work(outputs, environment, device, self._run_dir, profile=self._profile))
        for output in outputs:
            os.close(output)
        ended = os.pidfd_open(pid)
        self._relays[pid] = relay
        self._events.register(ended, selectors.EVENT_READ, lambda: self._end(pid, ended))
        self._events.register(relay, selectors.EVENT_READ, lambda: self._abandon(pid))

    def _end(self, pid: int, ended: int) -> None:
        """Tell the relay of a worker how that has ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        with self._relays.pop(pid) as relay:
            if relay in self._events.get_map():
                self._events.unregister(relay)
            try:
                relay.sendall(bytes([code if code >= 0 else _SIGNALLED - code]))
            except OSError:  # the relay has ended, too
                return

    def _abandon(self, pid: int) -> None:
        """End a worker whose relay is gone."""
        if pid in self._relays:  # else it has ended in the same moment
            self._events.unregister(self._relays[pid])
            os.kill(pid, signal.SIGKILL)


def one_device(devices: Sequence[str], position: int) -> dict[str, str]:
    """Return the environment variable by which a worker sees one device; workers take turns."""
    return {DEVICES: devices[position % len(devices)]} if devices else {}


def _work(outputs: list[int], environment: bytes, device: dict[str, str], run_dir: str, *, profile: bool) -> None:
    """Serve the runner until it closes the channel."""
    _become("ledgerbeam-work")
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.environ.clear()
    os.environ.update(json.loads(environment) | device)
    np.random.seed(None)
    marks = InflightMarks(run_dir)
    try:
        marks.register()  # shows at once that the process lives, before any task
    except LedgerbeamError as error:
        leave_error(run_dir, error)
        os._exit(1)
    begin_times(run_dir)
    if profile:
        begin_profile(run_dir)
    sdk_worker_main.main([])
    close_objects()
    end_work()
    marks.close()


def _become(name: str) -> None:
    """Name the process, has it die with the one that forked it, and take the launcher's pipe from it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, name.encode())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _run(body: Callable[[], None]) -> Never:
    """Run what a forked process is for, and end it there: what stands above on the stack is not its own."""
    status = 1
    try:
        body()
        status = 0
    except BaseException:  # noqa: BLE001 - shown, and reported by the exit status
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
