"""Who is told of the course of a run: the command line, or what a call in Python shows and logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ledgerbeam.pipelines.console.run_progress import RunProgress

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


class RunConsole(Protocol):
    """Is told of the course of a run.

    Attributes:
        command: The words of the command line that asked for the run; None if Python called it.
    """

    command: Sequence[str] | None

    def say(self, text: str) -> None:
        """Take a line that belongs to the result."""

    def warn(self, text: str) -> None:
        """Take a line that belongs to the course of the run."""

    def progress(self) -> AbstractContextManager[None]:
        """Return a context in which progress is shown."""

    def update(self, now: RunProgress) -> None:
        """Take where the run stands."""

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a context in which something of unknown length is counted; see `console.counting`."""

    def ended(self, result: Result) -> None:
        """Take how the run ended; called before what is wrong with it is warned of or raised."""


class PartConsole:
    """Tells another console of one part of what was called for: progress shows its name.

    Args:
        console: Told of all parts.
        name: Of the part.
    """

    def __init__(self, console: RunConsole, name: str) -> None:
        self._console = console
        self._name = name
        self.command = console.command

    def say(self, text: str) -> None:
        """Take a line that belongs to the result."""
        self._console.say(text)

    def warn(self, text: str) -> None:
        """Take a line that belongs to the course of the run."""
        self._console.warn(text)

    def progress(self) -> AbstractContextManager[None]:
        """Return a context in which progress is shown."""
        return self._console.progress()

    def update(self, now: RunProgress) -> None:
        """Take where the run stands."""
        self._console.update(replace(now, part=": ".join(filter(None, [self._name, now.part]))))

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a context in which something of unknown length is counted."""
        return self._console.counting(noun)

    def ended(self, result: Result) -> None:
        """Take how the run ended."""
        self._console.ended(result)
