"""``ledgerbeam ledger export``: the tables of a ledger as JSON lines or Parquet, for whatever reads those."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, BinaryIO

from ledgerbeam.errors import UsageError
from ledgerbeam.io import canonical_url
from ledgerbeam.io.publish import publish
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.report import count, counting, json_bytes, print_json
from ledgerbeam.pipelines.tables import TABLES, ColumnType, Table
from ledgerbeam.redaction import without_secrets

__all__ = ["export"]

BLOCK_ROWS = 50_000
"""Rows that are held and written at a time: a row group of Parquet."""

Writer = Callable[[Table, LedgerStore, BinaryIO, Callable[[int, int], None]], int]


def export(store: LedgerStore, args: argparse.Namespace) -> int:
    """Writes one table to a file, or without ``--table`` every table into a folder. Returns 0.

    Each file appears whole or not at all.

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
        with counting(f"rows of {name}") as advance, publish(url, args.storage_options) as file:
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
    """Returns a time as RFC 3339 with milliseconds."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=round(seconds * 1000))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_parquet(table: Table, store: LedgerStore, file: BinaryIO, advance: Callable[[int, int], None]) -> int:
    # Imported here, since pyarrow takes a while and JSON lines need none of it.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    kinds = {
        "text": pa.string(),
        "whole": pa.int64(),
        "real": pa.float64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("ms", "UTC"),
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
    """Returns a column as pyarrow takes it: times in milliseconds, text as UTF-8 with other bytes escaped."""
    if kind == "time":
        return [None if value is None else round(value * 1000) for value in column]
    if kind == "text":
        return [None if value is None else _utf8(value) for value in column]
    return column


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text


_WRITERS: dict[str, Writer] = {"jsonl": _write_jsonl, "parquet": _write_parquet}
