"""How a launcher starts waves: they are forked from one process, which imports once what all that a call runs needs.

That is Beam, and the clients of the stores. What makes indexes ahead is forked from another, which does not wait for
these imports.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Literal, Self

from ledgerbeam.errors import StorageError
from ledgerbeam.pipelines.beam_import import BeamParts
from ledgerbeam.pipelines.run_progress import count
from ledgerbeam.pipelines.runners.forking import NUMBER, ask

__all__ = ["Wave", "Waves", "require_descriptors"]

Forked = Literal["wave", "ahead"]

END_SECONDS = 10.0
"""How long killed processes are waited for; one that holds much memory takes a while to be gone."""

_COMMAND = [sys.executable, "-P", "-m", "ledgerbeam.pipelines.runners.wave"]  # -P: see __main__

_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
"""For glibc: buffers from the first size on go back to the system when they are freed, and of smaller ones what comes
to the second. By default it keeps the large ones, in an arena for each thread that reads, cuts or publishes, and a
worker of a job of 10 GB took 296 MB instead of 185; once the first is set, it would give the small ones back with each
block of records, and take them anew. Who has set one of them keeps that."""

_DESCRIPTORS, _DESCRIPTORS_OF_WORKER = 64, 4
"""How many files a process of a wave may have to hold open: a worker up to 50, the wave's first process 25 and 4 for
each worker; the rest is for functions and files of Python modules."""


def require_descriptors(workers: int) -> None:
    """See that processes of a wave may open as many files as they need: gRPC would wait for ever for one more.

    A soft limit that is too low is raised, as far as needed.

    Args:
        workers: Worker processes of the wave.

    Raises:
        StorageError: The hard limit is too low.
    """
    needed = _DESCRIPTORS + _DESCRIPTORS_OF_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = (hard - _DESCRIPTORS) // _DESCRIPTORS_OF_WORKER
        fewer = f", or give --workers {most} or fewer," if most > 0 else ""
        raise StorageError(
            f"the limit of open files (ulimit -n) is {hard}, and a run with {count(workers, 'local worker')} needs "
            f"{needed}: raise the limit{fewer} and run the same command again"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Waves:
    """The waves of a call. What forks them ends with the context.

    Args:
        log_level: The lowest that their processes show.
        schemes: Of the URLs of the stores that they are likely to use.
    """

    def __init__(self, log_level: str, schemes: Sequence[str] = ()) -> None:
        self._log_level = log_level
        self._schemes = schemes
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.end()

    def prepare(self, parts: BeamParts) -> None:
        """Begin to import what waves need, beside what the launcher does meanwhile."""
        if self._server is not None and not (self._server.lives and self._server.parts == parts):
            self._server.end()
            self._server = None
        if self._server is None:
            self._server = _Server(parts, self._log_level, self._schemes)

    def start(self, parts: BeamParts, arguments: Sequence[str], environment: Mapping[str, str]) -> Wave:
        """Start a wave.

        Args:
            parts: Of Beam, that it needs.
            arguments: What the wave's process is given.
            environment: Of its processes.
        """
        return self._ask(parts, "wave", arguments, environment)

    def start_ahead(self, parts: BeamParts, arguments: Sequence[str], environment: Mapping[str, str]) -> Wave:
        """Start what makes indexes ahead; arguments as of `start`."""
        return self._ask(parts, "ahead", arguments, environment)

    def _ask(self, parts: BeamParts, what: Forked, arguments: Sequence[str], environment: Mapping[str, str]) -> Wave:
        self.prepare(parts)
        if self._server is None:
            raise AssertionError("a server was begun")
        request = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode()
        return Wave(self._server.ask(what, request))


class _Server:
    """The process that waves are forked from, with the one beside it.

    Attributes:
        parts: Of Beam, that it has.
    """

    def __init__(self, parts: BeamParts, log_level: str, schemes: Sequence[str]) -> None:
        self.parts = parts
        name = f"\0ledgerbeam-{os.getpid()}-{os.urandom(8).hex()}"
        self._addresses: dict[Forked, str] = {"wave": f"{name}-wave", "ahead": f"{name}-ahead"}
        with ExitStack() as listening:
            listeners = [listening.enter_context(_listener(address)) for address in self._addresses.values()]
            numbers = [listener.fileno() for listener in listeners]
            self._process = subprocess.Popen(
                [*_COMMAND, *map(str, numbers), parts, log_level, *schemes],
                stdin=subprocess.PIPE,
                stdout=2,
                env={**_ALLOCATOR, **os.environ},
                pass_fds=numbers,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        """Whether it may be asked."""
        return self._process.poll() is None

    def ask(self, what: Forked, request: bytes) -> socket.socket:
        """Ask for a process; return where the server tells of it. If it has died, nothing is told."""
        asker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            asker.connect(self._addresses[what])
            ask(asker, request)
        return asker

    def end(self) -> None:
        """Kill it."""
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
    """The process group of one wave, or of what makes indexes ahead.

    Args:
        told: Where its server tells of it.

    Attributes:
        pid: Of its first process, once the server has forked it; else None.
        status: How that has ended, as `subprocess.Popen.returncode` has it; None while it runs, or if its server died.
    """

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self.pid: int | None = None
        self.status: int | None = None
        self._is_over = False

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended, or the server has."""
        deadline = time.monotonic() + seconds
        while not self._is_over and (left := deadline - time.monotonic()) > 0:
            self._told.settimeout(left)
            try:
                told = self._told.recv(NUMBER.size)
            except TimeoutError:
                break
            except OSError:  # the server died before it was reached
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
        """Kill what is left of the group, and wait until it is gone; one that is not forked yet will end at once."""
        deadline = time.monotonic() + END_SECONDS
        if self.pid is not None:
            with suppress(ProcessLookupError):  # none of the group is left
                os.killpg(self.pid, signal.SIGKILL)
                while time.monotonic() < deadline:
                    os.killpg(self.pid, 0)
                    time.sleep(0.01)
        self._told.close()
