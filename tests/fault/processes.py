"""The processes of one started job: found by a mark in their environment, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

MARK_VARIABLE = "LEDGERBEAM_TEST_JOB"  # every process of a job inherits it, whatever session or group it moves to
POLL_SECONDS = 0.02

DEATH = "; starting again with what is left\n"

Role = Literal["launcher", "starter", "wave", "forker", "worker", "other"]

_FORKED: dict[str, Role] = {
    "ledgerbeam-wave": "wave",
    "ledgerbeam-fork": "forker",
    "ledgerbeam-work": "worker",
}
"""Names of processes that have the command line of the one from which they were forked."""

_LAUNCHERS = {b"ledgerbeam", b"tests.fault.own_job"}  # modules that are run as the command of a job


class Process(NamedTuple):
    pid: int
    role: Role


def processes(mark: str) -> list[Process]:
    """List the living processes whose mark begins so, by process id."""
    needle = b"\0" + f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            if needle in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                found.append(Process(pid, _role(Path(f"/proc/{pid}"))))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def _role(process: Path) -> Role:
    forked = _FORKED.get((process / "comm").read_text().rstrip("\n"))
    if forked:
        return forked
    command = (process / "cmdline").read_bytes().split(b"\0")
    if b"ledgerbeam.pipelines.runners.wave" in command:
        return "starter"
    return "launcher" if _LAUNCHERS & set(command) else "other"


def mark_of_this_process() -> str:
    """Return the beginning of the marks of all jobs that this process starts."""
    return f"{os.getpid()}:"


def end_all() -> None:
    """Kill every process of every job that this process has started."""
    for process in processes(mark_of_this_process()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; tell whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


class Launch:
    """One start of the command of a job, with all that it starts."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str], mark: str, log: Path) -> None:
        self._mark = mark
        self._log = log
        with log.open("wb") as output:
            null, env = subprocess.DEVNULL, {**env, MARK_VARIABLE: mark}
            self._launcher = subprocess.Popen(
                command, cwd=folder, env=env, stdin=null, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._launcher.pid

    @property
    def status(self) -> int | None:
        """Exit status of the launcher; None while it runs."""
        return self._launcher.poll()

    @property
    def name(self) -> str:
        return self._log.name

    def log(self) -> str:
        """Return what the launcher and its processes have printed."""
        return self._log.read_text(errors="replace")

    def deaths(self) -> int:
        """Return how often the launcher has said that a worker died and that it starts again."""
        return self.log().count(DEATH)

    def processes(self) -> list[Process]:
        self._launcher.poll()  # reaps it
        return processes(self._mark)

    def pids(self, role: Role | None = None) -> list[int]:
        """Process ids of one role, or of all."""
        return [process.pid for process in self.processes() if role in {None, process.role}]

    def wait_for(self, role: Role | Literal["group"], seconds: float) -> list[int]:
        """Wait until there are processes of a role and gives their ids; none if the launcher ends before."""
        wanted = None if role == "group" else role
        found: list[int] = []

        def there() -> bool:
            found[:] = self.pids(wanted)
            return self.status is not None or bool(found)

        wait_until(there, seconds)
        return [] if self.status is not None else found

    def stops_where(self, condition: Callable[[], bool]) -> bool:
        """Stop all processes and tell whether a condition holds; they go on if it does not."""
        if not condition():
            return False  # it is asked often, and a job that is stopped each time gets nowhere on a busy machine
        pids = self.pids()
        self._signal(pids, signal.SIGSTOP)
        holds = condition()
        if not holds:
            self._signal(pids, signal.SIGCONT)
        return holds

    def kill(self, pids: Sequence[int]) -> bool:
        """Kill processes, in the order given. Tells whether any of them was still there."""
        return self._signal(pids, signal.SIGKILL)

    @staticmethod
    def _signal(pids: Sequence[int], number: signal.Signals) -> bool:
        there = False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                there = True
        return there

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, as long as the launcher runs; tell whether it came true.

        On a machine that is busy a job is slow, and one that has ended brings nothing about: that is the end to wait
        for, and `seconds` only names a job that hangs.
        """
        wait_until(lambda: condition() or self.status is not None, seconds)
        return condition()

    def wait(self, seconds: float) -> bool:
        """Wait until the launcher has ended; tell whether it has."""
        return wait_until(lambda: self.status is not None, seconds)

    def wait_gone(self, seconds: float) -> list[Process]:
        """Wait until no process of the job is left; return those that are."""
        wait_until(lambda: not self.processes(), seconds)
        return self.processes()

    def end(self) -> None:
        """Kill whatever is left of the job."""
        while left := self.pids():
            self.kill(left)
            time.sleep(POLL_SECONDS)
        self._launcher.wait()
