"""Beam in programs whose logging is their own: what it logs is kept away, and it sets nothing up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["import_beam", "is_not_of_beam", "logging_kept"]


def import_beam() -> None:
    """Import Beam, which already logs then."""
    if "apache_beam" not in sys.modules:
        beam = logging.getLogger("apache_beam")
        before = beam.level
        beam.setLevel(logging.CRITICAL)
        try:
            with logging_kept():
                import apache_beam  # noqa: F401, PLC0415
        finally:
            beam.setLevel(before)


@contextmanager
def logging_kept() -> Iterator[None]:
    """Keep the root logger as it is while the body runs, though Beam logs to it.

    Where it has no handler, the first record that is logged to it would give it one, for good. So it has one meanwhile,
    which does what Python does without: it prints warnings.
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
    """Return whether a record was logged elsewhere than in Beam."""
    return "apache_beam" not in record.pathname
