"""State of a process: open standard descriptors, loggers, and the import of Beam.

A process may start with closed standard descriptors (``>&-``). Then the next file that it opens gets one of these
descriptors. If the file belongs to LMDB, printed text would be written into the ledger.

Beam is imported without a change to the logging of the program.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from ledgerbeam._base.redaction import without_secrets

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
_handler = logging.NullHandler()
_importing = threading.Lock()


def library_logger(name: str = "ledgerbeam") -> logging.Logger:
    """Return the logger ``ledgerbeam`` or one below it. Its only handler does nothing: programs configure logging."""
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


def import_beam() -> None:
    """Import Beam without its log messages. Wait if another thread is importing it."""
    with _importing:
        if "apache_beam" in sys.modules:
            import_module("apache_beam")  # waits for a thread of the program that imports it
            return
        beam = logging.getLogger("apache_beam")
        before = beam.level
        beam.setLevel(logging.CRITICAL)
        try:
            with logging_kept():
                import_module("apache_beam")
        finally:
            beam.setLevel(before)


@contextmanager
def logging_kept() -> Iterator[None]:
    """Keep the root logger unchanged while the body runs, although Beam logs to it.

    If the root logger has no handler, the first record would add one permanently. So it gets a temporary handler that
    prints warnings, as Python does by default.
    """
    root = logging.getLogger()
    handler = None if root.handlers else logging.StreamHandler()
    root.addFilter(is_not_of_beam)
    if handler is not None:
        handler.setLevel(logging.WARNING)
        handler.addFilter(is_not_of_beam)
        root.addHandler(handler)
    try:
        yield
    finally:
        root.removeFilter(is_not_of_beam)
        if handler is not None:
            root.removeHandler(handler)


def is_not_of_beam(record: logging.LogRecord) -> bool:
    """Return whether a log record does not come from Beam."""
    return "apache_beam" not in record.pathname


def show_log(level: str = "warning") -> None:
    """Set up the root logger for standard error. Call it before Beam is imported, because the import logs.

    If a program has imported Beam itself, its own logging stays unchanged. Messages of Beam are left out: errors that
    end a pipeline reach the launcher as exceptions, which are reported once. Forked workers inherit the level.
    """
    if "apache_beam" in sys.modules:
        return
    lowest = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler()
    handler.setLevel(lowest)
    handler.setFormatter(_RedactedFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(is_not_of_beam)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(lowest, root.getEffectiveLevel()))


class _RedactedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))
