"""The loggers of the library: what becomes of what they log is for programs to decide.

It is a module of its own, since the package must import nothing that a file in the working folder could stand for: see
`__main__`.
"""

from __future__ import annotations

import logging

_handler = logging.NullHandler()


def library_logger(name: str = "ledgerbeam") -> logging.Logger:
    """Return a logger below ``ledgerbeam``, which has no handler but one that does nothing."""
    logging.getLogger("ledgerbeam").addHandler(_handler)  # once, however often
    return logging.getLogger(name)
