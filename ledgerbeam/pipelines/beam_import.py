"""Importing Beam, which logs already then, in programs whose logging is their own."""

from __future__ import annotations

import logging
import sys

__all__ = ["import_beam", "is_not_of_beam"]


def import_beam() -> None:
    """Import Beam in a program whose logging is its own: what Beam logs then is kept away, and nothing is set up.

    Where nobody handles records, its warnings would make a handler of the root logger.
    """
    if "apache_beam" in sys.modules:
        return
    root, beam = logging.getLogger(), logging.getLogger("apache_beam")
    nobody, before = logging.NullHandler(), beam.level
    root.addHandler(nobody)
    root.addFilter(is_not_of_beam)
    beam.setLevel(logging.CRITICAL)
    try:
        import apache_beam  # noqa: F401, PLC0415
    finally:
        beam.setLevel(before)
        root.removeFilter(is_not_of_beam)
        root.removeHandler(nobody)


def is_not_of_beam(record: logging.LogRecord) -> bool:
    """Return whether a record was logged elsewhere than in Beam."""
    return "apache_beam" not in record.pathname
