"""Ctrl-C during calls in Python: `JobInterrupt`, and the same call can be repeated in the process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ledgerbeam._base.interrupts import Interruptible

_P = ParamSpec("_P")
_R = TypeVar("_R")


def interruptible(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have Ctrl-C raise `JobInterrupt` wherever the function is; its imports are never interrupted."""

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with Interruptible(functools.partial(interrupt_of, function.__name__)):
            return function(*args, **kwargs)

    return called


def interrupt_of(name: str) -> KeyboardInterrupt:
    """Return the error of a call that was interrupted before or after its run.

    Args:
        name: Of the call.
    """
    from ledgerbeam.pipelines.calls.result import JobInterrupt, Result

    result = Result(name, complete=False, interrupted=True)
    return JobInterrupt(f"{name} was interrupted; what is recorded is kept, and the same call continues", result)
