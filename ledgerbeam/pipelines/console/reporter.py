"""Output of commands: a progress bar on a terminal, plain lines elsewhere, one JSON object for programs.

Rich is imported only where it is used: its import takes as long as a command whose job is already done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TextIO

import orjson
from rich.filesize import decimal

from ledgerbeam._base.redaction import plain_value
from ledgerbeam.io.json_values import json_form
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.run_progress import RunProgress, count, duration

if TYPE_CHECKING:
    from rich.console import Console

    from ledgerbeam.pipelines.calls.result import Result


LINE_SECONDS = 10.0  # seconds between two progress lines without a terminal


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


def describe_set_ups(found: Mapping[str, Any]) -> str:
    """Return the number of set-ups of user code in a run, and their total and longest time."""
    times, longest = count(found["times"], "time"), duration(found["longest"])
    return f"{times}, {duration(found['seconds'])} in all, the longest {longest}"


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


class Reporter:
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
        self._bar: RunBar | None = None
        self._last_line = time.monotonic()

    def say(self, text: str) -> None:
        self._print(text, sys.stderr if self.as_json else sys.stdout)

    def warn(self, text: str) -> None:
        self._print(text, sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        if self._bar is not None and stream.isatty():
            self._bar.print(text)
        else:
            print(text, file=stream, flush=True)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show progress until the `with` block ends: first the listing, then the progress passed to `update`."""
        if self._quiet or not sys.stderr.isatty():
            yield
            return
        with RunBar(plain_console(stderr=True, soft_wrap=True)) as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def update(self, now: RunProgress) -> None:
        """Show the progress of the run: on the bar, or without a terminal as a line every `LINE_SECONDS`."""
        if self._bar is not None:
            self._bar.update(now)
        elif not self._quiet and not sys.stderr.isatty() and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self._print(f"{now.title}: {now.text()}", sys.stderr)

    def counting(self, noun: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return counting(noun)

    def ended(self, result: Result) -> None:
        """Do nothing: the command prints the result."""
