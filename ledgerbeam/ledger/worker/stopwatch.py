"""Time of a worker process by part of its work, measured for tasks and blocks of records, never for a record.

    with timed("read"):
        records = read()

Parts may be nested: the time of an inner part counts only for it. A body must not yield: the code that runs in between
is other work. A worker of a local run writes its times to the run's folder, where the launcher adds them up. On other
runners `take_times` returns them, for the runner's counters.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from ledgerbeam.ledger.model.rows import MEASURED, WAIT, WorkTime, read_work_time
from ledgerbeam.ledger.worker.reports import at_end, read_reports, report_path, write_report

T = TypeVar("T")

SUFFIX = ".time"

REPORT_SECONDS = 0.5
"""Shortest interval between two reports of a worker's times, in seconds. Times since the last report are lost if the
worker is killed."""


class _Lap:
    """The current parts of a thread, and their times since the thread was in no part."""

    __slots__ = ("at", "cpu", "cpu_at", "seconds", "within")

    def __init__(self) -> None:
        self.within: list[str] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.at = self.cpu_at = 0.0

    def turn(self) -> None:
        """Count the time up to now for the innermost part."""
        now, cpu_now = time.perf_counter(), time.thread_time()
        if self.within:
            part = self.within[-1]
            self.seconds[part] += now - self.at
            self.cpu[part] += cpu_now - self.cpu_at
        self.at, self.cpu_at = now, cpu_now


class _LapOfThread(threading.local):
    def __init__(self) -> None:
        self.lap = _Lap()


class _WorkerTimes:
    """The times of this process since `begin`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        self.born, self.cpu_born = time.perf_counter(), time.process_time()
        self.seconds = dict.fromkeys(MEASURED, 0.0)
        self.cpu = dict.fromkeys(MEASURED, 0.0)
        self.taken = dict.fromkeys(MEASURED, 0.0)
        self.file = ""
        self.left = 0.0

    def add(self, lap: _Lap) -> None:
        with self.lock:
            for part, taken in lap.seconds.items():
                self.seconds[part] += taken
            for part, taken in lap.cpu.items():
                self.cpu[part] += taken
        lap.seconds.clear()
        lap.cpu.clear()

    def add_cpu(self, part: str, taken: float) -> None:
        with self.lock:
            self.cpu[part] += taken

    def times(self) -> WorkTime:
        lived, used = time.perf_counter() - self.born, time.process_time() - self.cpu_born
        with self.lock:
            seconds, cpu = dict(self.seconds), dict(self.cpu)
        # Never below zero: on other runners several threads may work in parallel.
        seconds[WAIT] = max(0.0, lived - sum(seconds.values()))
        cpu[WAIT] = max(0.0, used - sum(cpu.values()))
        return WorkTime(1, seconds, cpu)


_this = _LapOfThread()
_process = _WorkerTimes()


class timed:  # noqa: N801 - it is used as a function
    """Count the time of the body for a part of a worker's time, one of `runs.MEASURED`."""

    __slots__ = ("_lap", "_part")

    def __init__(self, part: str) -> None:
        self._part = part

    def __enter__(self) -> None:
        lap = self._lap = _this.lap
        lap.turn()
        lap.within.append(self._part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lap = self._lap
        lap.turn()
        lap.within.pop()
        if not lap.within:
            _process.add(lap)


def counted_beside(part: str, work: Callable[..., T], *args: Any) -> T:
    """Make a call in a thread beside the one that maps, and count its processor time for a part.

    Its elapsed time is counted where the mapping thread waits for it. The call itself must not time parts.
    """
    began = time.thread_time()
    try:
        return work(*args)
    finally:
        _process.add_cpu(part, time.thread_time() - began)


class SharedTime:
    """Divides the time of a part in which two kinds of work alternate, too quickly to be measured each.

    The first few calls of one kind are measured one by one. Their share of the time so far is used for all calls,
    which count for `part`; everything else counts for `rest`. Use it as a context, in a body that is timed as
    `part`.
    """

    def __init__(self, part: str, rest: str) -> None:
        self._part = part
        self._rest = rest
        self._called = 0.0
        self._share = 0.0

    def __enter__(self) -> Self:
        self._before = self._spent()
        return self

    def measured(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a wrapper of a function that adds up the duration of the calls."""
        clock = time.perf_counter

        def measured(value: Any) -> Any:
            started = clock()
            try:
                return call(value)
            finally:
                self._called += clock() - started

        return measured

    def measure(self) -> None:
        """Set the share of the calls from the time so far."""
        lasted = self._spent()[0] - self._before[0]
        self._share = max(0.0, 1 - self._called / lasted) if lasted > 0 else 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after, lap = self._spent(), _this.lap
        for times, began, ended in zip((lap.seconds, lap.cpu), self._before, after, strict=True):
            moved = self._share * (ended - began)
            times[self._part] -= moved
            times[self._rest] += moved

    def _spent(self) -> tuple[float, float]:
        lap = _this.lap
        lap.turn()
        return lap.seconds[self._part], lap.cpu[self._part]


def begin_times(run_dir: str | None = None) -> None:
    """Start the measurement of this process as a worker, which writes its times to a run's folder when it ends."""
    _process.begin()
    if run_dir is not None:
        at_end(partial(report_times, run_dir, at_once=True))


def take_times() -> dict[str, float]:
    """Return the time of each part since the last call, in seconds."""
    with _process.lock:
        found = {part: _process.seconds[part] - _process.taken[part] for part in MEASURED}
        _process.taken = dict(_process.seconds)
    return found


def report_times(run_dir: str, *, at_once: bool = False) -> None:
    """Write the times of this process to the run's folder if that is due, or if `at_once`.

    They replace the earlier ones.
    """
    now = time.monotonic()
    if now - _process.left < REPORT_SECONDS and not at_once:
        return
    _process.left = now
    if os.path.dirname(_process.file) != run_dir:
        _process.file = report_path(run_dir, SUFFIX)
    write_report(_process.file, _process.times().as_dict())


def reported_times(run_dir: str) -> WorkTime:
    """Return the times of all worker processes of a run, including dead ones."""
    found: list[WorkTime] = []
    for times in read_reports(run_dir, SUFFIX):
        with suppress(ValueError, TypeError):  # another program's file
            found.append(WorkTime(**read_work_time(times)))
    return WorkTime.summed(found)


def _after_fork() -> None:
    """Reset the measurement in a forked process: its threads and times are its own."""
    global _this, _process  # noqa: PLW0603 - a lock that was copied may be held by a thread that does not exist here
    _this = _LapOfThread()
    _process = _WorkerTimes()


os.register_at_fork(after_in_child=_after_fork)
