"""The errors that end workers, left whole in the run's folder for the launcher.

Between processes Beam keeps only an exception's text, folded into a traceback.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ledgerbeam import errors
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.json_rows import decode, encode
from ledgerbeam.redaction import without_secrets

__all__ = ["leave_error", "left_errors"]

ERROR_SUFFIX = ".error"


def leave_error(run_dir: str, error: LedgerbeamError) -> None:
    """Write the error that ends this process to the run's folder."""
    path = os.path.join(run_dir, f"{os.getpid()}{ERROR_SUFFIX}")
    # A full disk must not hide the error that it caused: the launcher then has Beam's text of it.
    with suppress(OSError), open(path, "wb") as file:
        file.write(encode({"type": type(error).__name__, "message": without_secrets(str(error.args[0]))}))


def left_errors(run_dir: str) -> list[LedgerbeamError]:
    """Return the errors that workers of the run have left, as they were raised."""
    found: list[LedgerbeamError] = []
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(ERROR_SUFFIX):
            # A folder, or a link to nothing: none of ours.
            with suppress(OSError), open(os.path.join(run_dir, name), "rb") as file:
                error = _error_of(file.read())
                if error is not None:
                    found.append(error)
    return found


def _error_of(text: bytes) -> LedgerbeamError | None:
    """Read what `leave_error` wrote; None if a kill cut it short, or another program wrote it."""
    try:
        row = decode(text)
        kind, message = row["type"], row["message"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(kind, str) or not isinstance(message, str):
        return None
    named = getattr(errors, kind, None)
    if isinstance(named, type) and issubclass(named, LedgerbeamError):
        return named(message)
    return LedgerbeamError(message)
