"""Reports of worker processes to the launcher, as files in the run's folder; and callbacks for the end of a process.

The reports hold set-up times, errors and working time. When a wave is killed, Beam's counters are lost, but not these
files. Between processes, Beam keeps only the text of an exception, inside a traceback; an error in a report is raised
again as it was.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ledgerbeam import errors
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.rows import SetUps
from ledgerbeam.ledger.model.values import decode, encode, rows, seconds


def report_path(run_dir: str, suffix: str) -> str:
    """Return the path of a new file of this process in the run's folder."""
    return os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{suffix}")


def write_report(path: str, value: Any) -> None:
    """Write a whole JSON value, replacing the earlier one of this process.

    A full disk or a missing folder is ignored here: the code that needs them reports it.
    """
    beside = f"{path}.new"
    with suppress(OSError):
        with open(beside, "wb") as file:
            file.write(encode(value))
        os.replace(beside, path)


def read_reports(run_dir: str, suffix: str) -> Iterator[Any]:
    """Yield the values that the worker processes of a run have written, including dead workers.

    Files without JSON belong to other programs, and are skipped.
    """
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(suffix):
            try:
                with open(os.path.join(run_dir, name), "rb") as file:
                    value = decode(file.read())
            except (OSError, ValueError):
                continue
            yield value


SET_UPS_SUFFIX = ".setup"


def report_set_ups(run_dir: str, found: Sequence[float]) -> None:
    """Write the durations of this process's set-ups of user code, in seconds, to the run's folder."""
    write_report(report_path(run_dir, SET_UPS_SUFFIX), list(found))


def reported_set_ups(run_dir: str) -> SetUps:
    """Return the set-ups of user code of a run, from the reports of its workers."""
    found: list[float] = []
    for times in read_reports(run_dir, SET_UPS_SUFFIX):
        with suppress(ValueError, TypeError):  # another program's file
            found += [seconds(value) for value in rows(times)]
    return SetUps.of(found)


ERROR_SUFFIX = ".error"


def report_error(run_dir: str, error: LedgerbeamError) -> None:
    """Write the error that ends this process to the run's folder."""
    # If the disk is full, the launcher still has Beam's text of the error.
    path = os.path.join(run_dir, f"{os.getpid()}{ERROR_SUFFIX}")
    write_report(path, {"type": type(error).__name__, "message": without_secrets(str(error.args[0]))})


def reported_errors(run_dir: str) -> list[LedgerbeamError]:
    """Return the errors in the reports of a run's workers, as they were raised."""
    return [error for error in map(_error_of, read_reports(run_dir, ERROR_SUFFIX)) if error is not None]


def _error_of(row: Any) -> LedgerbeamError | None:
    """Return the error that `report_error` wrote; None if another program wrote it."""
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


_lock = threading.Lock()
_callbacks: list[Callable[[], None]] = []


def at_end(callback: Callable[[], None]) -> None:
    """Register a function to be called when the process ends its work. The last one registered is called first."""
    with _lock:
        _callbacks.append(callback)


def end_work() -> None:
    """Call the registered functions, once. A killed process does not call them."""
    while True:
        with _lock:
            if not _callbacks:
                return
            callback = _callbacks.pop()
        callback()


def _forget_callbacks_after_fork() -> None:
    """Drop the parent's callbacks: a forked process must not run them."""
    global _lock  # noqa: PLW0603 - the inherited lock may be held by a thread that does not exist here
    _lock = threading.Lock()
    _callbacks.clear()


os.register_at_fork(after_in_child=_forget_callbacks_after_fork)
