"""The programs that the table of dedup and join compares: `python -m benchmarks.peer_keyed NAME WORK FOLDER OUT BYTES`.

Each program reads ``FOLDER/left/*.jsonl``, and for a join ``FOLDER/right.jsonl``, with two threads, and writes one
file. It runs in the peers' environment. Polars does not respect a memory limit.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

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


def bare(work: str, folder: str, out: str, memory: int) -> None:
    """Two processes with orjson and nothing else, which divide the records by key: the least that the work costs.

    Each process writes lines to files by the hash of their key. Then it reads one of these files at a time.
    """
    del memory
    sides = {"left": sorted(Path(folder, "left").glob("*.jsonl"))}
    if work == "join":
        sides["right"] = [Path(folder, "right.jsonl")]
    key = "text" if work == "dedup" else FIELD
    with ProcessPoolExecutor(THREADS) as pool:
        for side, paths in sides.items():
            list(pool.map(partial(_divide, key, side, out), paths))
        list(pool.map(partial(_bare_part, work, key, out), range(_PARTS)))


_PARTS = 32


def _divide(key: str, side: str, out: str, path: Path) -> None:
    loads = importlib.import_module("orjson").loads
    with ExitStack() as opened:
        parts = (Path(out, f"{side}-{part}-{path.name}") for part in range(_PARTS))
        files = [opened.enter_context(part.open("wb")) for part in parts]
        for line in opened.enter_context(path.open("rb")):
            files[crc32(loads(line)[key].encode()) % _PARTS].write(line)


def _bare_part(work: str, key: str, out: str, part: int) -> None:
    orjson: Any = importlib.import_module("orjson")
    loads, dumps, newline = orjson.loads, orjson.dumps, orjson.OPT_APPEND_NEWLINE
    lefts = (line for path in sorted(Path(out).glob(f"left-{part}-*")) for line in path.open("rb"))
    with Path(out, f"part-{part}.jsonl").open("wb") as made:
        if work == "dedup":
            known = set()
            for line in lefts:
                value = loads(line)[key]
                if value not in known:
                    known.add(value)
                    made.write(line)
        else:
            rights = (line for path in Path(out).glob(f"right-{part}-*") for line in path.open("rb"))
            by_key = {value[key]: value for value in map(loads, rights)}
            for value in map(loads, lefts):
                if (other := by_key.get(value[key])) is not None:
                    made.write(dumps({**value, **other}, option=newline))
    for path in Path(out).glob(f"*-{part}-*"):
        path.unlink()


PROGRAMS: dict[str, Callable[[str, str, str, int], None]] = {"duckdb": duckdb, "polars": polars, "bare": bare}


if __name__ == "__main__":
    name, work, folder, out, memory = sys.argv[1:]
    Path(out).mkdir(parents=True)
    PROGRAMS[name](work, folder, out, int(memory))
