"""Logging of the command line's processes: what the library and user code warn of is shown, Beam's chatter is not.

Nothing is lost by it: what ends a pipeline reaches the launcher as an exception, which is reported once.
"""

from __future__ import annotations

import logging
import sys

from ledgerbeam._base.beam_import import is_not_of_beam
from ledgerbeam._base.redaction import without_secrets


class _RedactedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def show_log(level: str = "warning") -> None:
    """Set up the root logger for standard error; call it before Beam is imported, which already logs then.

    A program that has imported Beam itself has its own logging, and it is left as it is.

    Args:
        level: The lowest that is shown. Workers that are forked take it over.
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


def worker_options(level: str) -> list[str]:
    """Return the Beam options with which the workers of a runner log from a level up; by themselves from ``info``."""
    return ["--default_sdk_harness_log_level=DEBUG"] if level == "debug" else []
