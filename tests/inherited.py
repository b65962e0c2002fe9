"""What this process hands down to the programs and processes that tests start, whatever it has inherited itself."""

from __future__ import annotations

import signal
from types import FrameType

_OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""Python ignores them, and `subprocess` gives them back to programs."""


def hand_down_working_signals() -> None:
    """Make no signal ignored or blocked in what this process starts.

    A shell has its background jobs ignore SIGINT, as `nohup` does SIGHUP, and every program that they start inherits
    it: a test that interrupts one would wait for ever. This process goes on as if it ignored them: by a handler, which
    no program inherits.
    """
    for number in signal.valid_signals() - _OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else _pass)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _pass(number: int, frame: FrameType | None) -> None:
    """Do nothing."""
