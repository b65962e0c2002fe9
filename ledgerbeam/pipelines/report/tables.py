"""Tables of a ledger: their columns, and their rows as tuples or Arrow batches."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.ledger.model.accounts import PARTS
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.state import shown_runs

if TYPE_CHECKING:
    import pyarrow as pa

# Type of a column. ``time`` is seconds since 1970 UTC; ``counts`` are integers by name. Any value may be None.
ColumnType = Literal["text", "whole", "real", "flag", "time", "counts"]


@dataclass(frozen=True)
class Column:
    """A column: its type, and a function that returns its value for a row of the ledger."""

    type: ColumnType
    of: Callable[[Any], Any]


@dataclass(frozen=True)
class Table:
    """A table of a ledger: the type of each column, and a function that yields the rows as tuples in this order.

    One page is in memory at a time. ``failures`` and ``outputs`` need further memory; see `LedgerStore`.
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


def _records() -> dict[str, Column]:
    """Return the columns of record counts, for rows that have ``counts``."""

    def taker(name: str) -> Callable[[Any], Any]:
        return lambda row: shown_records(row.counts)[name]

    return {name: Column("whole" if name in ("read", "kept") else "counts", taker(name)) for name in PARTS}


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
        **_records(),
    ),
    "counts": _table(
        lambda store: store.task_counts(),
        source=_shown("url"),
        source_id=_hex("source_id"),
        node=_hex("node"),
        **_records(),
    ),
    "outputs": _table(
        lambda store: store.outputs(),
        name=_shown("output.name"),
        records=_is("whole", "output.records"),
        size=_is("whole", "output.size"),
        checksum=_is("text", "output.checksum"),
        first=_is("whole", "output.first"),
        route=_shown("output.route"),
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
        run=_is("text", "run"),
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

BLOCK_ROWS = 50_000  # number of rows in memory at a time: a row group of Parquet


def blocks(table: Table, store: LedgerStore) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table of a ledger, `BLOCK_ROWS` at a time."""
    rows = table.rows(store)
    while block := list(islice(rows, BLOCK_ROWS)):
        yield block


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of a table."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import, and most commands do not need it

    kinds = {
        "text": pa.string(),
        "whole": pa.int64(),
        "real": pa.float64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("ms", "UTC"),
        "counts": pa.map_(pa.string(), pa.int64()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in table.types.items()])


def arrow_batches(table: Table, store: LedgerStore) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of a ledger as batches of `BLOCK_ROWS` rows."""
    import pyarrow as pa  # noqa: PLC0415

    schema = arrow_schema(table)
    for block in blocks(table, store):
        columns = [
            pa.array(_as_arrow(column, kind), field.type)
            for column, kind, field in zip(zip(*block, strict=True), table.types.values(), schema, strict=True)
        ]
        yield pa.record_batch(columns, schema)


def _as_arrow(column: tuple[Any, ...], kind: ColumnType) -> list[Any] | tuple[Any, ...]:
    """Return a column as pyarrow accepts it: times in milliseconds, text as UTF-8 with other bytes escaped."""
    if kind == "time":
        return [None if value is None else round(value * 1000) for value in column]
    if kind == "text":
        return [None if value is None else _utf8(value) for value in column]
    if kind == "counts":
        return [[(_utf8(name), number) for name, number in value.items()] for value in column]
    return column


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text
