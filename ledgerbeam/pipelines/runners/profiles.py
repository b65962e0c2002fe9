"""Profiles of worker processes by samples, and their file for speedscope: https://www.speedscope.app."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from ledgerbeam._base.version import __version__
from ledgerbeam.io import Options
from ledgerbeam.io.storage.files import refuse_foreign
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.ledger.worker.reports import at_end, report_path, write_report

PROFILE_SUFFIX = ".profile"
_LOOKS = re.compile(rb'\Z|\{(?s:.*)"exporter": ?"ledgerbeam ').match
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

# Functions that run a bundle, and their files: of Beam, and of workers on this machine.
_BUNDLES = (("process_bundle", "sdk_worker.py"), ("run", "transforms/chain/base.py"))
SECONDS = 0.02  # sampling interval, in seconds
# Interpreter switch interval, in seconds. With the interval of Python or of a worker, samples would be taken when
# other threads release the interpreter, so functions that release it (numpy, reading) would be counted far too often.
SWITCH_SECONDS = 0.0001
REPORT_SECONDS = 1.0  # interval of writing the profile; first after a quarter of it, because a worker may end early
MOST_STACKS = 20_000  # maximum number of distinct stacks. For further stacks, the innermost functions are left out.
MOST_FRAMES = 400  # maximum number of functions of a stack, from the outermost; the rest of a recursion is left out
KEPT_FRAMES = 24  # number of functions of a stack after `MOST_STACKS` is reached


def begin_profile(run_dir: str) -> None:
    """Profile all threads of this process until it ends, and write the profile to the run's folder.

    A thread samples the stacks of the other threads 50 times a second. This adds no code to function calls, which would
    make small functions several times slower.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_Profile(run_dir).watch, args=(ended,), name="ledgerbeam-profile", daemon=True)

    def end() -> None:
        ended.set()
        thread.join()

    sys.setswitchinterval(SWITCH_SECONDS)
    thread.start()
    at_end(end)


class _Profile:
    """The samples of this process: stacks of threads that process a bundle, not of Beam's many waiting threads.

    They are written to the run's folder repeatedly, so that little is lost if the worker is killed.
    """

    def __init__(self, run_dir: str) -> None:
        self._path = report_path(run_dir, PROFILE_SUFFIX)
        self._numbers: dict[int, int] = {}  # by the id of a function's code, which the list below keeps alive
        self._functions: list[CodeType] = []
        self._seconds: dict[tuple[int, ...], float] = {}

    def watch(self, ended: threading.Event) -> None:
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
        """Return the functions on a stack, by number, outermost first; empty if the thread processes no bundle."""
        codes = []
        frame = innermost
        while frame is not None:
            codes.append(frame.f_code)
            if any(frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file) for name, file in _BUNDLES):
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


def refuse_no_profile(url: str, options: Options) -> None:
    """Raise UsageError if the URL of a new profile has a file other than an earlier profile."""
    refuse_foreign({url: _LOOKS}, options, kind="an earlier profile")


def speedscope(profiles: Sequence[Mapping[str, Any]], name: str) -> bytes:
    """Return the content of one file for speedscope, with the profiles of all worker processes."""
    frames: dict[tuple[str, str, int], int] = {}
    made = []
    for number, profile in enumerate(profiles, start=1):
        places = [frames.setdefault(tuple(function), len(frames)) for function in profile["functions"]]
        lasted = sum(profile["seconds"])
        title = f"worker {number}, process {profile['pid']}, {lasted:.1f} s"
        samples = [[places[function] for function in stack] for stack in profile["stacks"]]
        times = {"unit": "seconds", "startValue": 0, "endValue": lasted}
        made.append({"type": "sampled", "name": title, **times, "samples": samples, "weights": profile["seconds"]})
    shared = {"frames": [{"name": function, "file": file, "line": line} for function, file, line in frames]}
    head = {"$schema": _SCHEMA, "exporter": f"ledgerbeam {__version__}", "name": name, "activeProfileIndex": 0}
    return encode({**head, "shared": shared, "profiles": made})
