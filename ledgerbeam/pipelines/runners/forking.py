"""Fork servers: processes that have imported modules and fork a process for each request.

A client connects to the Unix socket of the server and sends one request. The server answers with the process id, and
after the end of the process with its status. If the client disconnects, the server kills the process. The server has
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
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Never

_PEER = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # of linux/prctl.h

NUMBER = struct.Struct(">q")
"""Encoding of a number: the length of a request, a process id, or a status. A negative status is a signal number."""


def ask(asker: socket.socket, request: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a request to the server that a socket is connected to. Both answers are a `NUMBER`."""
    socket.send_fds(asker, [NUMBER.pack(len(request))], descriptors)
    asker.sendall(request)


def fork_to(body: Callable[[], int], name: str) -> int:
    """Fork a process that runs a function and dies with this process; return its process id.

    Args:
        body: Function to run; returns the exit status.
        name: Name of the process for the system, at most 15 characters.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # Other threads may exist, but they wait and hold no lock that the process needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run(body, name, parent)
    return pid


class ForkServer(ABC):
    """A server that forks one process for each request. Subclasses implement `work`.

    Args:
        listener: Socket for the connections of clients.

    Attributes:
        name: Name of the processes, see `fork_to`.
        leads: Whether each process leads a process group.
    """

    name: ClassVar[str]
    leads: ClassVar[bool]

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._askers: dict[int, socket.socket] = {}  # clients by the pid of their process
        self._events = selectors.DefaultSelector()

    @abstractmethod
    def work(self, request: bytes, descriptors: list[int]) -> int:
        """Handle a request in the forked process; return its exit status."""

    def accepted(self) -> None:  # noqa: B027 - most servers need nothing
        """Prepare for the next process, before it is forked."""

    def serve(self, lifeline: int | None = None) -> Never:
        """Serve forever, or until the pipe `lifeline` is closed."""
        gc.freeze()  # the garbage collector of a forked process would copy the pages of imported modules
        self._events.register(self._listener, selectors.EVENT_READ, self._start)
        if lifeline is not None:
            self._events.register(lifeline, selectors.EVENT_READ, lambda: os._exit(0))
        while True:
            for key, _ in self._events.select():
                key.data()

    def _start(self) -> None:
        asker, _ = self._listener.accept()
        _, user, _ = _PEER.unpack(asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.getuid():
            asker.close()
            return
        head, descriptors, _, _ = socket.recv_fds(asker, NUMBER.size, 2)
        with asker.makefile("rb") as sent:
            request = sent.read(*NUMBER.unpack(head)) if head else b""
        if not request:
            asker.close()
            return
        self.accepted()
        pid = fork_to(lambda: self._work(request, descriptors, asker), self.name)
        if self.leads:
            with suppress(OSError):  # it has done so itself, or has ended
                os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        ended = os.pidfd_open(pid)
        self._askers[pid] = asker
        self._events.register(ended, selectors.EVENT_READ, lambda: self._end(pid, ended))
        self._events.register(asker, selectors.EVENT_READ, lambda: self._abandon(pid))
        _tell(asker, pid)

    def _work(self, request: bytes, descriptors: list[int], asker: socket.socket) -> int:
        for open_socket in (self._listener, asker, *self._askers.values()):
            open_socket.close()
        self._events.close()
        if self.leads:
            os.setpgid(0, 0)
        return self.work(request, descriptors)

    def _end(self, pid: int, ended: int) -> None:
        """Send the status of an ended process to its client."""
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        with self._askers.pop(pid) as asker:
            if asker in self._events.get_map():
                self._events.unregister(asker)
            _tell(asker, status)

    def _abandon(self, pid: int) -> None:
        """Kill the process of a client that has disconnected."""
        if pid in self._askers:  # otherwise it has ended at the same moment
            self._events.unregister(self._askers[pid])
            (os.killpg if self.leads else os.kill)(pid, signal.SIGKILL)


def _tell(asker: socket.socket, number: int) -> None:
    with suppress(OSError):  # the client has disconnected
        asker.sendall(NUMBER.pack(number))


def _run(body: Callable[[], int], name: str, parent: int) -> Never:
    """Run the function of a forked process and exit, without returning to the parent's stack frames."""
    status = 1
    try:
        _become(name, parent)
        status = body()
    except BaseException:  # noqa: BLE001 - shown, and reported by the exit status
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, OSError):  # replaced by user code, or the reader is gone
                stream.flush()
        os._exit(status)


def _become(name: str, parent: int) -> None:
    """Set the name of the process, and make it die with its parent."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, name.encode())
    if os.getppid() != parent:
        os._exit(1)
