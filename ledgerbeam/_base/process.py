"""TODO."""

from __future__ import annotations

import logging
import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
_handler = logging.NullHandler()


def library_logger(name: str = "ledgerbeam") -> logging.Logger:
    """Return a logger below ``ledgerbeam``, which has no handler but one that does nothing."""
    logging.getLogger("ledgerbeam").addHandler(_handler)  # once, however often
    return logging.getLogger(name)


def hold_standard_descriptors() -> None:
    """Open the null device in place of every standard descriptor that is closed, for child processes too.

    Call it where a process begins, and before anything opens files that it keeps. What is printed to a stream that is
    closed is dropped.
    """
    for descriptor in range(3):
        try:
            os.get_inheritable(descriptor)  # the one look that does not hand the interpreter over to another thread
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free
            if found != descriptor:
                os.dup2(found, descriptor)
                os.close(found)
            os.set_inheritable(descriptor, True)
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="surrogateescape"))  # noqa: SIM115
