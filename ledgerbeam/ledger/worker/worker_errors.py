"""The errors that end workers, left whole in the run's folder for the launcher.

Between processes Beam keeps only an exception's text, folded into a traceback.
"""

from __future__ import annotations

import os
from typing import Any

from ledgerbeam import errors
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.worker.left_files import leave, left

ERROR_SUFFIX = ".error"


def leave_error(run_dir: str, error: LedgerbeamError) -> None:
    """Write the error that ends this process to the run's folder."""
    # A full disk does not hide the error that it caused: the launcher then has Beam's text of it.
    path = os.path.join(run_dir, f"{os.getpid()}{ERROR_SUFFIX}")
    leave(path, {"type": type(error).__name__, "message": without_secrets(str(error.args[0]))})


def left_errors(run_dir: str) -> list[LedgerbeamError]:
    """Return the errors that workers of the run have left, as they were raised."""
    return [error for error in map(_error_of, left(run_dir, ERROR_SUFFIX)) if error is not None]


def _error_of(row: Any) -> LedgerbeamError | None:
    """Return the error that `leave_error` wrote; None if another program wrote it."""
    try:
        kind, message = row["type"], row["message"]
    except (TypeError, KeyError):
        return None
    if not isinstance(kind, str) or not isinstance(message, str):
        return None
    named = getattr(errors, kind, None)
    if isinstance(named, type) and issubclass(named, LedgerbeamError):
        return named(message)
    return LedgerbeamError(message)
