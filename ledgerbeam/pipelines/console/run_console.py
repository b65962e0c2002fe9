"""Consoles, which receive the output and progress of a run: their interface, and the console of Python calls."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from ledgerbeam._base.process import library_logger
from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.pipelines.console.reporter import LINE_SECONDS, RunBar, counting, plain_console
from ledgerbeam.pipelines.console.run_progress import RunProgress

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


class RunConsole(Protocol):
    """A receiver of the output and progress of a run: the command line or a Python call."""

    command: Sequence[str] | None  # words of the command line of the run; None for a Python call

    def say(self, text: str) -> None:
        """Receive a line of the result."""

    def warn(self, text: str) -> None:
        """Receive a warning about the run."""

    def progress(self) -> AbstractContextManager[None]:
        """Return a context in which progress is shown."""

    def update(self, now: RunProgress) -> None:
        """Receive the progress of the run."""

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a context that shows a running count, whose total is unknown; see `reporter.counting`."""

    def ended(self, result: Result) -> None:
        """Receive the result of the run. Called before warnings about the result, and before its error is raised."""


class PartConsole:
    """A console for one stage of a call: it forwards to the call's console, with the stage's name in the progress."""

    def __init__(self, console: RunConsole, name: str) -> None:
        self._console = console
        self._name = name
        self.command = console.command

    def say(self, text: str) -> None:
        self._console.say(text)

    def warn(self, text: str) -> None:
        self._console.warn(text)

    def progress(self) -> AbstractContextManager[None]:
        return self._console.progress()

    def update(self, now: RunProgress) -> None:
        self._console.update(replace(now, part=": ".join(filter(None, [self._name, now.part]))))

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return self._console.counting(noun)

    def ended(self, result: Result) -> None:
        self._console.ended(result)


_log = library_logger()


class PythonConsole:
    """The `RunConsole` of calls in Python: lines go to the logger ``ledgerbeam``, nothing to standard output.

    `progress` turns progress on or off. None shows it in a notebook, and on standard error if that is a terminal.
    """

    command: Sequence[str] | None = None

    def __init__(self, progress: bool | None) -> None:
        self._progress = progress
        self._bar: RunBar | _NotebookBar | None = None
        self._lines: Any = None
        self._last_line = time.monotonic()

    def say(self, text: str) -> None:
        _log.info("%s", printable(without_secrets(text)))

    def warn(self, text: str) -> None:
        """Log a warning about the run. If the log has no handler, also show the warning with the progress."""
        line = printable(without_secrets(text))
        _log.warning("%s", line)
        if self._lines is not None and not _is_logged():
            self._lines(line)

    @contextmanager
    def progress(self) -> Iterator[None]:
        with self._shown() as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def _shown(self) -> AbstractContextManager[Any]:
        if self._progress is False:
            return nullcontext()
        notebook = _notebook()
        if notebook is not None:
            bar = _NotebookBar(notebook)
            self._lines = bar.line
            return bar
        console = plain_console(stderr=True, soft_wrap=True, force_jupyter=False)
        if not console.is_terminal and not self._progress:
            return nullcontext()
        self._lines = console.print
        return RunBar(console) if console.is_terminal else nullcontext()

    def update(self, now: RunProgress) -> None:
        if self._bar is not None:
            self._bar.update(now)
        elif self._progress and self._lines is not None and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self._lines(f"{now.title}: {now.text()}")

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Show a running count if progress is on, or by default on a terminal outside of notebooks."""
        is_shown = self._progress is not False and _notebook() is None and sys.stderr.isatty()
        return counting(noun) if is_shown or self._progress else nullcontext(lambda *_: None)

    def ended(self, result: Result) -> None:
        _log.info("%r", result)


def _is_logged() -> bool:
    """Return whether the log has a handler besides the library's own null handler."""
    logger: logging.Logger | None = _log
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _notebook() -> Any:
    """Return the module `IPython.display` if this process is the kernel of a notebook; None otherwise."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    return sys.modules["IPython.display"]


class _NotebookBar:
    """Progress of a run in the output of a notebook cell: text that is updated, with lines above it."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._lines: list[str] = []
        self._now = "listing"

    def __enter__(self) -> Self:
        self._handle = self._display.display(self._shown(), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._now = ""
        self._handle.update(self._shown())

    def line(self, text: str) -> None:
        self._lines.append(text)
        if self._handle is not None:
            self._handle.update(self._shown())

    def update(self, now: RunProgress) -> None:
        self._now = f"{now.title}: {now.text()}".rstrip(": ")
        self._handle.update(self._shown())

    def _shown(self) -> Any:
        return self._display.Pretty("\n".join(filter(None, [*self._lines, self._now])))
