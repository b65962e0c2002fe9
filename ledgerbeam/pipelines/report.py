"""What a run tells: a progress bar on a terminal, plain lines elsewhere, one JSON object for machines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ledgerbeam.ledger import Totals

__all__ = ["Reporter", "count", "print_json", "print_table"]

LINE_SECONDS = 10.0
"""How often a line of progress is printed where there is no terminal."""


def count(number: int, noun: str) -> str:
    """Returns ``1 task`` or ``1,234 tasks``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def print_json(value: Any) -> None:
    """Prints one JSON object, the only thing on standard output when ``--json`` is asked for."""
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.flush()


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Prints rows under column heads, wide where the output is no terminal so that nothing is cut."""
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table, soft_wrap=True)


class Reporter:
    """Tells of one run.

    Args:
        as_json: Whether standard output is kept for one JSON object; lines then go to standard error.
        quiet: Whether progress is left out.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self._quiet = quiet
        self._out = Console(stderr=as_json, highlight=False, soft_wrap=True, markup=False)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started = self._last_line = time.monotonic()
        self._at_start: Totals | None = None

    def say(self, text: str) -> None:
        """Prints a line that belongs to the result."""
        self._out.print(text)

    def warn(self, text: str) -> None:
        """Prints a line that belongs to the course of the run."""
        self._err.print(text)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Shows progress while the body runs."""
        if self._quiet or not self._err.is_terminal:
            yield
            return
        columns = (
            TextColumn("sources"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._err, transient=True) as bar:
            self._bar, self._task = bar, bar.add_task("", total=None, rate="")
            yield
        self._bar = None

    def update(self, *, done: int, total: int | None, totals: Totals) -> None:
        """Shows where the run stands.

        Args:
            done: Sources complete.
            total: Sources listed; None while the listing goes on.
            totals: What the recorded leaves of the ledger add up to.
        """
        self._at_start = self._at_start or totals
        now = time.monotonic()
        seconds = max(now - self._started, 0.001)
        tasks, size = totals.tasks - self._at_start.tasks, totals.bytes - self._at_start.bytes
        rate = f"{totals.tasks:,} tasks, {tasks / seconds:,.1f} tasks/s, {decimal(int(size / seconds))}/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, rate=rate)
        elif not self._quiet and not self._err.is_terminal and now - self._last_line > LINE_SECONDS:
            self._last_line = now
            of = "" if total is None else f" of {total:,}"
            left = ""
            if total and tasks and 0 < done < total:
                left = f", about {seconds * (total - done) / done:,.0f} s left"
            self._err.print(f"{done:,}{of} sources, {rate}{left}")
