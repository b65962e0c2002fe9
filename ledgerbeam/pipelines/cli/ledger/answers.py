"""``ledgerbeam ledger answers``: show, export and forget the answers that a job keeps."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import orjson

from ledgerbeam.io.storage.publish import publish
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.console.run_progress import count as counted

_NAMES = ("source", "request", "answer")
_AT_ONCE = 10_000  # rows that are written together


def answers(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print number and size of the stored answers; write or delete them if asked. Returns 0."""
    last = store.status()["last_run"] or {"info": {}}
    stored = AnswersPlace.of(store.url, last["info"].get("answers"), args.storage_options)
    urls = {row.source_id: row.url for row in store.sources()}
    number = size = plain = 0
    sources: set[bytes] = set()
    entries = stored.entries()
    with ExitStack() as stack:
        write = None if args.output is None else _writer(args, stack)
        while some := [*islice(entries, _AT_ONCE)]:
            sources.update(source for source, *_ in some if source)
            number, plain = number + len(some), plain + sum(len(answer) for _, _, answer, _ in some)
            size += sum(of_file for *_, of_file in some)
            if write is not None:
                write([(urls.get(source, ""), key.hex(), answer.decode()) for source, key, answer, _ in some])
    found: dict[str, Any] = {"sources": len(sources), "answers": number, "bytes": plain, "stored_bytes": size}
    if stored.is_kept:
        found["kept_at"] = stored.folder
    if args.forget:
        found["forgotten"] = stored.forget(dict.fromkeys(stored.files()))
    if args.json:
        print_json(found)
    elif args.forget:
        print(f"{counted(number, 'answer')} deleted")
    else:
        of, at = ("", f" at {stored.folder}") if stored.is_kept else (f" of {counted(len(sources), 'source')}", "")
        to = f" -> {args.output}" if args.output else ""
        print(f"{counted(number, 'answer')}{of}, {plain:,} bytes, stored in {size:,}{at}{to}")
    return 0


def _writer(args: argparse.Namespace, stack: ExitStack) -> Callable[[Sequence[tuple[str, ...]]], object]:
    """Return a function that writes rows to the file that is asked for, which is published when the stack ends."""
    file = stack.enter_context(publish(args.output, args.storage_options))
    if not str(args.output).endswith(".parquet"):

        def line(source: str, request: str, answer: str) -> bytes:
            row = dict(zip(_NAMES, (source, request, orjson.Fragment(answer)), strict=True))
            return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

        return lambda rows: file.write(b"".join(line(*row) for row in rows))
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in _NAMES])
    table = stack.enter_context(pq.ParquetWriter(file, schema))
    return lambda rows: table.write_table(pa.table([list(column) for column in zip(*rows, strict=True)], schema))
