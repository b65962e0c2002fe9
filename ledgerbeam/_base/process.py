"""State of a process: open standard descriptors, and loggers.

A process may be started with closed standard descriptors (``>&-``). The next file that it opens then gets one of these
descriptors. If it is a file of LMDB, printed text would be written into the ledger.
"""

from __future__ import annotations

import logging
import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
_handler = logging.NullHandler()


def library_logger(name: str = "ledgerbeam") -> logging.Logger:
    """Return a logger below ``ledgerbeam``, whose only handler does nothing: programs configure the logging."""
    logging.getLogger("ledgerbeam").addHandler(_handler)  # adding it again has no effect
    return logging.getLogger(name)


def hold_standard_descriptors() -> None:
    """Open the null device for every closed standard descriptor, for child processes too.

    Call it when a process starts, before any file is opened. Text printed to a closed stream is dropped.
    """
    for descriptor in range(3):
        try:
            os.get_inheritable(descriptor)  # unlike `os.fstat`, it does not release the interpreter lock
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # returns the lowest free descriptor
            if found != descriptor:
                os.dup2(found, descriptor)
                os.close(found)
            os.set_inheritable(descriptor, True)
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="surrogateescape"))  # noqa: SIM115
