"""``ledgerbeam ledger answers``: show, export and forget the answers that a job keeps."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from ledgerbeam.io.storage.publish import publish
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.console.run_progress import count as counted

_NAMES = ("source", "request", "answer")
_AT_ONCE = 10_000  # rows of a table that are written together


def answers(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print number and size of the stored answers; write or delete them if asked. Returns 0."""
    last = store.status()["last_run"] or {"info": {}}
    stored = AnswersPlace.of(store.url, last["info"].get("answers"), args.storage_options)
    urls = {row.source_id: row.url for row in store.sources()}
    number = size = plain = 0
    sources: set[bytes] = set()
    with _file(args) as write:
        for source, key, answer, of_file in stored.entries():
            number, size, plain = number + 1, size + of_file, plain + len(answer)
            sources |= {source} - {b""}
            write(urls.get(source, ""), key.hex(), answer)
    found: dict[str, Any] = {"sources": len(sources), "answers": number, "bytes": plain, "stored_bytes": size}
    if stored.is_kept:
        found["kept_at"] = stored.folder
    if args.forget:
        found["forgotten"] = stored.forget(stored.files())
    if args.json:
        print_json(found)
    else:
        of, at = ("", f" at {stored.folder}") if stored.is_kept else (f" of {counted(len(sources), 'source')}", "")
        print(f"{counted(number, 'answer')}{of}, {plain:,} bytes, stored in {size:,}{at}")
    return 0


@contextmanager
def _file(args: argparse.Namespace) -> Iterator[Callable[[str, str, bytes], object]]:
    """Yield a function that writes an answer to the file that is asked for: its source, its request, and its JSON."""
    if args.output is None:
        yield lambda *_: None
        return
    with publish(args.output, args.storage_options) as file:
        if not str(args.output).endswith(".parquet"):

            def line(source: str, request: str, answer: bytes) -> None:
                row = {"source": source, "request": request, "answer": orjson.Fragment(answer)}
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

            yield line
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema, rows = pa.schema([(name, pa.string()) for name in _NAMES]), list[tuple[Any, ...]]()
        with pq.ParquetWriter(file, schema) as table:

            def put(*row: Any) -> None:
                rows.append(row)
                if len(rows) == _AT_ONCE:
                    flush()

            def flush() -> None:
                columns = [[row[0] for row in rows], [row[1] for row in rows], [row[2].decode() for row in rows]]
                table.write_table(pa.table(columns, schema))
                rows.clear()

            yield put
            flush()
