"""Protection from user code: from its exceptions, from exits of the process, and from its forks.

An exception becomes a text of bounded length. The methods of its class are not trusted: attributes and texts are read
by methods of the built-in types, and classes by `type`, since `isinstance` also asks the object.

A forked child that returns from the function has the stack of the worker or the launcher, but none of its threads. It
would map the other records, and publish and record them a second time, or wait forever. So the child is ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Never, NoReturn

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.task import FailedTask, Task

_lock = threading.Lock()
_real: Any = os._exit
_inside = 0


@contextmanager
def no_exit() -> Iterator[None]:
    """Let `os._exit` raise SystemExit, as `sys.exit` does, while user code runs in this process.

    `os._exit` would end the launcher without a message, possibly with status 0. In processes forked by the function,
    `os._exit` works as usual; see `running_user_code`. An exit inside a C library cannot be prevented.
    """
    global _inside  # noqa: PLW0603 - one for all threads of the process that run user code
    with _lock:
        _inside += 1
        os._exit = _ends_only_children(os.getpid())
    try:
        with running_user_code():
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                os._exit = _real


def _ends_only_children(process: int) -> Any:
    def end(status: int) -> NoReturn:
        if os.getpid() != process or not _inside:  # a module may hold this function under an imported name
            _real(status)
        raise SystemExit(f"os._exit({status})")

    return end


children: Final[list[int]] = []  # the process id of the parent, if a function has forked this process


class _Calls(threading.local):
    """The number of calls of user functions in progress in this thread."""

    depth = 0


_calls = _Calls()


@contextmanager
def running_user_code() -> Iterator[None]:
    """Guard calls of a user's function in the body. A process forked by the function ends where the body ends."""
    process = os.getpid()
    _calls.depth += 1
    try:
        yield
    finally:
        _calls.depth -= 1
        if os.getpid() != process:
            end_child()


def end_child() -> Never:
    """End a forked process that has returned from the function, with a message on standard error."""
    said = (
        f"ledgerbeam: process {os.getpid()}, which the function forked from process {children[0]}, returned from the "
        f"function and ends now; process {children[0]} continues. End forked processes with os._exit, or use "
        "multiprocessing\n"
    )
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said.encode())
    finally:
        os._exit(1)


def _after_fork() -> None:
    if _calls.depth:
        children.append(os.getppid())


os.register_at_fork(after_in_child=_after_fork)


_MOST_CHARACTERS = 2000  # largest length of an exception's text; the rest is cut

_NAME_CHARACTERS = 100

_IMPORT = "<frozen importlib."  # prefix of the file names of Python's import system


@dataclass(eq=False)
class ReportedError(Exception):
    """An error of a call in another process, described there."""

    name: str  # name of the exception's class; if the call ended the process, the reject reason
    message: str  # text of the exception
    described: str = ""  # result of `describe_error`
    at: str = ""  # result of `raised_at`
    broke: bool = False  # result of `is_break`
    has_ended: bool = False  # whether the call ended the process
    function: int = 0  # if so, the number of the function in the job

    def __str__(self) -> str:
        return self.message


def ignore_interrupt(*_: Any) -> None:
    """Ignore SIGINT in a process that another process ends. Child processes inherit SIG_IGN, but not a handler."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception comes from Ctrl-C, and was not raised by a user's function.

    Only a main thread gets Ctrl-C, unless its process ignores SIGINT.
    """
    return (
        issubclass(type(error), KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, ignore_interrupt)
    )


def has_ended(error: BaseException) -> bool:
    """Return whether an error stands for the end of the process in which the call was made."""
    return type(error) is ReportedError and error.has_ended


def is_break(error: BaseException) -> bool:
    """Return whether an exception, or the cause of a `FunctionError`, is one that ends a worker, such as SystemExit."""
    if type(error) is ReportedError:
        return error.broke
    raised = error.__cause__ if type(error) is FunctionError else error
    return raised is not None and not issubclass(type(raised), Exception)


def error_name(error: BaseException) -> str:
    """Return the name of an exception's class, in one short line."""
    if type(error) is ReportedError:
        return error.name
    return _plain(type.__dict__["__name__"].__get__(type(error)), _NAME_CHARACTERS).replace("\n", " ")


def describe_error(error: BaseException) -> str:
    """Return class, text and place of an exception, as ``KeyError: 'text' (at cleaning.py:12)``.

    The place is omitted if Python's import system raised it: the text of a syntax error names the file.
    """
    if type(error) is ReportedError:
        return error.described or error.message
    frame, line = _last_frame(error)
    file = "" if frame is None else frame.f_code.co_filename
    place = "unknown place" if frame is None else _plain(f"{file}:{line}", _MOST_CHARACTERS)
    what = f"{error_name(error)}: {message_of(error)}"
    return what if file.startswith(_IMPORT) else f"{what} (at {place})"


def message_of(error: BaseException) -> str:
    """Return the text of an exception, cut, with characters that are not Unicode escaped."""
    try:
        return _plain(str(error), _MOST_CHARACTERS)
    except BaseException as second:  # noqa: BLE001 - the exception's text is computed by user code
        return f"(its text cannot be read: {error_name(second)})"


def _last_frame(error: BaseException) -> tuple[FrameType | None, int]:
    """Return the frame that raised `error`, and its line there."""
    frames = list(traceback.walk_tb(BaseException.__dict__["__traceback__"].__get__(error)))
    return frames[-1] if frames else (None, 0)


def raised_at(error: BaseException) -> str:
    """Return ``package/file.py:line`` of the place where `error` was raised, independent of the installation folder."""
    if type(error) is ReportedError:
        return error.at
    frame, line = _last_frame(error)
    if frame is None:
        return ""
    module, parts = frame.f_globals.get("__name__"), frame.f_code.co_filename.split(os.sep)
    depth = 1 + (module.count(".") if type(module) is str else 0) + (parts[-1] == "__init__.py")
    return _plain(f"{'/'.join(parts[-depth:])}:{line}", _MOST_CHARACTERS)


def failed_by(error: BaseException, task: Task, message: str) -> FailedTask:
    """Return the `FailedTask` of a task that ended with `error`. Its reason is the name of the exception's class."""
    return FailedTask(task, error_name(error), message, broke=is_break(error))


def _plain(text: str, most: int) -> str:
    """Cut a text, and escape characters that are not Unicode."""
    length = str.__len__(text)
    cut = str.encode(str.__getitem__(text, slice(0, most)), "utf-8", "backslashreplace").decode()
    return cut if length <= most else f"{cut} ... ({length:,} characters)"
