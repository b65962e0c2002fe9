"""What user code may not do in the process of the launcher: end it at once, as if all were done."""

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
    """Have `os._exit` raise SystemExit while user code runs in this process, as `sys.exit` does.

    It would end the launcher without a message, and with the status 0 if the function says so. Processes that the
    function forks end as ever, see `user_code`. What ends a process from within a C library cannot be held up.
    """
    global _inside  # noqa: PLW0603 - one for the process, whichever of its threads run user code
    with _lock:
        _inside += 1
        os._exit = _ends_only_children(os.getpid())
    try:
        with user_code():
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                os._exit = _real


def _ends_only_children(process: int) -> Any:
    def end(status: int) -> NoReturn:
        if os.getpid() != process or not _inside:  # a module may have imported it by name
            _real(status)
        raise SystemExit(f"os._exit({status})")

    return end


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
