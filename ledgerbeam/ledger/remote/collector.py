"""Folding makes millions of rows and no cycle: while it does, looking for cycles would take a third of its time."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator


class _Pauses:
    """Those that are at work now, in any thread, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self._was_on = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_on:
                gc.enable()

    def forget_parent(self) -> None:
        """Begin anew in a forked process, in which no other thread lives."""
        if self._count and self._was_on:
            gc.enable()
        self._begin_anew()


_pauses = _Pauses()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of cycles in this process; for as long as a batch of rows takes, not longer."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


os.register_at_fork(after_in_child=_pauses.forget_parent)
