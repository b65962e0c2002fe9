"""Ctrl-C and SIGTERM during commands and calls.

Command: before it starts, after it ends and while it imports a module, an interrupt ends the process with one line. In
these phases no work can be lost. At other times an interrupt raises KeyboardInterrupt, and the command saves its state.

Call in Python: the process continues and must be able to repeat the call. An interrupted import may leave a module half
initialized; compiled modules then fail or abort. A lock that stays locked makes the next call wait. So an interrupt is
delayed until imports and code that holds locks end; see `Interruptible`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports more modules; an interrupt could come meanwhile
import _thread
import os
import time

TYPE_CHECKING = False  # `typing` is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self


_IMPORT_SYSTEM = "<frozen importlib"  # files of frames of the import system
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (os.path.dirname(os.path.abspath(os.__file__)), _HERE))
"""Folders of Python and of this library."""

_ATOMIC = tuple(os.path.join(_HERE, "ledger", part, "") for part in ("lmdb", "worker"))
"""Folders of code that holds locks and descriptors. If it were interrupted, the next call would wait for them."""

_REMIND_SECONDS = 0.02  # interval between attempts to deliver a delayed interrupt, in seconds

_SAME_SECONDS = 5.0  # time after an interrupt in which others are ignored, so that the call can save its state

_exit = os._exit  # the original function; user code may find another one in `os`: see `user_code/guards.py`
INTERRUPTED = 130  # exit status of a command that was interrupted


def end_when_interrupted() -> None:
    """Make Ctrl-C and SIGTERM end the process at once, with one line and status `INTERRUPTED`. Main thread only.

    An ignored SIGINT stays ignored: the process is then a background job, and Ctrl-C is for the foreground job. SIGTERM
    is always handled, also if the parent process ignores it.
    """
    _take(_end)


def raise_when_interrupted() -> None:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt in the main thread. During an import they end the process."""
    _take(_raise)


def _take(handler: Callable[[int, FrameType | None], None]) -> None:
    if _signal.getsignal(_signal.SIGINT) in (_signal.default_int_handler, _end, _raise):
        _signal.signal(_signal.SIGINT, handler)
    _signal.signal(_signal.SIGTERM, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    # A compiled module may crash if its initialization is interrupted, and import callbacks lose the exception.
    if any(True for _ in _imports(frame)):
        _end(number, frame)
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> Iterator[str]:
    """Yield the file of the code that each import in progress runs; empty for a compiled module."""
    inner = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_IMPORT_SYSTEM):
            inner = file
        elif frame.f_back is None or not frame.f_back.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            yield inner
            inner = ""
        frame = frame.f_back


def _end(_number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, b"ledgerbeam: interrupted\n")
    finally:  # standard error may be closed
        _exit(INTERRUPTED)


class Interruptible:
    """Context manager that delays interrupts of its body to a safe point, so that the program can repeat the body.

    An interrupt during an import, or during an operation of the local ledger, is raised when the import or operation
    ends. Imports of user files can be interrupted: they may take any time, and a repeated import starts again. For a
    few seconds after an interrupt, other interrupts have no effect, so that the call can save its state.

    Each interrupt calls the SIGINT handler of the program. The handler stays unchanged in other threads, if SIGINT is
    ignored, and inside another `Interruptible`. `error` returns the error that replaces a KeyboardInterrupt.
    """

    def __init__(self, error: Callable[[], KeyboardInterrupt] | None = None) -> None:
        self._error = error
        self._before: Callable[[int, FrameType | None], object] | None = None
        self._is_entered = False
        self._lock = _thread.allocate_lock()
        self._waits = False
        self._raised_at: float | None = None
        self._main = _thread.get_ident()

    def __enter__(self) -> Self:
        handler = _signal.getsignal(_signal.SIGINT)
        is_ours = handler in (_end, _raise) or isinstance(getattr(handler, "__self__", None), Interruptible)
        import threading  # noqa: PLC0415 - commands import this module first

        is_main = threading.current_thread() is threading.main_thread()
        if callable(handler) and not is_ours and is_main:
            self._before = handler
            _signal.signal(_signal.SIGINT, self._handle)
        self._is_entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._raised_at = time.monotonic()  # from here on `_handle` raises nothing
        if self._before is None:
            return
        found = None
        try:
            if self._is_interrupt(kind):
                found = None if self._error is None else self._error()
        finally:
            if _signal.getsignal(_signal.SIGINT) == self._handle:
                _signal.signal(_signal.SIGINT, self._handle)  # receives a signal that `_remind` has just sent
                _signal.signal(_signal.SIGINT, self._before)
        if found is not None:
            if error is not None:
                error.with_traceback(None)  # its frames would keep files and ledgers open
            raise found from None

    def _is_interrupt(self, kind: type[BaseException] | None) -> bool:
        """Deliver a delayed interrupt. Return whether the body or this interrupt raised exactly KeyboardInterrupt."""
        with self._lock:  # stops the thread of `_remind`
            waits, self._waits = self._waits, False
        if kind is None and waits:
            try:
                self._deliver(None)
            except KeyboardInterrupt:
                if self._error is None:
                    raise
                return True
        return kind is KeyboardInterrupt

    def _deliver(self, frame: FrameType | None) -> None:
        if self._before is not None:
            self._before(_signal.SIGINT, frame)

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if self._raised_at is not None and time.monotonic() - self._raised_at < _SAME_SECONDS:
            return
        if frame is not None and frame.f_code is Interruptible.__exit__.__code__:
            self._waits = True
        elif self._is_entered and not _must_wait(frame):
            self._waits = False
            try:
                self._deliver(frame)
            except BaseException:
                self._raised_at = time.monotonic()
                raise
        elif not self._waits:
            self._waits = True
            _thread.start_new_thread(self._remind, ())  # `threading` takes locks that this thread may hold

    def _remind(self) -> None:
        while True:
            time.sleep(_REMIND_SECONDS)
            with self._lock:
                if not self._waits:
                    return
                _signal.pthread_kill(self._main, _signal.SIGINT)


def _must_wait(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to code that must not be interrupted."""
    if not all(map(_is_of_user, _imports(frame))):
        return True
    while frame is not None:
        if frame.f_code.co_filename.startswith(_ATOMIC):
            return True
        frame = frame.f_back
    return False


def _is_of_user(file: str) -> bool:
    """Return whether a file is user code: not installed, and not part of Python or this library."""
    installed = ("/site-packages/" in file) or ("/dist-packages/" in file)
    return os.path.isabs(file) and not (installed or file.startswith(_LIBRARIES))
