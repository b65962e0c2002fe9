"""Fork servers: processes that have imported modules and fork a process for each request.

A client connects to the Unix socket of the server and sends one request. The server answers with the ID of the forked
process, and after its end with its status. If the client disconnects, the server kills the process. The server has
one thread, so it can fork at any time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Never

_PEER = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # of linux/prctl.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# Largest freed buffer that the allocator reuses, in bytes. Its default is 32 MiB. The system clears each new page: this
# took a tenth of the time of a sort in tasks of 64 MB.
_LARGEST_KEPT = 1 << 30

# Encoding of a number: the length of a request, a process id, or a status. A negative status is a signal number.
NUMBER = struct.Struct(">q")
END_SECONDS = 10.0  # longest wait for killed processes. A process with much memory takes a while to end.
# Settings of glibc's allocator. Buffers from 4 MiB go back to the system when they are freed. Of smaller ones, free
# memory above 32 MiB goes back. By default glibc keeps large buffers, in an arena for each thread that reads, cuts or
# publishes: a worker of a 10 GB job took 296 MB instead of 185. With only the first setting, glibc would release and
# request small buffers with each block of records. The last setting takes memory in huge pages where the system has
# them: a third of the time for a large buffer. Values that the user has set stay.
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class ServerProcess:
    """A fork server in a separate interpreter.

    Args:
        module: The module to run. Its arguments are the descriptor of a listening socket, then `arguments`.
        environment: All environment variables. Default: those of this process, and settings of the allocator.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._address = f"\0ledgerbeam-{os.getpid()}-{os.urandom(8).hex()}"
        with listening(self._address) as listener:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(listener.fileno()), *arguments],  # -P: see __main__
                stdin=subprocess.PIPE,
                stdout=2,
                env={**_ALLOCATOR, **os.environ} if environment is None else environment,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        """Whether the server runs."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the server; return its exit status, or None if it still runs after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def ask(self, request: bytes, descriptors: Sequence[int] = ()) -> ProcessGroup:
        """Request a process. If the server has died, the returned process counts as ended, without a status."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            client.connect(self._address)
            ask(client, request, descriptors)
        return ProcessGroup(client)

    def end(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class ProcessGroup:
    """A process group that a fork server has forked, as its client sees it: of a wave, an audit or user code."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid: int | None = None  # of the leader, once it is forked
        self.status: int | None = None  # of the leader, as by `Popen`; None while it runs, or if its server died
        self._is_over = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the server reports the start or the end of the leader."""
        return self._connection.fileno()

    def wait(self, seconds: float) -> bool:
        """Wait until the leader of the group or the server ends; return whether one has ended."""
        deadline = time.monotonic() + seconds
        while not self._is_over and (left := deadline - time.monotonic()) > 0:
            self._connection.settimeout(left)
            try:
                answer = self._connection.recv(NUMBER.size)
            except TimeoutError:
                break
            except OSError:  # the server died before the connection
                answer = b""
            if not answer:
                self._is_over = True
            elif self.pid is None:
                (self.pid,) = NUMBER.unpack(answer)
            else:
                (self.status,) = NUMBER.unpack(answer)
                self._is_over = True
        return self._is_over

    def kill(self) -> None:
        """Kill the group and wait for the end of its leader. The server kills processes that the leader has left."""
        if self.pid is not None and not self._is_over:  # the leader exists, at least as a zombie
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(END_SECONDS)
        self._connection.close()

    def end(self) -> None:
        """Kill the rest of the group and wait until it is gone. A process that is not forked yet will end at once."""
        deadline = time.monotonic() + END_SECONDS
        if self.pid is not None:
            with suppress(ProcessLookupError):  # the group has no processes
                os.killpg(self.pid, signal.SIGKILL)
                while time.monotonic() < deadline:
                    os.killpg(self.pid, 0)
                    time.sleep(0.01)
        self._connection.close()


def listening(address: str) -> socket.socket:
    """Return a socket that listens at an address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


def ask(client: socket.socket, request: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a request to the fork server of a socket. It answers with two of `NUMBER`: process ID, then status."""
    socket.send_fds(client, [NUMBER.pack(len(request))], descriptors)
    client.sendall(request)


class ForkServer(ABC):
    """A server that forks one process for each request. Subclasses implement `work`."""

    name: ClassVar[str]  # name of the processes, see `fork_to`
    leads: ClassVar[bool]  # whether each process leads a process group

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}  # clients by the pid of their process
        self._events = selectors.DefaultSelector()

    @abstractmethod
    def work(self, request: bytes, descriptors: list[int]) -> int:
        """Handle a request in the forked process; return its exit status."""

    def accepted(self, request: bytes) -> None:  # noqa: B027 - most servers need nothing
        """Prepare for the process of a request, before it is forked."""

    def serve(self, lifeline: int | None = None) -> Never:
        """Serve forever, or until the pipe `lifeline` is closed."""
        gc.freeze()  # the garbage collector of a forked process would copy the pages of imported modules
        self._events.register(self._listener, selectors.EVENT_READ, self._start)
        if lifeline is not None:
            self._events.register(lifeline, selectors.EVENT_READ, self._exit)
        while True:
            for key, _ in self._events.select():
                key.data()

    def _start(self) -> None:
        client, _ = self._listener.accept()
        _, user, _ = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.getuid():
            client.close()
            return
        head, descriptors, _, _ = socket.recv_fds(client, NUMBER.size, 2)
        with client.makefile("rb") as sent:
            request = sent.read(*NUMBER.unpack(head)) if head else b""
        if not request:
            client.close()
            return
        self.accepted(request)
        pid = fork_to(lambda: self._work(request, descriptors, client), self.name)
        if self.leads:
            with suppress(OSError):  # it has done so itself, or has ended
                os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        ended = os.pidfd_open(pid)
        self._clients[pid] = client
        self._events.register(ended, selectors.EVENT_READ, lambda: self._end(pid, ended))
        self._events.register(client, selectors.EVENT_READ, lambda: self._kill_abandoned(pid))
        _send(client, pid)

    def _work(self, request: bytes, descriptors: list[int], client: socket.socket) -> int:
        for open_socket in (self._listener, client, *self._clients.values()):
            open_socket.close()
        self._events.close()
        if self.leads:
            os.setpgid(0, 0)
        return self.work(request, descriptors)

    def _end(self, pid: int, ended: int) -> None:
        """Send the status of an ended process to its client, and kill the rest of its group."""
        self._kill(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        with self._clients.pop(pid) as client:
            if client in self._events.get_map():
                self._events.unregister(client)
            _send(client, status)

    def _kill_abandoned(self, pid: int) -> None:
        if pid in self._clients:  # otherwise it has ended at the same moment
            self._events.unregister(self._clients[pid])
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if self.leads else os.kill)(pid, signal.SIGKILL)

    def _exit(self) -> Never:
        """Kill all processes and exit. Children of these processes would survive the exit alone."""
        for pid in self._clients:
            self._kill(pid)
        os._exit(0)


def fork_to(body: Callable[[], int], name: str) -> int:
    """Fork a process that runs a function and dies with this process; return its process id.

    `name` is the name of the process in the system, of at most 15 characters.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # Other threads may exist, but they wait and hold no lock that the process needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run(body, name, parent)
    return pid


def _run(body: Callable[[], int], name: str, parent: int) -> Never:
    """Run the function of a forked process and exit, without returning to the parent's stack frames."""
    status = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(_PR_SET_NAME, name.encode())
        if hasattr(libc, "mallopt"):  # the allocator of glibc
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
            libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_KEPT)
        if os.getppid() != parent:
            os._exit(1)
        status = body()
    except BaseException:  # noqa: BLE001 - shown, and reported by the exit status
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, OSError):  # replaced by user code, or the reader is gone
                stream.flush()
        os._exit(status)


def _send(client: socket.socket, number: int) -> None:
    with suppress(OSError):  # the client has disconnected
        client.sendall(NUMBER.pack(number))
