"""Reports of worker processes to the launcher, as files in the run's folder; and callbacks for the end of a process.

The reports hold set-up times, errors and working time. When a wave is killed, Beam's counters are lost, but not these
files. Between processes, Beam keeps only the text of an exception, inside a traceback; an error in a report is raised
again with its class and message.

Working time is measured by part, the time of one activity; for tasks and blocks of records, never for a record:

    with timed("read"):
        records = read()

Parts may be nested: the time of an inner part counts only for it. A body must not yield: the code that runs in between
is other work. The launcher adds up the times of the workers of a local run. For the counters of other runners,
`take_times` returns them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from ledgerbeam import errors
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.rows import MEASURED, WAIT, SetUps, WorkTime, read_work_time
from ledgerbeam.ledger.model.values import decode, encode, rows, seconds


def report_path(run_dir: str, suffix: str) -> str:
    """Return the path of a new file of this process in the run's folder."""
    return os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{suffix}")


def write_report(path: str, value: Any) -> None:
    """Write a whole JSON value, replacing the earlier one of this process.

    A full disk or a missing folder is ignored here: the code that needs them reports it.
    """
    beside = f"{path}.new"
    with suppress(OSError):
        with open(beside, "wb") as file:
            file.write(encode(value))
        os.replace(beside, path)


def read_reports(run_dir: str, suffix: str) -> Iterator[Any]:
    """Yield the values that the worker processes of a run have written, including dead workers.

    Files without JSON belong to other programs, and are skipped.
    """
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(suffix):
            try:
                with open(os.path.join(run_dir, name), "rb") as file:
                    value = decode(file.read())
            except (OSError, ValueError):
                continue
            yield value


_SET_UPS_SUFFIX = ".setup"


def report_set_ups(run_dir: str, found: Sequence[float]) -> None:
    """Write the durations of this process's set-ups of user code, in seconds, to the run's folder."""
    write_report(report_path(run_dir, _SET_UPS_SUFFIX), list(found))


def reported_set_ups(run_dir: str) -> SetUps:
    """Return the set-ups of user code of a run, from the reports of its workers."""
    found: list[float] = []
    for times in read_reports(run_dir, _SET_UPS_SUFFIX):
        with suppress(ValueError, TypeError):  # another program's file
            found += [seconds(value) for value in rows(times)]
    return SetUps.of(found)


_ERROR_SUFFIX = ".error"


def report_error(run_dir: str, error: LedgerbeamError) -> None:
    """Write the error that ends this process to the run's folder."""
    # If the disk is full, the launcher still has Beam's text of the error.
    path = os.path.join(run_dir, f"{os.getpid()}{_ERROR_SUFFIX}")
    write_report(path, {"type": type(error).__name__, "message": without_secrets(str(error.args[0]))})


def reported_errors(run_dir: str) -> list[LedgerbeamError]:
    """Return the errors in the reports of a run's workers, with their classes and messages."""
    return [error for error in map(_error_of, read_reports(run_dir, _ERROR_SUFFIX)) if error is not None]


def _error_of(row: Any) -> LedgerbeamError | None:
    """Return the error that `report_error` wrote; None if another program wrote it."""
    try:
        kind, message = row["type"], row["message"]
    except (TypeError, KeyError):
        return None
    if not isinstance(kind, str) or not isinstance(message, str):
        return None
    named = getattr(errors, kind, None)
    if isinstance(named, type) and issubclass(named, LedgerbeamError):
        return named(message)
    return LedgerbeamError(message)


_callbacks: list[Callable[[], None]] = []


def at_end(callback: Callable[[], None]) -> None:
    """Register a function to be called when the process ends its work. The last one registered is called first."""
    _callbacks.append(callback)


def end_work() -> None:
    """Call the registered functions, once. A killed process does not call them."""
    while True:
        try:
            callback = _callbacks.pop()  # another thread may call the others
        except IndexError:
            return
        callback()


os.register_at_fork(after_in_child=_callbacks.clear)  # a forked process must not run those of its parent


T = TypeVar("T")

SUFFIX = ".time"

REPORT_SECONDS = 0.5
"""Shortest interval between two reports of a worker's times, in seconds. Times since the last report are lost if the
worker is killed."""


class _Lap:
    """The nested parts that a thread measures now, innermost last, and the times not yet added to `_WorkerTimes`."""

    __slots__ = ("at", "cpu", "cpu_at", "seconds", "within")

    def __init__(self) -> None:
        self.within: list[str] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.at = self.cpu_at = 0.0

    def turn(self) -> None:
        """Add the time since the last call to the innermost part."""
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
    """Context manager that adds the time of its body to a part of the worker's time, one of `rows.MEASURED`."""

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
    """Call `work` in a thread other than the mapping thread, and add the CPU time of the call to `part`.

    Elapsed time is not added: the mapping thread measures its wait for the call. `work` must not use `timed`.
    """
    began = time.thread_time()
    try:
        return work(*args)
    finally:
        add_cpu_time(part, time.thread_time() - began)


def add_cpu_time(part: str, seconds: float) -> None:
    """Add the CPU time of another process that worked for this one to `part`. The elapsed time is measured here."""
    with _process.lock:
        _process.cpu[part] += seconds


class SharedTime:
    """Divides the time of a body between calls and other work that alternate too quickly to measure each call.

    Use it as a context, in a body that is timed as `part`. Make the first few calls through `measured`, then call
    `measure`: it computes the share of the calls in the time so far. At the end, this share of the time of the body
    stays in `part`, and the remaining time moves to `rest`.
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
        """Return a wrapper of `call` that adds up the durations of its calls."""
        clock = time.perf_counter

        def measured(value: Any) -> Any:
            started = clock()
            try:
                return call(value)
            finally:
                self._called += clock() - started

        return measured

    def measure(self) -> None:
        """Set the share of the time of the `with` body that was not spent in the measured calls so far."""
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
    """Write the times of this process to the run's folder, in place of its earlier times.

    Without `at_once`, do nothing within `REPORT_SECONDS` after the last report.
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
