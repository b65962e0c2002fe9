"""A server process: started on a leash, waited for until it is healthy, ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from tests.servers import leash

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
TAIL_LINES = 25


class ServerError(RuntimeError):
    """A server that did not start, or ended."""


class Process:
    """One process of a server.

    Args:
        env: Added to this process's environment.
        work: A folder for the process alone: made now, removed when it has ended, however that was.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        work: Path | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        if work is not None:
            work.mkdir(parents=True)
        reading, writing = os.pipe()
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(writing), str(GRACE_SECONDS), str(work or "")]
        try:
            with self.log.open("ab") as log:
                self._leash = subprocess.Popen(
                    [*leashed, *command],
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writing,),
                    start_new_session=True,
                )
            os.close(writing)
            self.pid = int(os.read(reading, 32) or 0)  # of the server itself
        finally:
            os.close(reading)

    def __repr__(self) -> str:
        return f"Process({self.name!r}, pid={self.pid})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the server has not ended."""
        return self._leash.poll() is None

    def descendants(self) -> list[int]:
        """List the living processes that the server has started, directly or not, also those left as orphans."""
        return [pid for pid in leash.descendants(self._leash.pid) if pid != self.pid]

    def tree(self) -> list[int]:
        """List the server and the living processes that it has started."""
        return [self.pid, *self.descendants()]

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and to all that it has started."""
        leash.signal_all(self.tree(), number)

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def wait_until(self, ready: Callable[[], bool], *, seconds: float, what: str = "healthy") -> Self:
        """Wait until a condition is true.

        Raises:
            ServerError: The process ended, or the time passed; the message ends with the tail of its log.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            late = time.monotonic() > deadline
            if late or not self.alive:
                why = f"was not {what} within {seconds:.0f} s" if late else f"ended before it was {what}"
                raise ServerError(f"{self.name} {why}; the end of {self.log}:\n{self.tail()}")
            time.sleep(POLL_SECONDS)
        return self

    def wait(self, seconds: float) -> int:
        """Wait until it has ended; return its exit status, 128 plus the number of the signal that killed it."""
        try:
            status = self._leash.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"{self.name} did not end within {seconds:.0f} s:\n{self.tail()}") from error
        self.stop()
        return status

    def kill(self) -> None:
        """Send SIGKILL to the server, as the out-of-memory killer would, and wait until its tree is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._leash.wait()
        self.stop()

    def stop(self) -> None:
        """End the server and whatever it started; do nothing when they have ended."""
        if self._leash.stdin is not None:
            self._leash.stdin.close()
        self._leash.wait()


@contextlib.contextmanager
def server_folder(name: str, folder: Path | None = None) -> Iterator[Path]:
    """Return the folder of one server's logs.

    Args:
        folder: Used, and kept, when it is given. Else a temporary one: removed at the end, kept after an error, which
            then names it.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    made = Path(tempfile.mkdtemp(prefix=f"ledgerbeam-{name}-"))
    try:
        yield made
    except Exception as error:
        error.add_note(f"the logs of {name} are kept in {made}")
        raise
    except BaseException:  # an interrupted command has no use for its logs
        shutil.rmtree(made, ignore_errors=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


class QuietHandler(BaseHTTPRequestHandler):
    """A handler of requests that keeps connections open and prints nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serve from a thread until the body ends; yield the URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Wait for a condition; tell whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def free_port() -> int:
    """Find a loopback port on which nothing listens.

    It lies below the range from which the kernel takes the ports of outgoing connections, one of which could
    otherwise have it before its server does.
    """
    while True:
        port = random.randint(15_000, 31_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a connection to a port succeeds."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def answers(url: str) -> bool:
    """Return whether a URL is answered with a status of success."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def command_of(pid: int) -> str:
    """Return the command line of a process, empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def has_let_go(pid: int) -> bool:
    """Return whether a process has ended and let go of its files and locks; its command line is empty before that."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in ("Z", "X")


def name_of(pid: int) -> str:
    """Return the name of a process, of at most 15 characters, empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def resident_mebibytes(pids: Sequence[int]) -> float:
    """Add up the resident memory of processes, in MiB; what they share counts once for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
