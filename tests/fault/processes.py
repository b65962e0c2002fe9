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

MARK_VARIABLE = "LEDGERBEAM_TEST_JOB"
"""Every process of a job inherits it, whatever session or group it moves to."""

POLL_SECONDS = 0.02

DEATH = "; starting again with what is left\n"

Role = Literal["launcher", "wave", "worker", "other"]


class Process(NamedTuple):
    """A process of a job."""

    pid: int
    role: Role


def processes(mark: str) -> list[Process]:
    """Lists the living processes whose mark begins so, by process id."""
    needle = b"\0" + f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            if needle in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                found.append(Process(pid, _role(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def _role(command: Sequence[bytes]) -> Role:
    if b"ledgerbeam.pipelines.wave" in command:
        return "wave"
    if b"ledgerbeam" in command:
        return "launcher"
    if b"apache_beam.runners.worker.sdk_worker_main" in command:
        return "worker"
    return "other"


def mark_of_this_process() -> str:
    """Gives the beginning of the marks of all jobs that this process starts."""
    return f"{os.getpid()}:"


def end_all() -> None:
    """Kills every process of every job that this process has started."""
    for process in processes(mark_of_this_process()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for a condition; tells whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


class Launch:
    """One start of the command of a job, with all that it starts.

    Args:
        command: Command line.
        folder: Working folder.
        env: Environment.
        mark: Of the job; unique on this machine.
        log: File that takes its output.
    """

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str], mark: str, log: Path) -> None:
        self._mark = mark
        self._log = log
        with log.open("wb") as output:
            self._launcher = subprocess.Popen(
                command,
                cwd=folder,
                env={**env, MARK_VARIABLE: f"{mark}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """Exit status of the launcher; None while it runs."""
        return self._launcher.poll()

    @property
    def name(self) -> str:
        """Name of its log."""
        return self._log.name

    def log(self) -> str:
        """What the launcher and its processes have printed."""
        return self._log.read_text(errors="replace")

    def deaths(self) -> int:
        """How often the launcher has said that a worker died and that it starts again."""
        return self.log().count(DEATH)

    def processes(self) -> list[Process]:
        """The living processes of the job."""
        self._launcher.poll()  # reaps it
        return processes(self._mark)

    def pids(self, role: Role | None = None) -> list[int]:
        """Process ids of one role, or of all."""
        return [process.pid for process in self.processes() if role in {None, process.role}]

    def wait_for(self, role: Role | Literal["group"], seconds: float) -> list[int]:
        """Waits until there are processes of a role and gives their ids; none if the launcher ends before."""
        wanted = None if role == "group" else role
        wait_until(lambda: self.status is not None or bool(self.pids(wanted)), seconds)
        return [] if self.status is not None else self.pids(wanted)

    def kill(self, pids: Sequence[int]) -> bool:
        """Kills processes, in the order given. Tells whether any of them was still there."""
        killed = False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed = True
        return killed

    def wait(self, seconds: float) -> bool:
        """Waits until the launcher has ended; tells whether it has."""
        return wait_until(lambda: self.status is not None, seconds)

    def wait_gone(self, seconds: float) -> list[Process]:
        """Waits until no process of the job is left; gives those that are."""
        wait_until(lambda: not self.processes(), seconds)
        return self.processes()

    def end(self) -> None:
        """Kills whatever is left of the job."""
        while left := self.pids():
            self.kill(left)
            time.sleep(POLL_SECONDS)
        self._launcher.wait()
