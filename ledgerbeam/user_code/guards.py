"""Guards around user code: it must not end the launcher, and its forked children must not do a worker's work.

A forked child that returns from the function has the stack of the worker or the launcher, but none of its threads. It
would map the other records, and publish and record them a second time, or wait forever for something that only the
worker has.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Never, NoReturn

_lock = threading.Lock()
_real: Any = os._exit
_inside = 0


@contextmanager
def no_exit() -> Iterator[None]:
    """Let `os._exit` raise SystemExit while user code runs in this process, as `sys.exit` does.

    Otherwise it would end the launcher without a message, possibly with the status 0. Processes forked by the function
    end as usual; see `user_code`. An exit inside a C library cannot be prevented.
    """
    global _inside  # noqa: PLW0603 - one for all threads of the process that run user code
    with _lock:
        _inside += 1
        os._exit = _ends_only_children(os.getpid())
    try:
        with running_user_code():
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                os._exit = _real


def _ends_only_children(process: int) -> Any:
    def end(status: int) -> NoReturn:
        if os.getpid() != process or not _inside:  # a module may hold this function under an imported name
            _real(status)
        raise SystemExit(f"os._exit({status})")

    return end


children: Final[list[int]] = []
"""The process id of the parent, in a process that a function has forked; empty in other processes."""


class _Calls(threading.local):
    """The number of user function calls that the thread is in."""

    depth = 0


_calls = _Calls()


@contextmanager
def running_user_code() -> Iterator[None]:
    """Guard calls of a user's function in the body. A process forked by the function ends where the body ends."""
    process = os.getpid()
    _calls.depth += 1
    try:
        yield
    finally:
        _calls.depth -= 1
        if os.getpid() != process:
            end_child()


def end_child() -> Never:
    """End a forked process that has returned from the function, with a message on standard error."""
    said = (
        f"ledgerbeam: process {os.getpid()}: the function forked it in process {children[0]}, and it returned from "
        "the function; it ends here, and its parent continues. End forked processes with os._exit, or use "
        "multiprocessing\n"
    )
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said.encode())
    finally:
        os._exit(1)


def _after_fork() -> None:
    if _calls.depth:
        children.append(os.getppid())


os.register_at_fork(after_in_child=_after_fork)
