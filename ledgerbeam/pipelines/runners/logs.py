"""Logging of the processes of the command line: warnings of the library and of user code, without messages of Beam.

Errors that end a pipeline reach the launcher as exceptions, which are reported once.
"""

from __future__ import annotations

import logging
import sys

from ledgerbeam._base.process import is_not_of_beam
from ledgerbeam._base.redaction import without_secrets


class _RedactedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def show_log(level: str = "warning") -> None:
    """Set up the root logger for standard error. Call it before Beam is imported, because the import logs.

    If a program has imported Beam itself, its own logging stays unchanged.

    Args:
        level: Lowest level to show. Forked workers inherit it.
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
    """Return the Beam options for workers of a runner that log from this level. By default they log from ``info``."""
    return ["--default_sdk_harness_log_level=DEBUG"] if level == "debug" else []
