"""Measures a program and all processes that it starts: `python -m benchmarks.measured FOLDER WORD...`.

This process adopts orphans of the program, so it measures them, too. It prints a JSON object with the attributes of
`Measured`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peer import ROOT
from benchmarks.scale_runs import tree

_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_SAMPLE_SECONDS = 0.05
_LEFT_SECONDS = 10.0
"""Seconds after which processes that a program has left running are ended."""

WORKERS = ("ledgerbeam-work",)
"""Names of the worker processes of ledgerbeam."""


@dataclass(frozen=True)
class Measured:
    """The cost of a program.

    Attributes:
        wall: Seconds until it ended.
        cpu: CPU seconds of the program and of all processes that it started.
        memory: Peak resident memory of one process, in bytes: of a worker, if the program has workers of ledgerbeam.
        first: Seconds until the first file was in the folder. If the program writes no file, the same as `wall`.
    """

    wall: float
    cpu: float
    memory: int
    first: float


def measure(
    command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Measured:
    """Run a program, which writes to `folder`, to its end.

    Raises:
        RuntimeError: The program ended with an error. The message has its output.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measured", str(folder), *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Measured(**json.loads(done.stdout))


def best_of(folder: Path, commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Measured]:
    """Run commands in turn, each some times, and return the fastest run of each.

    A command writes to the folder of its name, and a job has its ledger in ``NAME-ledger``. Both are removed before.
    """
    found: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            for leftover in (name, f"{name}-ledger"):
                shutil.rmtree(folder / leftover, ignore_errors=True)
            found[name].append(measure(command, folder / name))
    return {name: min(runs, key=lambda run: run.wall) for name, runs in found.items()}


def main(folder: str, *command: str) -> int:
    """Print the cost of a program; return its exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    peaks: dict[str, int] = {}
    first: list[float] = []
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=2)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            if not first and _has_files(Path(folder)):
                first.append(time.perf_counter() - started)
            _look(process.pid, peaks)

    watching = threading.Thread(target=watch)
    watching.start()
    status = process.wait()
    wall = time.perf_counter() - started
    ended.set()
    watching.join()
    _wait_for_the_rest()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers = [peaks[name] for name in WORKERS if name in peaks]
    memory = max(workers or peaks.values(), default=0)
    found = Measured(wall, used.ru_utime + used.ru_stime, memory, first[0] if first else wall)
    print(json.dumps(asdict(found)))
    return status


def _has_files(folder: Path) -> bool:
    """Return whether a folder has a file other than temporary files and claims of a ledger."""
    return any(not name.startswith((".", "_")) for name in (os.listdir(folder) if folder.is_dir() else ()))


def _look(pid: int, peaks: dict[str, int]) -> None:
    for found in tree(pid):
        try:
            name = Path(f"/proc/{found}/comm").read_text(encoding="utf-8").strip()
            status = Path(f"/proc/{found}/status").read_text(encoding="utf-8")
        except OSError:  # it has ended
            continue
        if "VmHWM:" in status:
            peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
            peaks[name] = max(peaks.get(name, 0), peak)


def _wait_for_the_rest() -> None:
    until = time.monotonic() + _LEFT_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            if time.monotonic() > until:
                for child in tree(os.getpid())[1:]:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
