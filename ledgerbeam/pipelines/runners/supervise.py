"""Supervision of the processes of one wave: progress, death of a worker, interruption.

FnApiRunner waits forever if one of its worker processes is killed. So the launcher watches the processes from outside.
It detects the death, records it for the tasks in progress, ends the group and reports, so that the caller can start the
remaining work again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.worker.inflight import DeadWorker, dead_marks
from ledgerbeam.ledger.worker.reports import reported_errors
from ledgerbeam.pipelines.runners.server_process import Wave
from ledgerbeam.pipelines.runners.wave_files import DIED, DONE, TRACEBACK, read_text

POLL_SECONDS = 0.1

GRACE_SECONDS = 4.0
"""Time that a wave may outlive one of its workers, in seconds. At the end of a pipeline the workers end first."""


@dataclass(frozen=True)
class WaveEnd:
    """The end of a wave.

    Attributes:
        died: Description of the dead process, for users; None if the wave ran to its end.
        marks: Tasks that dead workers had in progress.
    """

    died: str | None = None
    marks: list[Mark] = field(default_factory=list)


def run_wave(wave: Wave, run_dir: str, *, on_tick: Callable[[], None], debug: bool = False) -> WaveEnd:
    """Watch one wave until its end. All its processes are gone when this returns or raises.

    Args:
        wave: The started wave.
        run_dir: Folder of this wave alone, in which its processes leave marks and errors.
        on_tick: Called about every 0.1 s.
        debug: Whether an unexpected failure includes Beam's whole traceback.

    Raises:
        LedgerbeamError: The error with which a worker ended the wave.
        KeyboardInterrupt: The launcher was interrupted.
    """
    try:
        has_ended = _wait(wave, run_dir, on_tick)
        # Read before the group is killed, to exclude processes that die with the group or with the process that
        # they were forked from.
        dead = [] if has_ended and wave.status is None else dead_marks(run_dir)
        if has_ended:
            dead = [worker for worker in dead if worker.pid == wave.pid]
    finally:
        wave.end()
    for error in reported_errors(run_dir):
        raise error
    if not has_ended:
        return WaveEnd(_describe_workers(dead, run_dir), [mark for worker in dead for mark in worker.marks])
    if os.path.exists(os.path.join(run_dir, DONE)):
        return WaveEnd()
    text = read_text(run_dir, TRACEBACK)
    if text:
        failed = LedgerbeamError(_unexpected(text, debug=debug))
        failed.add_note(without_secrets(text))  # Python shows it; the command line only with --debug
        raise failed
    return WaveEnd(_describe_exit(wave), [mark for worker in dead for mark in worker.marks])


def _wait(wave: Wave, run_dir: str, on_tick: Callable[[], None]) -> bool:
    """Wait for the end of the wave or the death of a worker that the wave outlives; return whether the wave ended."""
    gone_since: float | None = None
    while not wave.wait(POLL_SECONDS):
        on_tick()
        if os.path.exists(os.path.join(run_dir, DIED)):
            return False
        if dead_marks(run_dir):
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > GRACE_SECONDS:
                return False
    return True


def _describe_workers(dead: list[DeadWorker], run_dir: str) -> str:
    if not dead:
        return read_text(run_dir, DIED).strip() or "a worker process ended"
    return ", ".join(f"worker process {worker.pid} ended without a word (killed? out of memory?)" for worker in dead)


def _describe_exit(wave: Wave) -> str:
    if wave.status is None:
        return "the process that waves are forked from ended without a word (killed? out of memory?)"
    if wave.status >= 0:
        return f"worker process {wave.pid} exited with status {wave.status}"
    return f"worker process {wave.pid} was killed by {_name_of_signal(-wave.status)}"


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _unexpected(text: str, *, debug: bool) -> str:
    return text if debug else f"the pipeline failed: {text.strip().splitlines()[-1]}"
