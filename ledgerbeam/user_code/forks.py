"""Functions of users that fork: their children may do what they were made for, and none of a worker's work.

A child that returns from the function has the stack of the worker, or of the launcher, and none of its threads. It
would map the other records, publish and record them a second time, or wait for ever for what only the worker has.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Never

children: Final[list[int]] = []
"""In a process that a function has forked: the process id of its parent. Elsewhere it is empty."""


class _Calls(threading.local):
    """How many calls of users' functions the thread is in."""

    depth = 0


_calls = _Calls()


@contextmanager
def user_code() -> Iterator[None]:
    """Call a user's function in the body; in a process that it has forked, the body's end is that of the process."""
    process = os.getpid()
    _calls.depth += 1
    try:
        yield
    finally:
        _calls.depth -= 1
        if os.getpid() != process:
            end_child()


def end_child() -> Never:
    """End a process that came back from the function that forked it, with a word on standard error."""
    said = (
        f"ledgerbeam: process {os.getpid()}: the function forked it in process {children[0]}, and it came back from "
        "the function; it ends here, and the other goes on. End what you fork with os._exit, or use multiprocessing\n"
    )
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said.encode())
    finally:
        os._exit(1)


def _after_fork() -> None:
    if _calls.depth:
        children.append(os.getppid())


os.register_at_fork(after_in_child=_after_fork)
