"""What a worker process still does when it ends, wherever that is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_lock = threading.Lock()
_callbacks: list[Callable[[], None]] = []


def at_end(callback: Callable[[], None]) -> None:
    """Have something called when the process ends its work: the last that was added first."""
    with _lock:
        _callbacks.append(callback)


def end_work() -> None:
    """Call what was added; a second time it does nothing. A process that is killed does not come here."""
    while True:
        with _lock:
            if not _callbacks:
                return
            callback = _callbacks.pop()
        callback()


def _after_fork() -> None:
    """Forget what the parent has begun: a forked process does not end it."""
    global _lock  # noqa: PLW0603 - the inherited lock may be held by a thread that does not exist here
    _lock = threading.Lock()
    _callbacks.clear()


os.register_at_fork(after_in_child=_after_fork)
