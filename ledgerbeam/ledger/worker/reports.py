"""Files that the worker processes of a run leave in its folder for the launcher.

What Beam's counters know is lost with a wave that is killed; these files are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ledgerbeam import errors
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.runs import SetUps
from ledgerbeam.ledger.model.values import decode, encode, rows, seconds


def place_to_leave(run_dir: str, suffix: str) -> str:
    """Return the path of a new file of this process in the run's folder."""
    return os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{suffix}")


def leave(path: str, value: Any) -> None:
    """Write a JSON value as a whole, in the place of what this process has left there before.

    A disk that is full, or a folder that is gone, is no error: what needs them tells of that.
    """
    beside = f"{path}.new"
    with suppress(OSError):
        with open(beside, "wb") as file:
            file.write(encode(value))
        os.replace(beside, path)


def left(run_dir: str, suffix: str) -> Iterator[Any]:
    """Yield the values that the worker processes of a run have left, those that died among them.

    What is no JSON, or no file, was left by others, and is passed over.
    """
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(suffix):
            try:
                with open(os.path.join(run_dir, name), "rb") as file:
                    value = decode(file.read())
            except (OSError, ValueError):
                continue
            yield value


SUFFIX = ".setup"


def leave_set_ups(run_dir: str, found: Sequence[float]) -> None:
    """Write how long set-ups of this process took to the run's folder."""
    leave(place_to_leave(run_dir, SUFFIX), list(found))


def left_set_ups(run_dir: str) -> SetUps:
    """Return what the worker processes of a run have left."""
    found: list[float] = []
    for times in left(run_dir, SUFFIX):
        with suppress(ValueError, TypeError):  # none of ours
            found += [seconds(value) for value in rows(times)]
    return SetUps.of(found)


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
