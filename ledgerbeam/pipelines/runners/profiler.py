"""The profiler of a worker process: a thread that samples the stacks of other threads 50 times a second.

It adds no code to function calls, which would make small functions several times slower. It keeps only stacks of
bundles in Beam; the many threads that wait for the runner are ignored. The profile is written to the run's folder
repeatedly, so that little is lost if the worker is killed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import CodeType, FrameType

from ledgerbeam.ledger.worker.reports import at_end, report_path, write_report
from ledgerbeam.pipelines.runners.profiles import SUFFIX

SECONDS = 0.02
"""Sampling interval, in seconds."""

SWITCH_SECONDS = 0.0001
"""Interpreter switch interval, in seconds. With the interval of Python or of a worker, samples would be taken when
other threads release the interpreter, so functions that release it (numpy, reading) would be counted far too often."""

REPORT_SECONDS = 1.0
"""Interval of writing the profile, in seconds; first after a quarter of it, because a worker may end early."""

MOST_STACKS = 20_000
"""Maximum number of distinct stacks. For further stacks, the innermost functions are left out."""

MOST_FRAMES = 400
"""Maximum number of functions of a stack, from the outermost. In deep recursion, the rest is left out."""

KEPT_FRAMES = 24
"""Number of functions of a stack after `MOST_STACKS` is reached."""


def begin_profile(run_dir: str) -> None:
    """Profile all threads of this process until it ends, and leave the profile in the run's folder."""
    ended = threading.Event()
    thread = threading.Thread(target=_Profile(run_dir).watch, args=(ended,), name="ledgerbeam-profile", daemon=True)

    def end() -> None:
        ended.set()
        thread.join()

    sys.setswitchinterval(SWITCH_SECONDS)
    thread.start()
    at_end(end)


class _Profile:
    """The samples of this process.

    Args:
        run_dir: Folder of the run.
    """

    def __init__(self, run_dir: str) -> None:
        self._path = report_path(run_dir, SUFFIX)
        self._numbers: dict[int, int] = {}  # by the id of a function's code, which the list below keeps alive
        self._functions: list[CodeType] = []
        self._seconds: dict[tuple[int, ...], float] = {}

    def watch(self, ended: threading.Event) -> None:
        """Sample and write until the end."""
        looked = time.perf_counter()
        leave = looked + REPORT_SECONDS / 4
        is_last = False
        while not is_last:
            is_last = ended.wait(SECONDS)
            now = time.perf_counter()
            self._look(now - looked)
            looked = now
            if now >= leave or is_last:
                began = time.thread_time()
                self._leave()
                took = time.thread_time() - began
                leave = now + max(REPORT_SECONDS, 100 * took)  # writing many stacks takes at most 1% of the time

    def _look(self, seconds: float) -> None:
        for frame in sys._current_frames().values():  # noqa: SLF001 - documented, in spite of its name
            if stack := self._stack(frame):
                if stack not in self._seconds and len(self._seconds) >= MOST_STACKS:
                    stack = stack[:KEPT_FRAMES]
                self._seconds[stack] = self._seconds.get(stack, 0.0) + seconds

    def _stack(self, innermost: FrameType | None) -> tuple[int, ...]:
        """Return the functions of a bundle, by number, outermost first; empty for other threads."""
        codes = []
        frame = innermost
        while frame is not None:
            codes.append(frame.f_code)
            if _is_bundle(frame.f_code):
                return tuple(map(self._number, codes[: -MOST_FRAMES - 1 : -1]))
            frame = frame.f_back
        return ()

    def _number(self, code: CodeType) -> int:
        number = self._numbers.get(id(code))
        if number is None:
            number = self._numbers[id(code)] = len(self._functions)
            self._functions.append(code)
        return number

    def _leave(self) -> None:
        seen = {
            "pid": os.getpid(),
            "functions": [[code.co_qualname, code.co_filename, code.co_firstlineno] for code in self._functions],
            "stacks": list(self._seconds),
            "seconds": list(self._seconds.values()),
        }
        write_report(self._path, seen)


def _is_bundle(code: CodeType) -> bool:
    """Return whether the code is the function of Beam that runs a bundle."""
    return code.co_name == "process_bundle" and code.co_filename.endswith("sdk_worker.py")
