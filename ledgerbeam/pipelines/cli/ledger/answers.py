"""``ledgerbeam ledger answers``: show, export and forget the answers that a job keeps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import orjson

from ledgerbeam.io import publish_bytes
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.answers import AnswersPlace
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.console.run_progress import count as counted


def answers(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print number and size of the stored answers; write or delete them if asked. Returns 0."""
    stored = AnswersPlace(store.url, args.storage_options)
    urls = {row.source_id: row.url for row in store.sources()}
    number = size = plain = 0
    rows: list[dict[str, Any]] = []
    sources: set[bytes] = set()
    for source, key, answer, of_file in stored.entries():
        number, size, plain = number + 1, size + of_file, plain + len(answer)
        sources.add(source)
        if args.output is not None:
            rows.append({"source": urls.get(source, ""), "request": key.hex(), "answer": orjson.loads(answer)})
    if args.output is not None:
        publish_bytes(args.output, _encoded(rows, args.output), args.storage_options)
    found = {"sources": len(sources), "answers": number, "bytes": plain, "stored_bytes": size}
    if args.forget:
        found["forgotten"] = stored.forget(stored.files())
    if args.json:
        print_json(found)
    else:
        of = counted(len(sources), "source")
        print(f"{counted(number, 'answer')} of {of}, {plain:,} bytes, stored in {size:,}")
    return 0


def _encoded(rows: list[dict[str, Any]], name: str) -> bytes:
    if not str(name).endswith(".parquet"):
        return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: Iterator[list[Any]] = ([row[key] for row in rows] for key in ("source", "request"))
    texts = [orjson.dumps(row["answer"]).decode() for row in rows]
    table = pa.table(dict(zip(("source", "request", "answer"), [*columns, texts], strict=True)))
    data = pa.BufferOutputStream()
    pq.write_table(table, data)
    return data.getvalue().to_pybytes()
