"""The errors that end workers, left whole in the run's folder for the launcher.

Between processes Beam keeps only an exception's text, folded into a traceback.
"""

from __future__ import annotations

import os
from contextlib import suppress

import orjson

from ledgerbeam import errors
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.redaction import without_secrets

__all__ = ["leave_error", "left_errors"]

ERROR_SUFFIX = ".error"


def leave_error(run_dir: str, error: LedgerbeamError) -> None:
    """Writes the error that ends this process to the run's folder."""
    path = os.path.join(run_dir, f"{os.getpid()}{ERROR_SUFFIX}")
    # A full disk must not hide the error that it caused: the launcher then has Beam's text of it.
    with suppress(OSError), open(path, "wb") as file:
        file.write(orjson.dumps({"type": type(error).__name__, "message": without_secrets(str(error.args[0]))}))


def left_errors(run_dir: str) -> list[LedgerbeamError]:
    """Returns the errors that workers of the run have left, as they were raised."""
    found = []
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(ERROR_SUFFIX):
            with open(os.path.join(run_dir, name), "rb") as file:
                text = file.read()
            with suppress(orjson.JSONDecodeError):  # cut short: its writer was killed while it wrote
                error = orjson.loads(text)
                kind: type[LedgerbeamError] = getattr(errors, error["type"], LedgerbeamError)
                found.append(kind(error["message"]))
    return found
