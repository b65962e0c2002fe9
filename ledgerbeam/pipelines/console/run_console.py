"""Interface of consoles, which receive the output and progress of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ledgerbeam.pipelines.console.run_progress import RunProgress

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


class RunConsole(Protocol):
    """A receiver of the output and progress of a run: the command line or a Python call.

    Attributes:
        command: Words of the command line of the run; None for a Python call.
    """

    command: Sequence[str] | None

    def say(self, text: str) -> None:
        """Receive a line of the result."""

    def warn(self, text: str) -> None:
        """Receive a warning about the run."""

    def progress(self) -> AbstractContextManager[None]:
        """Return a context in which progress is shown."""

    def update(self, now: RunProgress) -> None:
        """Receive the progress of the run."""

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a context that counts something of unknown length; see `console.counting`."""

    def ended(self, result: Result) -> None:
        """Receive the result of the run. Called before warnings about the result, and before its error is raised."""


class PartConsole:
    """A console for one part of a call. It passes everything on and adds the name of the part to progress.

    Args:
        console: Console of the call.
        name: Name of the part.
    """

    def __init__(self, console: RunConsole, name: str) -> None:
        self._console = console
        self._name = name
        self.command = console.command

    def say(self, text: str) -> None:
        """Receive a line of the result."""
        self._console.say(text)

    def warn(self, text: str) -> None:
        """Receive a warning about the run."""
        self._console.warn(text)

    def progress(self) -> AbstractContextManager[None]:
        """Return a context in which progress is shown."""
        return self._console.progress()

    def update(self, now: RunProgress) -> None:
        """Receive the progress of the run."""
        self._console.update(replace(now, part=": ".join(filter(None, [self._name, now.part]))))

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a context that counts something of unknown length."""
        return self._console.counting(noun)

    def ended(self, result: Result) -> None:
        """Receive the result of the run."""
        self._console.ended(result)
