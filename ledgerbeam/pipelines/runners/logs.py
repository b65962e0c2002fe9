"""Logging of the processes that run Beam: what user code warns of is shown, Beam's own chatter is not.

Nothing is lost by it: what ends a pipeline reaches the launcher as an exception, which is reported once.
"""

from __future__ import annotations

import logging

from ledgerbeam.redaction import without_secrets

__all__ = ["quiet_beam"]


class _RedactedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def quiet_beam() -> None:
    """Sets up the root logger for standard error; call it before Beam is imported, which already logs then."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_RedactedFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: "apache_beam" not in record.pathname)
    logging.getLogger().addHandler(handler)
