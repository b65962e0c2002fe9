"""``ledgerbeam ledger export``: the tables of a ledger as JSON lines or Parquet, for whatever reads those."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, BinaryIO, Literal

from ledgerbeam.errors import UsageError
from ledgerbeam.io import canonical_url
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.ledger.model.accounts import PARTS
from ledgerbeam.pipelines.console import count, counting, json_bytes, print_json
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.progress import shown_runs
from ledgerbeam.redaction import without_secrets

__all__ = ["TABLES", "ColumnType", "Table", "export"]


ColumnType = Literal["text", "whole", "real", "flag", "time", "counts"]
"""``time`` is in seconds since 1970 UTC, ``counts`` are whole numbers by name. Any value may be None."""


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
        rows: Yields the rows of a ledger, tuples in the order of the columns; no more than a page is in memory, of
            ``failures`` and of ``outputs`` also what `LedgerStore` says.
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
    """Return the columns of what became of records, of rows that have ``counts``."""

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


BLOCK_ROWS = 50_000
"""Rows that are held and written at a time: a row group of Parquet."""

Writer = Callable[[Table, LedgerStore, BinaryIO, Callable[[int, int], None]], int]


def export(store: LedgerStore, args: argparse.Namespace) -> int:
    """Write one table to a file, or without ``--table`` every table into a folder. Returns 0.

    Each file appears as a whole or not.

    Raises:
        UsageError: If the output cannot be written atomically, or names a folder where a file is meant.
    """
    started = time.monotonic()
    output = canonical_url(args.output)
    if args.table is None:
        wanted = {name: f"{output.rstrip('/')}/{name}.{args.format}" for name in TABLES}
    elif args.output.endswith("/"):
        raise UsageError(f"{args.output}: --table exports to a file, this names a folder; leave --table out for all")
    else:
        wanted = {args.table: output}
    write = _WRITERS[args.format]
    files = []
    for name, url in wanted.items():
        with counting("row") as advance, publish(url, args.storage_options) as file:
            rows = write(TABLES[name], store, file, advance)
        files.append({"table": name, "rows": rows, "file": without_secrets(url)})
        if not args.json:
            print(f"{name}: {count(rows, 'row')} -> {without_secrets(url)}")
    if args.json:
        print_json({"format": args.format, "files": files, "seconds": round(time.monotonic() - started, 3)})
    return 0


def _blocks(table: Table, store: LedgerStore) -> Iterator[list[tuple[Any, ...]]]:
    rows = table.rows(store)
    while block := list(islice(rows, BLOCK_ROWS)):
        yield block


def _write_jsonl(table: Table, store: LedgerStore, file: BinaryIO, advance: Callable[[int, int], None]) -> int:
    names = list(table.types)
    times = [i for i, kind in enumerate(table.types.values()) if kind == "time"]
    written = 0
    for block in _blocks(table, store):
        for row in block:
            values = list(row)
            for i in times:
                values[i] = None if row[i] is None else _moment(row[i])
            file.write(json_bytes(dict(zip(names, values, strict=True))) + b"\n")
        written += len(block)
        advance(len(block), 0)
    return written


def _moment(seconds: float) -> str:
    """Return a time as RFC 3339 with milliseconds."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=round(seconds * 1000))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_parquet(table: Table, store: LedgerStore, file: BinaryIO, advance: Callable[[int, int], None]) -> int:
    # Imported here, since pyarrow takes a while and JSON lines need none of it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "text": pa.string(),
        "whole": pa.int64(),
        "real": pa.float64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("ms", "UTC"),
        "counts": pa.map_(pa.string(), pa.int64()),
    }
    schema = pa.schema([(name, kinds[kind]) for name, kind in table.types.items()])
    written = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for block in _blocks(table, store):
            columns = [
                pa.array(_as_arrow(column, kind), kinds[kind])
                for column, kind in zip(zip(*block, strict=True), table.types.values(), strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema))
            written += len(block)
            advance(len(block), 0)
    return written


def _as_arrow(column: tuple[Any, ...], kind: ColumnType) -> list[Any] | tuple[Any, ...]:
    """Return a column as pyarrow takes it: times in milliseconds, text as UTF-8 with other bytes escaped."""
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


_WRITERS: dict[str, Writer] = {"jsonl": _write_jsonl, "parquet": _write_parquet}
