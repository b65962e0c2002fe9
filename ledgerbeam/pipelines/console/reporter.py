"""Consoles, which receive the output and progress of a run, and the output of commands.

Progress is a bar on a terminal or in a notebook, and lines elsewhere. Programs get one JSON object. Rich is imported
only where it is used: its import takes as long as a command whose job is already done.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

import orjson
from rich.filesize import decimal

from ledgerbeam._base.process import library_logger
from ledgerbeam._base.redaction import plain_value, printable, without_secrets
from ledgerbeam.io.json_values import json_form
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.run_progress import RunProgress, count

if TYPE_CHECKING:
    from rich.console import Console

    from ledgerbeam.pipelines.calls.result import Result


LINE_SECONDS = 10.0  # seconds between two progress lines without a terminal
_log = library_logger()


def plain_console(**options: Any) -> Console:
    """Return a console that prints text unchanged: without markup such as `[a]`, emoji such as `:b:`, or colours."""
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False, markup=False, emoji=False, **options)


def count_nulled(store: LedgerStore) -> int | None:
    """Return the number of NaN and infinities that a job has written as null; None if the job refuses NaN."""
    job = store.job()
    if job is None or job.parameters.get("nan") != "null":
        return None
    return sum(row.output.nulled for row in store.outputs(ordered=False))


def timestamp(seconds: float) -> str:
    """Return a time in seconds since 1970 as ``2026-01-31T12:00:00+00:00``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def json_bytes(value: Any, *, indent: bool = False) -> bytes:
    """Encode JSON. orjson refuses names that are not UTF-8; they are written with escaped surrogates."""
    try:
        return orjson.dumps(value, json_form, orjson.OPT_INDENT_2 if indent else None)
    except TypeError:
        return json.dumps(value, indent=2 if indent else None, default=json_form).encode("ascii")


def print_json(value: Any) -> None:
    """Print one JSON object without secrets. With ``--json``, standard output contains nothing else."""
    sys.stdout.buffer.write(json_bytes(plain_value(value), indent=True) + b"\n")
    sys.stdout.flush()


def print_json_stream(head: dict[str, Any], name: str, rows: Iterable[Any]) -> None:
    """Print one JSON object whose last member is a list of any length, one row per line. Memory holds one row.

    Rows are printed unchanged, with any secrets, because they may be user data.
    """
    out = sys.stdout.buffer
    out.write(json_bytes(plain_value(head), indent=True).removesuffix(b"\n}") + f',\n  "{name}": ['.encode())
    separator = b"\n    "
    for row in rows:
        out.write(separator + json_bytes(row))
        separator = b",\n    "
    out.write(b"\n  ]\n}\n")
    out.flush()


def print_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values below one another, the values in a column."""
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print rows under column heads. Without a terminal the table is wide, so that no cell is cut."""
    from rich.table import Table  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    console = plain_console(width=None if terminal else 10_000)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    if terminal:
        console.print(table, soft_wrap=True)
        return
    with console.capture() as capture:
        console.print(table, soft_wrap=True)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


@contextmanager
def counting(noun: str) -> Iterator[Callable[[int, int], None]]:
    """Show a running count, whose total is unknown, on standard error.

    Yields:
        A function to call with the number of things done since the last call, and their bytes.
    """
    from rich.progress import Progress, TextColumn  # noqa: PLC0415

    console = plain_console(stderr=True, soft_wrap=True)
    started = last = time.monotonic()
    done = size = 0

    def text() -> str:
        rate = decimal(int(size / max(time.monotonic() - started, 0.001)))
        return f"{count(done, noun)}, {decimal(size)}, {rate}/s" if size else count(done, noun)

    with Progress(
        TextColumn("{task.description}", markup=False), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)

        def advance(number: int, more: int = 0) -> None:
            nonlocal done, size, last
            done, size = done + number, size + more
            now = time.monotonic()
            if console.is_terminal:
                bar.update(task, description=text())
            elif now - last > LINE_SECONDS:
                last = now
                console.print(text())

        yield advance


