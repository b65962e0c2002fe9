"""The programs that the table of sorting compares: `python -m benchmarks.peer_sorts NAME SOURCES OUT MEMORY`.

Each program sorts the JSONL files of a folder by a field, with two threads or processes. It writes files to another
folder, whose names give their order. It runs in the peers' environment. Polars and Ray do not respect a memory limit.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
FILES = 4
FIELD, KEY_FIELD = "key", 6
"""The field to sort by, and the number of its value in a line, for a tool that splits lines at quotes."""

_WORDS = (40, 160)
_VOCABULARY = 5_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_sources(folder: Path, size: int) -> None:
    """Write lines of a number, a random text as the key, and words."""
    folder.mkdir(parents=True)
    chance = random.Random(1)
    words = ["".join(chance.choices(_LETTERS, k=chance.randint(2, 9))) for _ in range(_VOCABULARY)]
    for number in range(FILES):
        with (folder / f"{number}.jsonl").open("wb") as file:
            while file.tell() < size / FILES:
                text = " ".join(chance.choices(words, k=chance.randint(*_WORDS)))
                line = f'{{"id":{chance.getrandbits(48)},"{FIELD}":"{chance.getrandbits(64):016x}","text":"{text}"}}\n'
                file.write(line.encode())


def duckdb(sources: str, out: str, memory: int) -> None:
    library: Any = importlib.import_module("duckdb")
    session = library.connect()
    session.execute(f"set memory_limit='{memory}B'")
    session.execute(f"set temp_directory='{out}'")
    session.execute(f"set threads={THREADS}")
    columns = f"{{id: 'BIGINT', {FIELD}: 'VARCHAR', text: 'VARCHAR'}}"
    read = f"select * from read_json('{sources}/*.jsonl', format='newline_delimited', columns={columns})"
    session.execute(f"copy ({read} order by {FIELD}) to '{out}/sorted.jsonl' (format json)")


def polars(sources: str, out: str, memory: int) -> None:
    del memory
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    library: Any = importlib.import_module("polars")
    library.scan_ndjson(f"{sources}/*.jsonl").sort(FIELD).sink_ndjson(f"{out}/sorted.jsonl")


def ray(sources: str, out: str, memory: int) -> None:
    del memory
    library: Any = importlib.import_module("ray")
    data: Any = importlib.import_module("ray.data")
    library.init(num_cpus=THREADS, include_dashboard=False, log_to_driver=False)
    data.DataContext.get_current().execution_options.preserve_order = True
    try:
        data.read_json(sources, lines=True).sort(FIELD).write_json(out)
    finally:
        library.shutdown()


PROGRAMS: dict[str, Callable[[str, str, int], None]] = {"duckdb": duckdb, "polars": polars, "ray": ray}


if __name__ == "__main__":
    name, sources, out, memory = sys.argv[1:]
    Path(out).mkdir(parents=True)
    PROGRAMS[name](sources, out, int(memory))
