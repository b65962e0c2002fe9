"""``ledgerbeam ledger`` export, report, forget and compact: write files about a ledger, or change it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.files import refuse_foreign
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger import compact as compact_store
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.pipelines.console.reporter import counting, json_bytes, print_json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.report.data import report_data
from ledgerbeam.pipelines.report.tables import TABLES, Table, arrow_batches, arrow_schema, blocks

Writer = Callable[[Table, LedgerStore, BinaryIO], Iterator[int]]  # yields numbers of written rows

_MARK = "ledgerbeam.columns"  # key of the column names in the metadata of a Parquet file
EXTRA = ("jinja2", "vl_convert")  # packages of the extra ``report``
_REPORT_LOOKS = re.compile(rb"\Z|<!doctype html>(?s:.*)<footer>Made by ledgerbeam ")


def export(store: LedgerStore, args: argparse.Namespace) -> int:
    """Write one table to a file, or without ``--table`` all tables to a folder, each file atomically. Returns 0."""
    started = time.monotonic()
    output = canonical_url(args.output)
    if args.table is None:
        wanted = {name: f"{output.rstrip('/')}/{name}.{args.format}" for name in TABLES}
    elif args.output.endswith("/"):
        raise UsageError(f"{args.output}: expected a file, found a folder; leave out --table to export all tables")
    else:
        wanted = {args.table: output}
    write = _WRITERS[args.format]
    looks = {url: _looks(TABLES[name], args.format).match for name, url in wanted.items()}
    refuse_foreign(looks, args.storage_options, kind="an earlier export of this table")
    files = []
    for name, url in wanted.items():
        with counting("row") as advance, publish(url, args.storage_options) as file:
            rows = 0
            for number in write(TABLES[name], store, file):
                rows += number
                advance(number, 0)
        files.append({"table": name, "rows": rows, "file": without_secrets(url)})
        if not args.json:
            print(f"{name}: {count(rows, 'row')} -> {without_secrets(url)}")
    if args.json:
        print_json({"format": args.format, "files": files, "seconds": round(time.monotonic() - started, 3)})
    return 0


def _write_jsonl(table: Table, store: LedgerStore, file: BinaryIO) -> Iterator[int]:
    names = list(table.types)
    times = [i for i, kind in enumerate(table.types.values()) if kind == "time"]
    for block in blocks(table, store):
        for row in block:
            values = list(row)
            for i in times:
                values[i] = None if row[i] is None else _moment(row[i])
            file.write(json_bytes(dict(zip(names, values, strict=True))) + b"\n")
        yield len(block)


def _moment(seconds: float) -> str:
    """Return a time as RFC 3339 with milliseconds."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=round(seconds * 1000))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_parquet(table: Table, store: LedgerStore, file: BinaryIO) -> Iterator[int]:
    import pyarrow.parquet as pq  # slow to import, and not needed for JSON lines

    schema = arrow_schema(table).with_metadata({_MARK: " ".join(table.types)})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in arrow_batches(table, store):
            writer.write_batch(batch)
            yield batch.num_rows


_WRITERS: dict[str, Writer] = {"jsonl": _write_jsonl, "parquet": _write_parquet}


def _looks(table: Table, form: str) -> re.Pattern[bytes]:
    """Return a pattern that recognizes an earlier export of a table in a format; see `Looks`."""
    if form == "parquet":
        return re.compile(rb"\Z|PAR1(?s:.*)%b(?s:.*)%b" % (re.escape(_MARK.encode()), " ".join(table.types).encode()))
    # Atomic groups prevent backtracking: a line of another program may contain some of the names many times.
    return re.compile(rb"\Z|\{" + b"".join(b'(?>.*?"%b":)' % name.encode() for name in table.types))


def report(store: LedgerStore, args: argparse.Namespace) -> int:
    """Write an HTML report of a job on one page, without network access or scripts. Returns 0."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        needs = f"the report needs packages that are not installed: {', '.join(missing)}"
        raise UsageError(f"{needs}; install them with: {install_command('report')}")
    from ledgerbeam.pipelines.report.page import render_page

    refuse_foreign({args.output: _REPORT_LOOKS.match}, args.storage_options, kind="an earlier report")
    page = render_page(report_data(store, args.storage_options))
    publish_bytes(args.output, page, args.storage_options)
    where = without_secrets(canonical_url(args.output))
    if args.json:
        print_json({"output": where, "bytes": len(page)})
    else:
        print(f"report: {where} ({len(page):,} bytes)")
    return 0


def forget(store: LedgerStore, args: argparse.Namespace) -> int:
    """Forget sources, so that the next run processes them again. Returns 0."""
    forgotten: list[str] = []
    gone = store.gone_ids() if not args.failures_only else set()
    missed = {row.url for row in store.sources() if row.source_id in gone} if gone else set()
    for pattern in args.patterns:
        found = store.forget(pattern, failures_only=args.failures_only)
        if not found:
            raise UsageError(f"{pattern}: no source of the ledger matches; URLs are absolute, and * also matches /")
        forgotten += found
    if args.json:
        print_json({"forgotten": forgotten})
    else:
        print(f"{count(len(forgotten), 'source')} forgotten, to be processed again by the next run")
        if missing := missed.intersection(forgotten):
            print(
                f"{len(missing):,} of them not in the last listing; if they are still missing, their "
                "outputs are kept, and the next run lists these sources"
            )
    return 0


def compact(store: LedgerStore, args: argparse.Namespace) -> int:
    """Replace the objects of a remote ledger by one snapshot. Returns 0."""
    if not isinstance(store, RemoteStore):
        raise UsageError(f"ledger {args.url}: only remote ledgers can be compacted; a local ledger needs no compaction")
    done = compact_store(store)
    if args.json:
        print_json(dataclasses.asdict(done))
    else:
        print(f"{count(done.replaced, 'object')} replaced by a snapshot of {done.parts:,}, {count(done.bytes, 'byte')}")
    return 0
