"""Launcher's side of a fork server: start the server, and request processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from ledgerbeam.pipelines.runners.forking import NUMBER, ask

END_SECONDS = 10.0
"""Longest wait for killed processes. A process with much memory takes a while to end."""

_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
"""Settings of glibc's allocator. Buffers from 4 MiB go back to the system when they are freed. Of smaller ones, free
memory above 32 MiB goes back. By default glibc keeps large buffers, in an arena for each thread that reads, cuts or
publishes: a worker of a 10 GB job took 296 MB instead of 185. With only the first setting, glibc would release and
request small buffers with each block of records. Values that the user has set stay."""


class ServerProcess:
    """A fork server in a separate interpreter.

    Args:
        module: The module to run. It serves a `ForkServer` for each kind.
        kinds: The kinds of processes to fork. The module gets the descriptor of a listening socket for each kind.
        arguments: The other arguments of the module.
        environment: All environment variables. Default: those of this process, and settings of the allocator.
    """

    def __init__(
        self,
        module: str,
        kinds: Sequence[str],
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        name = f"\0ledgerbeam-{os.getpid()}-{os.urandom(8).hex()}"
        self._addresses = {kind: f"{name}-{kind}" for kind in kinds}
        with ExitStack() as listening:
            listeners = [listening.enter_context(_listener(address)) for address in self._addresses.values()]
            numbers = [listener.fileno() for listener in listeners]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, numbers), *arguments],  # -P: for the reason see __main__
                stdin=subprocess.PIPE,
                stdout=2,
                env={**_ALLOCATOR, **os.environ} if environment is None else environment,
                pass_fds=numbers,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        """Whether the server runs."""
        return self._process.poll() is None

    def ask(self, kind: str, request: bytes) -> Wave:
        """Ask for a process. If the server has died, the process ends at once without a status."""
        asker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            asker.connect(self._addresses[kind])
            ask(asker, request)
        return Wave(asker)

    def end(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _listener(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


class Wave:
    """The process group of a wave, or of the process that builds indexes ahead.

    Args:
        told: Connection to the server, which sends the process id and the status.

    Attributes:
        pid: Process id of the leader, once it is forked; None before.
        status: Exit status of the leader, see `subprocess.Popen.returncode`; None while it runs, or if its server died.
    """

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self.pid: int | None = None
        self.status: int | None = None
        self._is_over = False

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the leader or of the server; return whether one of them has ended."""
        deadline = time.monotonic() + seconds
        while not self._is_over and (left := deadline - time.monotonic()) > 0:
            self._told.settimeout(left)
            try:
                told = self._told.recv(NUMBER.size)
            except TimeoutError:
                break
            except OSError:  # the server died before the connection
                told = b""
            if not told:
                self._is_over = True
            elif self.pid is None:
                (self.pid,) = NUMBER.unpack(told)
            else:
                (self.status,) = NUMBER.unpack(told)
                self._is_over = True
        return self._is_over

    def end(self) -> None:
        """Kill the rest of the group and wait until it is gone. A process that is not forked yet will end at once."""
        deadline = time.monotonic() + END_SECONDS
        if self.pid is not None:
            with suppress(ProcessLookupError):  # the group has no processes
                os.killpg(self.pid, signal.SIGKILL)
                while time.monotonic() < deadline:
                    os.killpg(self.pid, 0)
                    time.sleep(0.01)
        self._told.close()
