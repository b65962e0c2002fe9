"""The programs that the table of dedup and join compares: `python -m benchmarks.peer_keyed NAME WORK FOLDER OUT BYTES`.

Each program reads ``FOLDER/left/*.jsonl``, and for a join ``FOLDER/right.jsonl``, with two threads, and writes one
file. It runs in the peers' environment. Polars does not respect a memory limit.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer_sorts import FIELD, THREADS


def duckdb(work: str, folder: str, out: str, memory: int) -> None:
    session: Any = importlib.import_module("duckdb").connect()
    session.execute(f"set memory_limit='{memory}B'")
    session.execute(f"set temp_directory='{out}/temporary'")
    session.execute(f"set threads={THREADS}")
    session.execute("set preserve_insertion_order=false")
    left = _read(f"{folder}/left/*.jsonl", f"{{id: 'BIGINT', {FIELD}: 'VARCHAR', text: 'VARCHAR'}}")
    if work == "dedup":
        query = f"select distinct on (text) * from {left}"
    else:
        right = _read(f"{folder}/right.jsonl", f"{{{FIELD}: 'VARCHAR', other: 'VARCHAR'}}")
        query = f"select l.*, r.other from {left} l join {right} r using ({FIELD})"
    session.execute(f"copy ({query}) to '{out}/all.jsonl' (format json)")


def _read(files: str, columns: str) -> str:
    return f"read_json('{files}', format='newline_delimited', columns={columns})"


def polars(work: str, folder: str, out: str, memory: int) -> None:
    del memory
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    library: Any = importlib.import_module("polars")
    left = library.scan_ndjson(f"{folder}/left/*.jsonl")
    if work == "dedup":
        found = left.unique(subset=["text"], keep="any")
    else:
        found = left.join(library.scan_ndjson(f"{folder}/right.jsonl"), on=FIELD)
    found.sink_ndjson(f"{out}/all.jsonl")


PROGRAMS: dict[str, Callable[[str, str, str, int], None]] = {"duckdb": duckdb, "polars": polars}


if __name__ == "__main__":
    name, work, folder, out, memory = sys.argv[1:]
    Path(out).mkdir(parents=True)
    PROGRAMS[name](work, folder, out, int(memory))
