"""``ledgerbeam ledger export``: the tables of a ledger as JSON lines or Parquet."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.overwrite import refuse_foreign
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.reporter import counting, json_bytes, print_json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.report.tables import TABLES, Table, arrow_batches, arrow_schema, blocks

Writer = Callable[[Table, LedgerStore, BinaryIO, Callable[[int, int], None]], int]


def export(store: LedgerStore, args: argparse.Namespace) -> int:
    """Write one table to a file, or without ``--table`` all tables to a folder. Returns 0.

    Each file is written atomically.

    Raises:
        UsageError: The output cannot be written atomically, is a folder instead of a file, or is an existing file that
            is not an earlier export.
    """
    started = time.monotonic()
    output = canonical_url(args.output)
    if args.table is None:
        wanted = {name: f"{output.rstrip('/')}/{name}.{args.format}" for name in TABLES}
    elif args.output.endswith("/"):
        raise UsageError(f"{args.output}: expected a file, found a folder; leave out --table to export all tables")
    else:
        wanted = {args.table: output}
    write = _WRITERS[args.format]
    looks = {url: _LOOKS[args.format](TABLES[name]) for name, url in wanted.items()}
    refuse_foreign(looks, args.storage_options, kind="an earlier export of this table")
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


def _write_jsonl(table: Table, store: LedgerStore, file: BinaryIO, advance: Callable[[int, int], None]) -> int:
    names = list(table.types)
    times = [i for i, kind in enumerate(table.types.values()) if kind == "time"]
    written = 0
    for block in blocks(table, store):
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
    import pyarrow.parquet as pq  # slow to import, and not needed for JSON lines

    written = 0
    schema = arrow_schema(table).with_metadata({_MARK: " ".join(table.types)})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in arrow_batches(table, store):
            writer.write_batch(batch)
            written += batch.num_rows
            advance(batch.num_rows, 0)
    return written


_WRITERS: dict[str, Writer] = {"jsonl": _write_jsonl, "parquet": _write_parquet}

_MARK = "ledgerbeam.columns"
"""Key of the column names in the metadata of a Parquet file."""


def _looks_of_jsonl(table: Table) -> re.Pattern[bytes]:
    # Atomic groups prevent backtracking: a line of another program may contain some of the names many times.
    return re.compile(rb"\Z|\{" + b"".join(b'(?>.*?"%b":)' % name.encode() for name in table.types))


def _looks_of_parquet(table: Table) -> re.Pattern[bytes]:
    return re.compile(rb"\Z|PAR1(?s:.*)%b(?s:.*)%b" % (re.escape(_MARK.encode()), " ".join(table.types).encode()))


_LOOKS = {"jsonl": _looks_of_jsonl, "parquet": _looks_of_parquet}
"""Patterns that recognize an earlier export of a table, by format; see `Looks`."""
