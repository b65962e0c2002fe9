"""Callbacks for the end of a worker process, independent of where it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_lock = threading.Lock()
_callbacks: list[Callable[[], None]] = []


def at_end(callback: Callable[[], None]) -> None:
    """Register a function to be called when the process ends its work. The last one registered is called first."""
    with _lock:
        _callbacks.append(callback)


def end_work() -> None:
    """Call the registered functions, once. A killed process does not call them."""
    while True:
        with _lock:
            if not _callbacks:
                return
            callback = _callbacks.pop()
        callback()


def _after_fork() -> None:
    """Drop the parent's callbacks: a forked process must not run them."""
    global _lock  # noqa: PLW0603 - the inherited lock may be held by a thread that does not exist here
    _lock = threading.Lock()
    _callbacks.clear()


os.register_at_fork(after_in_child=_after_fork)
