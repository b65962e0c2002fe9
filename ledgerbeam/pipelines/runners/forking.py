"""A server that forks a process for each who asks, from one that has imported what they need.

Who asks connects to its Unix socket and sends one request; the server answers with the process id, and when the process
has ended with its status. A process whose asker has gone is killed. The server has one thread, so that it may fork at
any time.
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
"""How a number is sent: the length of a request, a process id, a status; of a signal that is its number, below 0."""


def ask(asker: socket.socket, request: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a request to a server that a socket is connected to; both answers are a `NUMBER`."""
    socket.send_fds(asker, [NUMBER.pack(len(request))], descriptors)
    asker.sendall(request)


def fork_to(body: Callable[[], int], name: str) -> int:
    """Fork a process that does one thing and dies with this one; return its process id.

    Args:
        body: What it does; returns the exit status.
        name: What the system shows it as; at most 15 letters.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # The threads that there may be wait, and hold nothing that the process needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run(body, name, parent)
    return pid


class ForkServer(ABC):
    """What a server is for: it has the request of each process that it forks done by that.

    Args:
        listener: Who asks connects to it.

    Attributes:
        name: Of the processes, as `fork_to` takes it.
        leads: Whether each of them leads a process group.
    """

    name: ClassVar[str]
    leads: ClassVar[bool]

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._askers: dict[int, socket.socket] = {}  # by the pid of what was forked for them
        self._events = selectors.DefaultSelector()

    @abstractmethod
    def work(self, request: bytes, descriptors: list[int]) -> int:
        """Do what was asked for, in the process that was forked for it; return its exit status."""

    def accepted(self) -> None:  # noqa: B027 - most need nothing
        """Note that there is one more who asks, before the process is forked."""

    def serve(self, lifeline: int | None = None) -> Never:
        """Serve for ever; or until a pipe is closed, if there is one."""
        gc.freeze()  # what was imported: no process that is forked looks through it for garbage, and so copies it
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
        """Tell the asker how its process has ended."""
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        with self._askers.pop(pid) as asker:
            if asker in self._events.get_map():
                self._events.unregister(asker)
            _tell(asker, status)

    def _abandon(self, pid: int) -> None:
        """End what was forked for an asker that is gone."""
        if pid in self._askers:  # else it has ended in the same moment
            self._events.unregister(self._askers[pid])
            (os.killpg if self.leads else os.kill)(pid, signal.SIGKILL)


def _tell(asker: socket.socket, number: int) -> None:
    with suppress(OSError):  # the asker has gone
        asker.sendall(NUMBER.pack(number))


def _run(body: Callable[[], int], name: str, parent: int) -> Never:
    """Do what a forked process is for, and end it there: what stands above on the stack is not its own."""
    status = 1
    try:
        _become(name, parent)
        status = body()
    except BaseException:  # noqa: BLE001 - shown, and reported by the exit status
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, OSError):  # the function has taken it away, or nobody reads it
                stream.flush()
        os._exit(status)


def _become(name: str, parent: int) -> None:
    """Name the process, and have it die with the one that forked it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, name.encode())
    if os.getppid() != parent:
        os._exit(1)