class RunBar:
    """The progress bar of a run on a terminal, a context manager."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415
        from rich.table import Column  # noqa: PLC0415

        self._console = console
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=min(20, console.width // 8)),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        self._task = self._bar.add_task("listing", total=None, text="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text)

    def update(self, now: RunProgress) -> None:
        """Show the progress of the run."""
        share = now.share
        done = {"completed": 0, "total": None} if share is None else {"completed": 100 * share, "total": 100}
        self._bar.update(self._task, description=now.title, text=now.text(), **done)


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


class _ProgressConsole:
    """Base of consoles that show progress on a bar, or as a line every `LINE_SECONDS`."""

    _bar: RunBar | _NotebookBar | None = None
    _lines: Callable[[str], object] | None = None  # shows a line with the progress; None if no progress is shown
    _last_line = 0.0

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show progress until the `with` block ends: first the listing, then the progress passed to `update`."""
        self._last_line = time.monotonic()
        with self._shown() as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def _shown(self) -> AbstractContextManager[RunBar | _NotebookBar | None]:
        """Set `_lines`, and return a context with the bar; with None if there is no bar."""
        raise NotImplementedError

    def update(self, now: RunProgress) -> None:
        if self._bar is not None:
            self._bar.update(now)
        elif self._lines is not None and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self._lines(f"{now.title}: {now.text()}")


class Reporter(_ProgressConsole):
    """The `RunConsole` of the command line. It writes to the standard streams.

    Args:
        as_json: Whether standard output is reserved for one JSON object. All lines then go to standard error.
        quiet: Whether to show no progress.
        command: Command line of the run.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, command: Sequence[str] | None = None) -> None:
        self.as_json = as_json
        self.command = command
        self._quiet = quiet

    def say(self, text: str) -> None:
        self._print(text, sys.stderr if self.as_json else sys.stdout)

    def warn(self, text: str) -> None:
        self._print(text, sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        if self._bar is not None and stream.isatty():
            self._bar.print(text)
        else:
            print(text, file=stream, flush=True)

    def _shown(self) -> AbstractContextManager[RunBar | None]:
        if not self._quiet and sys.stderr.isatty():
            return RunBar(plain_console(stderr=True, soft_wrap=True))
        self._lines = None if self._quiet else self.warn
        return nullcontext()

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return counting(noun)

    def ended(self, result: Result) -> None:
        """Do nothing: the command prints the result."""


class PythonConsole(_ProgressConsole):
    """The `RunConsole` of calls in Python: lines go to the logger ``ledgerbeam``, nothing to standard output.

    `progress` turns progress on or off. None shows it in a notebook, and on standard error if that is a terminal.
    """

    command: Sequence[str] | None = None

    def __init__(self, progress: bool | None) -> None:
        self._progress = progress

    def say(self, text: str) -> None:
        _log.info("%s", printable(without_secrets(text)))

    def warn(self, text: str) -> None:
        """Log a warning about the run. If the log has no handler, also show the warning with the progress."""
        line = printable(without_secrets(text))
        _log.warning("%s", line)
        if self._lines is not None and not _is_logged():
            self._lines(line)

    def _shown(self) -> AbstractContextManager[RunBar | _NotebookBar | None]:
        if self._progress is False:
            return nullcontext()
        if (notebook := _notebook()) is not None:
            bar = _NotebookBar(notebook)
            self._lines = bar.print
            return bar
        console = plain_console(stderr=True, soft_wrap=True, force_jupyter=False)
        if console.is_terminal or self._progress:
            self._lines = console.print
        return RunBar(console) if console.is_terminal else nullcontext()

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

    def print(self, text: str) -> None:
        self._lines.append(text)
        if self._handle is not None:
            self._handle.update(self._shown())

    def update(self, now: RunProgress) -> None:
        self._now = f"{now.title}: {now.text()}".rstrip(": ")
        self._handle.update(self._shown())

    def _shown(self) -> Any:
        return self._display.Pretty("\n".join(filter(None, [*self._lines, self._now])))
