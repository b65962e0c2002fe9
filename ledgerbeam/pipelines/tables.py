"""The tables that a ledger can be exported as: their columns, types and rows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal

from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.pipelines.progress import shown_runs
from ledgerbeam.redaction import without_secrets

__all__ = ["TABLES", "ColumnType", "Table"]

ColumnType = Literal["text", "whole", "real", "flag", "time"]
"""``time`` is in seconds since 1970 UTC. Any value may be None."""


@dataclass(frozen=True)
class Column:
    """One column: its type, and how its value is taken from a row of the ledger."""

    type: ColumnType
    of: Callable[[Any], Any]


@dataclass(frozen=True)
class Table:
    """A table of a ledger.

    Attributes:
        types: Type of each column by name, in order.
        rows: Gives the rows of a ledger, tuples in the order of the columns; no more than a page is in memory,
            of ``failures`` and of ``outputs`` also what `LedgerStore` says.
    """

    types: Mapping[str, ColumnType]
    rows: Callable[[LedgerStore], Iterator[tuple[Any, ...]]]


def _table(rows: Callable[[LedgerStore], Any], **columns: Column) -> Table:
    takers = [column.of for column in columns.values()]

    def taken(store: LedgerStore) -> Iterator[tuple[Any, ...]]:
        return (tuple(take(row) for take in takers) for row in rows(store))

    return Table({name: column.type for name, column in columns.items()}, taken)


def _is(kind: ColumnType, path: str) -> Column:
    return Column(kind, attrgetter(path))


def _shown(path: str) -> Column:
    value = attrgetter(path)
    return Column("text", lambda row: without_secrets(value(row)))


def _hex(path: str) -> Column:
    value = attrgetter(path)
    return Column("text", lambda row: value(row).hex())


def _totals() -> dict[str, Column]:
    columns = {name: _is("whole", f"totals.{name}") for name in Totals._fields if name != "milliseconds"}
    return {**columns, "task_seconds": Column("real", lambda row: row.totals.milliseconds / 1000)}


def _run(kind: ColumnType, *names: str) -> Column:
    def value(run: Mapping[str, Any]) -> Any:
        found: Any = run
        for name in names:
            found = None if found is None else found.get(name)
        return found

    return Column(kind, value)


def _command(run: Mapping[str, Any]) -> str | None:
    words = run["info"].get("command")
    return None if words is None else shlex.join(words)


TABLES: Mapping[str, Table] = {
    "sources": _table(
        lambda store: store.sources(),
        source=_shown("url"),
        source_id=_hex("source_id"),
        size=_is("whole", "size"),
        members=_is("whole", "members"),
        state=_is("text", "state"),
        completed=Column("time", lambda row: row.completed or None),
        **_totals(),
    ),
    "outputs": _table(
        lambda store: store.outputs(),
        name=_shown("output.name"),
        records=_is("whole", "output.records"),
        size=_is("whole", "output.size"),
        checksum=_is("text", "output.checksum"),
        first=_is("whole", "output.first"),
        source=_shown("url"),
        source_id=_hex("source_id"),
        complete=_is("flag", "complete"),
    ),
    "failures": _table(
        lambda store: store.failures(),
        source=_shown("url"),
        source_id=_hex("source_id"),
        task=_shown("task"),
        reason=_shown("reason"),
        error=_shown("error"),
        attempts=_is("whole", "attempts"),
        last=_is("time", "last"),
        quarantined=_is("flag", "quarantined"),
    ),
    "runs": _table(
        shown_runs,
        run=_run("text", "id"),
        began=_run("time", "began"),
        ended=_run("time", "ended"),
        state=_run("text", "state"),
        host=_run("text", "info", "host"),
        pid=_run("whole", "info", "pid"),
        workers=_run("whole", "info", "workers"),
        listed=_run("whole", "listed"),
        tasks=_run("whole", "done", "tasks"),
        records=_run("whole", "done", "records"),
        bytes=_run("whole", "done", "bytes"),
        sources=_run("whole", "done", "sources"),
        command=Column("text", _command),
    ),
    "history": _table(
        lambda store: store.history(),
        time=_is("time", "time"),
        **_totals(),
        completed=_is("whole", "completed"),
        failures=_is("whole", "failures"),
    ),
    "durations": _table(
        lambda store: store.durations().items(),
        seconds=Column("real", itemgetter(0)),
        tasks=Column("whole", itemgetter(1)),
    ),
}
"""Every table by name."""
