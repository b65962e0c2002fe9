"""Exceptions of user code as text: every exception becomes one message of bounded length.

Nothing that the class of an exception may define is trusted: attributes and texts are taken by the methods of the
built-in types, and classes are asked for by `type`, since `isinstance` asks the object, too.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.task import FailedTask, Task

MOST_CHARACTERS = 2000
"""Of what an exception says of itself; more is cut."""

_NAME_CHARACTERS = 100

_IMPORT = "<frozen importlib."
"""What the names of the files of Python's own import begin with."""


def ignore_interrupt(*_: Any) -> None:
    """Handle SIGINT in a process that somebody else ends; unlike SIG_IGN it does not pass to processes started."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether somebody pressed Ctrl-C; else a function has raised it.

    Only a main thread gets that, and none in a process that ignores it.
    """
    return (
        issubclass(type(error), KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, ignore_interrupt)
    )


def is_break(error: BaseException) -> bool:
    """Return whether an exception would have ended the worker if let through, or that which a `FunctionError` wraps."""
    raised = error.__cause__ if type(error) is FunctionError else error
    return raised is not None and not issubclass(type(raised), Exception)


def error_name(error: BaseException) -> str:
    """Return the name of an exception's class, in one short line."""
    return _plain(type.__dict__["__name__"].__get__(type(error)), _NAME_CHARACTERS).replace("\n", " ")


def describe_error(error: BaseException) -> str:
    """Return ``KeyError: 'text' (at cleaning.py:12)``, whatever methods the exception has.

    Where Python's own import raised it, as for a syntax error, the message has the file, and the place is left out.
    """
    place = last_frame(error)
    what = f"{error_name(error)}: {message_of(error)}"
    return what if place.startswith(_IMPORT) else f"{what} (at {place})"


def message_of(error: BaseException) -> str:
    """Return what an exception says of itself, cut and without what is not Unicode."""
    try:
        return _plain(str(error), MOST_CHARACTERS)
    except BaseException as second:  # noqa: BLE001 - it is user code, too
        return f"(its text cannot be had: {error_name(second)})"


def last_frame(error: BaseException) -> str:
    """Return ``file:line`` of where `error` was raised."""
    frames = traceback.StackSummary.extract(
        traceback.walk_tb(BaseException.__dict__["__traceback__"].__get__(error)), limit=-1, lookup_lines=False
    )
    return _plain(f"{frames[-1].filename}:{frames[-1].lineno}", MOST_CHARACTERS) if frames else "unknown place"


def raised_at(error: BaseException) -> str:
    """Return ``package/file.py:line`` of where `error` was raised: the same wherever the code is installed."""
    frames = list(traceback.walk_tb(BaseException.__dict__["__traceback__"].__get__(error)))
    if not frames:
        return ""
    frame, line = frames[-1]
    module, parts = frame.f_globals.get("__name__"), frame.f_code.co_filename.split(os.sep)
    depth = 1 + (module.count(".") if type(module) is str else 0) + (parts[-1] == "__init__.py")
    return _plain(f"{'/'.join(parts[-depth:])}:{line}", MOST_CHARACTERS)


def failed_by(error: BaseException, task: Task, message: str) -> FailedTask:
    """Return the marker of a task that ended with `error`, under the name of its class."""
    return FailedTask(task, error_name(error), message, broke=is_break(error))


def _plain(text: str, most: int) -> str:
    """Cut a text, and escape what is not Unicode."""
    length = str.__len__(text)
    cut = str.encode(str.__getitem__(text, slice(0, most)), "utf-8", "backslashreplace").decode()
    return cut if length <= most else f"{cut} ... ({length:,} characters)"
