"""Results of calls, and their view in notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, Self

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import TasksFailedError
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.console.run_progress import count, duration

SHOWN_FAILURES = 3
MOST_SHOWN = 500  # maximum number of characters of a value


class ResultRows(Protocol):
    """Rows of a ledger or of an output folder, read when they are used. Each row is a dict."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def to_arrow(self) -> Any:
        """Return all rows as a `pyarrow.Table`."""


class ListedRows(list[dict[str, Any]]):
    """Rows that are held in memory."""

    def to_arrow(self) -> Any:
        """Return all rows as a `pyarrow.Table`."""
        import pyarrow as pa

        return pa.Table.from_pylist(self)


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a call.

    Attributes:
        command: Name of the call.
        sources: Sources that became complete in this run; checked sources of ``verify``, joined datasets of ``merge``,
            shards of ``publish``.
        tasks: Tasks that were done in this run.
        records: Counts of the records of all tasks that were recorded during the run, also by other hosts: ``read``,
            ``kept``, ``dropped`` and ``rejected`` by reason, ``written`` by route. Always
            ``read == kept + sum(dropped) + sum(rejected)``.
        seconds: Duration of the run.
        complete: Whether everything is done: of a job, whether each of its sources is complete.
        interrupted: Whether Ctrl-C ended the run. A call that was interrupted raises, and returns no result.
        ledger: URL of the ledger; None for a command that has none.
        output: Place of the outputs: a folder, or the prefix of a dataset.
        outputs: Outputs of the job, of this run and earlier ones: a dict for each, read page by page.
        failures: Failed tasks, or problems that ``verify`` found: a dict for each, read page by page.
        rejects: Rejected records: a dict for each, read page by page.
        summary: The object that ``--json`` of the command line prints.
        warnings: Problems of the outputs other than failed tasks.
    """

    command: str
    sources: int = 0
    tasks: int = 0
    records: RecordCounts = field(default_factory=RecordCounts)
    seconds: float = 0.0
    complete: bool = True
    interrupted: bool = False
    ledger: str | None = None
    output: str | None = None
    outputs: ResultRows = field(default_factory=ListedRows)
    failures: ResultRows = field(default_factory=ListedRows)
    rejects: ResultRows = field(default_factory=ListedRows)
    summary: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    _stats: Callable[[], dict[str, Any]] = field(default=dict, repr=False, compare=False)

    @property
    def stats(self) -> dict[str, Any]:
        """Counts and measurements that the job's function made with `ledgerbeam.stats`, by name; read on use."""
        return self._stats()

    def raise_for_failures(self) -> Self:
        """Return the result if nothing failed.

        Raises:
            TasksFailedError: Tasks failed, or there are warnings; the message has the first errors.
        """
        if not len(self.failures) and not self.warnings:
            return self
        parts = [*self.warnings]
        if number := len(self.failures):
            what = count(number, "problem" if self.command == "verify" else "failed task")
            rows = islice(self.failures, SHOWN_FAILURES)
            shown = (f"{row.get('error') or row.get('problem') or row['task'] + ': ' + row['reason']}" for row in rows)
            parts.insert(0, f"{what}: {'; '.join(shown)}{'; ...' if number > SHOWN_FAILURES else ''}")
        retry = "" if self.ledger is None else f"; call it again to retry. All failures are in ledger {self.ledger}"
        raise TasksFailedError(f"{self.command}: {'; '.join(parts)}{retry}")

    def __repr__(self) -> str:
        return f"<Result of {self.command}: {', '.join(self._facts())}>"

    def _repr_html_(self) -> str:
        facts = ", ".join(self._facts())
        rows: list[tuple[str, str | None]] = [("state", facts), ("output", self.output), ("ledger", self.ledger)]
        rows += [(name, f"{number:,}") for name, number in self._left() if number]
        return html_table(f"ledgerbeam {self.command}", rows)

    def _left(self) -> list[tuple[str, int]]:
        return [("failures", len(self.failures)), ("rejected records", len(self.rejects))]

    def _facts(self) -> list[str]:
        state = "interrupted" if self.interrupted else "complete" if self.complete else "not complete"
        found = [f"{state}; this run: {count(self.sources, 'source')}", count(self.tasks, "task")]
        found += [f"{count(self.records.read, 'record')} read, {self.records.records:,} written"]
        return [*found, *(f"{number:,} {name}" for name, number in self._left() if number), duration(self.seconds)]


class JobInterrupt(KeyboardInterrupt):
    """Ctrl-C, or an interrupt of a notebook kernel, has ended a run. The state is saved; the same call resumes the run.

    Attributes:
        result: Result of the run until the interrupt.
    """

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = Result("", complete=False, interrupted=True) if result is None else result


def html_table(caption: str, rows: Iterable[tuple[str, str | None]]) -> str:
    """Return facts as an HTML table, escaped and without secrets. A fact without a value is left out."""
    cells = "".join(f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in rows if value)
    return f"<table><caption>{_shown(caption)}</caption>{cells}</table>"


def _cell(tag: str, text: str) -> str:
    return f"<{tag} style='text-align:left'>{_shown(text)}</{tag}>"


def _shown(text: str) -> str:
    plain = printable(without_secrets(text))
    return html.escape(plain if len(plain) <= MOST_SHOWN else f"{plain[:MOST_SHOWN]} ...")
