"""Named points at which the reliability suite kills a process.

``LEDGERBEAM_FAULT=point:n`` makes this process kill itself with SIGKILL when it reaches `point` for the n-th time
(n >= 1). Without it, reaching a point does nothing.
"""

from __future__ import annotations

import os
import signal
import threading

from ledgerbeam.errors import UsageError

VARIABLE = "LEDGERBEAM_FAULT"  # name of the environment variable, read once when this module is imported


def _parse(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    point, _, count = text.rpartition(":")
    if not point or not count.isdecimal() or int(count) < 1:
        raise UsageError(f"{VARIABLE}={text!r} is not POINT:N with N >= 1, for instance flush.begin:3")
    return point, int(count)


_fault = _parse(os.environ.get(VARIABLE, ""))
_lock = threading.Lock()
_reached = 0


def arm(fault: str) -> None:
    """Set the fault of this process after a fork, as the environment variable would have done.

    Raises UsageError if the text is neither empty nor ``point:n``.
    """
    global _fault, _reached
    _fault, _reached = _parse(fault), 0


def fault_point(point: str) -> None:
    """Mark that the process has reached `point`. If the fault is due, the process is killed here."""
    if _fault is not None and point == _fault[0]:
        _count_and_kill(_fault[1])


def _count_and_kill(limit: int) -> None:
    global _reached  # noqa: PLW0603 - counted over the life of the process
    with _lock:
        _reached += 1
        if _reached >= limit:
            os.kill(os.getpid(), signal.SIGKILL)
