"""Making the Nth system call of a running job fail, by strace, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.errors_job import START, Place
from tests.fault.job import ROOT, environment

CALLS = {
    "openat": ("EIO", "ENOSPC"),
    "read": ("EIO",),
    "pread64": ("EIO",),
    "write": ("EIO", "ENOSPC"),
    "writev": ("EIO", "ENOSPC"),
    "pwrite64": ("EIO", "ENOSPC"),
    "pwritev": ("EIO", "ENOSPC"),
    "fsync": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO", "ENOSPC"),
    "fallocate": ("EIO", "ENOSPC"),
    "rename": ("EIO", "ENOSPC"),
    "link": ("EIO", "ENOSPC"),
    "unlink": ("EIO",),
    "mkdir": ("EIO", "ENOSPC"),
}
"""System calls that are made to fail, and how."""

HANG_SECONDS = 60.0

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\(")


@dataclass(frozen=True)
class Injection:
    """A fault."""

    call: str
    error: str
    when: int
    for_good: bool

    def __str__(self) -> str:
        return f"{self.call} {self.when}{'+' if self.for_good else ''} {self.error}"


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        end: ``ended``, ``typed`` or ``untyped`` (of the error that was raised), ``hung`` or ``died``.
        message: The error.
        done: What the ledger had acknowledged: source and lineage of each leaf.
        hits: System calls that were made to fail.
        calls: How often each system call was made.
    """

    end: str
    message: str = ""
    done: list[tuple[bytes, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    hits: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def hear(self, text: str) -> None:
        """Take a message of the job."""
        word, *rest = json.loads(text)
        if word == "done":
            self.done += [(bytes.fromhex(s), tuple((o, c) for o, c in lineage)) for s, lineage in rest[0]]
        elif word == "raised":
            self.end, self.message = rest
        else:
            self.end = word


class JobServer:
    """A process that runs jobs in forks of itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._messages, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.fault.errors_job", str(theirs.fileno()), str(self._folder / "warm")]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        theirs.close()

    def run(self, place: Place, injection: Injection | None = None, *, count: bool = False) -> Outcome:
        """Run a job to its end, under strace if something is injected or counted."""
        print(json.dumps([place.folder, place.remote]), file=self._process.stdin, flush=True)
        pid = int(self._line(HANG_SECONDS) or "0")
        trace = self._folder / "trace"
        with self._strace(pid, trace, injection) if injection or count else contextlib.nullcontext():
            os.kill(pid, START)
            status = self._line(HANG_SECONDS)
            if status is None:
                os.kill(pid, signal.SIGKILL)
                self._line(HANG_SECONDS)
        outcome = Outcome("hung" if status is None else "died", f"status {status}")
        while select.select([self._messages], [], [], 0)[0]:
            outcome.hear(self._messages.recv(1 << 20).decode())
        if injection or count:
            lines = trace.read_text(errors="replace").splitlines()
            outcome.hits = sum("(INJECTED)" in line for line in lines)
            outcome.calls = Counter(match[1] for line in lines if (match := _CALL.match(line)))
        return outcome

    def _line(self, seconds: float) -> str | None:
        output = self._process.stdout
        if output is None or not select.select([output], [], [], seconds)[0]:
            return None
        return output.readline().strip()

    @contextlib.contextmanager
    def _strace(self, pid: int, trace: Path, injection: Injection | None) -> Iterator[None]:
        command = ["strace", "-qq", "-f", "-s", "0", "-o", str(trace), "-p", str(pid), "-e", "signal=none"]
        command += ["-e", f"trace={','.join(CALLS)}"]
        if injection is not None:
            when = f"{injection.when}+" if injection.for_good else f"{injection.when}"
            command += ["-e", f"inject={injection.call}:error={injection.error}:when={when}"]
        strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while (
                "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8") and strace.poll() is None
            ):
                time.sleep(0.001)
            yield
            strace.wait(HANG_SECONDS)
        finally:
            strace.kill()
            strace.wait()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._messages.close()
