"""Watches the process group of one wave: progress, death of a worker, interruption.

FnApiRunner waits for ever when one of its worker processes is killed. Here the launcher watches from outside: it
notices, lays the death to the tasks that the worker was on, ends the group and reports, so that the caller can start
what is left again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.worker.inflight import DeadWorker, dead_marks
from ledgerbeam.ledger.worker.worker_errors import left_errors
from ledgerbeam.pipelines.runners.wave_files import DIED, DONE, TRACEBACK, read_text

__all__ = ["WaveEnd", "run_wave"]

POLL_SECONDS = 0.1

END_SECONDS = 10.0
"""How long killed processes are waited for; one that holds much memory takes a while to be gone."""

GRACE_SECONDS = 4.0
"""How long a wave may outlive one of its workers: at the end of a pipeline the workers end first."""


@dataclass(frozen=True)
class WaveEnd:
    """How a wave ended.

    Attributes:
        died: What died, for the user; None if the wave ran to its end.
        marks: What the workers that died had in work.
    """

    died: str | None = None
    marks: list[Mark] = field(default_factory=list)


def run_wave(
    command: Sequence[str], run_dir: str, *, env: Mapping[str, str], on_tick: Callable[[], None], debug: bool = False
) -> WaveEnd:
    """Run one wave to its end; its processes are gone when this returns or raises.

    Args:
        command: The wave's command line.
        run_dir: Folder of this wave alone, in which its processes leave their marks and errors.
        env: The environment of the wave's processes.
        on_tick: Called about every 0.1 s.
        debug: Whether an unexpected failure carries Beam's whole traceback.

    Raises:
        LedgerbeamError: The error with which a worker ended the wave.
        KeyboardInterrupt: If the launcher was interrupted.
    """
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=env, start_new_session=True)
    try:
        _wait(process, run_dir, on_tick)
        # Decided before the group is ended: processes that die with it do not count.
        running = process.poll() is None
        dead = dead_marks(run_dir) if running else [w for w in dead_marks(run_dir) if w.pid == process.pid]
    finally:
        _end_group(process)
    for error in left_errors(run_dir):
        raise error
    if running:
        return WaveEnd(_describe_workers(dead, run_dir), [mark for worker in dead for mark in worker.marks])
    if os.path.exists(os.path.join(run_dir, DONE)):
        return WaveEnd()
    text = read_text(run_dir, TRACEBACK)
    if text:
        raise LedgerbeamError(_unexpected(text, debug=debug))
    return WaveEnd(_describe_exit(process), [mark for worker in dead for mark in worker.marks])


def _wait(process: subprocess.Popen[bytes], run_dir: str, on_tick: Callable[[], None]) -> None:
    """Wait until the wave has ended, or one of its workers has and the wave does not follow."""
    gone_since: float | None = None
    while process.poll() is None:
        on_tick()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
        if os.path.exists(os.path.join(run_dir, DIED)):
            return
        if dead_marks(run_dir):
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > GRACE_SECONDS:
                return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the wave's process group, reaps its leader and waits for the others to be gone."""
    deadline = time.monotonic() + END_SECONDS
    with contextlib.suppress(ProcessLookupError):  # none of the group is left
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.01)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _describe_workers(dead: list[DeadWorker], run_dir: str) -> str:
    if not dead:
        return read_text(run_dir, DIED).strip() or "a worker process ended"
    return ", ".join(f"worker process {worker.pid} ended without a word (killed? out of memory?)" for worker in dead)


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    status = process.returncode
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    return f"worker process {process.pid} {how}"


def _unexpected(text: str, *, debug: bool) -> str:
    lines = text.strip().splitlines()
    return text if debug else f"the pipeline failed: {lines[-1]} (--debug shows the whole traceback)"
