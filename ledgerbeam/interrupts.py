"""Ctrl-C and SIGTERM: what they do to a command, from its first moment to its last.

At first, at last and while a module is imported they end it with one line: nothing is begun then, or all is done, and
what a run has recorded outlives any end. Else they raise KeyboardInterrupt, with which a command saves its state.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports others, and nothing would catch it meanwhile
import os

TYPE_CHECKING = False  # `typing` takes a while to import, too

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["INTERRUPTED", "end_when_interrupted", "raise_when_interrupted"]

_exit = os._exit  # the one of the system, also while user code may not call it: see `ledger/model/no_exit.py`

INTERRUPTED = 130
"""Exit status of a command that was interrupted."""


def end_when_interrupted() -> None:
    """Have the process end at once with one line and the status `INTERRUPTED`. Call it in the main thread.

    An ignored SIGINT stays so: it belongs to a job in the background, and Ctrl-C to the one in front. SIGTERM does the
    same as Ctrl-C, however the parent had set it.
    """
    _take(_end)


def raise_when_interrupted() -> None:
    """Have KeyboardInterrupt raised in the main thread, by SIGTERM too, unless it imports a module."""
    _take(_raise)


def _take(handler: Callable[[int, FrameType | None], None]) -> None:
    if _signal.getsignal(_signal.SIGINT) in (_signal.default_int_handler, _end, _raise):
        _signal.signal(_signal.SIGINT, handler)
    _signal.signal(_signal.SIGTERM, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    # A compiled module that is interrupted as it is made may crash, and callbacks of imports lose the exception.
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _end(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def _end(_number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, b"ledgerbeam: interrupted\n")
    finally:  # standard error may be closed
        _exit(INTERRUPTED)
