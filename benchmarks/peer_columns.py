"""The programs that the table of Arrow batches compares: `python -m benchmarks.peer_columns NAME SOURCES OUT`.

Each keeps rows of Parquet files with a large number, adds the length of their texts, and writes one Parquet file with
Zstandard, with two threads.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

THREADS = 2
LEAST = 1 << 47
"""Numbers above it are kept: about half of them."""


def duckdb(sources: str, out: str) -> None:
    session: Any = importlib.import_module("duckdb").connect()
    session.execute(f"set threads={THREADS}")
    kept = f"select *, length(text) n from read_parquet('{sources}/*.parquet') where id > {LEAST}"
    session.execute(f"copy ({kept}) to '{out}/all.parquet' (format parquet, compression zstd)")


def polars(sources: str, out: str) -> None:
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    library: Any = importlib.import_module("polars")
    kept = library.scan_parquet(f"{sources}/*.parquet").filter(library.col("id") > LEAST)
    kept.with_columns(n=library.col("text").str.len_chars()).sink_parquet(f"{out}/all.parquet", compression="zstd")


def bare(sources: str, out: str) -> None:
    """Two processes with pyarrow and nothing else: the least that the work costs with this library."""
    paths = sorted(Path(sources).iterdir())
    with ProcessPoolExecutor(THREADS) as pool:
        list(pool.map(_bare_file, paths, [Path(out) / path.name for path in paths]))


def _bare_file(source: Path, out: Path) -> None:
    pa: Any = importlib.import_module("pyarrow")
    pc: Any = importlib.import_module("pyarrow.compute")
    pq: Any = importlib.import_module("pyarrow.parquet")
    pa.set_cpu_count(1)
    file, writer = pq.ParquetFile(source), None
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        kept = table.filter(pc.greater(table["id"], LEAST))
        kept = kept.append_column("n", pc.utf8_length(kept["text"]))
        writer = writer or pq.ParquetWriter(out, kept.schema, compression="zstd", compression_level=3)
        writer.write_table(kept)
    if writer:
        writer.close()


PROGRAMS: dict[str, Callable[[str, str], None]] = {"duckdb": duckdb, "polars": polars, "bare": bare}


if __name__ == "__main__":
    name, sources, out = sys.argv[1:]
    Path(out).mkdir(parents=True)
    PROGRAMS[name](sources, out)
