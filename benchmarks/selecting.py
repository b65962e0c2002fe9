"""Table: `select` by columns beside the records, against DuckDB and Polars over Parquet, and a scan of JSON lines.

The peers are `python -m benchmarks.selecting NAME SOURCES OUT LEAST`.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data import GIGABYTE, Data
from benchmarks.functions import TENTH
from benchmarks.measured import Measured, best_of, measure
from benchmarks.peer import PEERS_REMEDY, peer_python
from benchmarks.table import Row, absent_row, most_row

TITLE = "Selections by columns beside the records, in 4 files, start-up included"

SIZE = 5 * GIGABYTE
LIMIT = 1.2
"""Wall time for each of the faster peer."""

FASTER = 3.0
"""Least ratio of the wall time of a scan to that of a selection of a tenth."""

ROUNDS = 2
THREADS = 2
SHARES = {"a tenth": TENTH, "half": 1 << 47}
_NAMES = {"duckdb": "DuckDB", "polars": "Polars"}


def rows(data: Data) -> Iterator[Row]:
    from benchmarks.columns import write_parquet  # noqa: PLC0415 - brings pyarrow, which the peers lack

    size = int(SIZE * data.factor)
    label = f"of {size / GIGABYTE:g} GB of JSONL"
    folder = data.work / "selecting"
    shutil.rmtree(folder, ignore_errors=True)
    write_parquet(folder, size, keep_lines=True)
    for name, pattern in (("parquet", "in/*.parquet"), ("jsonl", "lines/*.jsonl")):
        function = "benchmarks.batch_functions:number" if name == "parquet" else "benchmarks.functions:number"
        arrow = ("--as", "arrow") if name == "parquet" else ()
        _run(folder, f"columns-{name}", "annotate", function, f"{folder}/{pattern}", *arrow)
    select = {
        name: (f"{folder}/{pattern}", "--with", f"{folder}/columns-{name}", "--to", name)
        for name, pattern in (("parquet", "in/*.parquet"), ("jsonl", "lines/*.jsonl"))
    }
    python = peer_python()
    for share, least in SHARES.items():
        where = ("--where", f"number > {least}")
        if not python:
            yield absent_row(f"select {share} {label}, vs DuckDB and Polars", f"<= {LIMIT:g} x", PEERS_REMEDY)
            continue
        module = [str(python), "-m", "benchmarks.selecting"]
        commands = {"ours": _words(folder, "ours", "select", *select["parquet"], *where)} | {
            name: [*module, name, f"{folder}/in", f"{folder}/{name}", str(least)] for name in _NAMES
        }
        best = best_of(folder, commands, ROUNDS)
        fastest = min(_NAMES, key=lambda name: best[name].wall)
        yield most_row(
            f"select {share} of Parquet {label}, vs the faster peer",
            best["ours"].wall / best[fastest].wall,
            LIMIT,
            " x",
            ours=_shown(best["ours"]),
            other=f"{_NAMES[fastest]}; " + ", ".join(f"{_NAMES[name]} {_shown(best[name])}" for name in _NAMES),
        )
    scan = ("benchmarks.functions:keep_tenth", f"{folder}/lines/*.jsonl", "--to", "jsonl")
    commands = {
        "ours": _words(folder, "ours", "select", *select["jsonl"], "--where", f"number > {TENTH}"),
        "scan": _words(folder, "scan", "map", *scan),
    }
    best = best_of(folder, commands, ROUNDS)
    yield most_row(
        f"select a tenth {label}, vs a scan with map",
        best["ours"].wall / best["scan"].wall,
        1 / FASTER,
        " x",
        ours=_shown(best["ours"]),
        other=f"scan {_shown(best['scan'])}",
    )
    shutil.rmtree(folder)


def _words(folder: Path, output: str, *words: str) -> list[str]:
    places = ("--output", f"{folder}/{output}", "--ledger", f"{folder}/{output}-ledger", "--workers=2", "--quiet")
    return [sys.executable, "-m", "ledgerbeam", *words, *places]


def _run(folder: Path, output: str, *words: str) -> None:
    measure(_words(folder, output, *words), folder / output)


def _shown(found: Measured) -> str:
    return f"{found.wall:.1f} s, {found.cpu:.1f} CPU s"


def duckdb(sources: str, out: str, least: int) -> None:
    session: Any = importlib.import_module("duckdb").connect()
    session.execute(f"set threads={THREADS}")
    kept = f"select * from read_parquet('{sources}/*.parquet') where id > {least}"
    session.execute(f"copy ({kept}) to '{out}/all.parquet' (format parquet, compression zstd)")


def polars(sources: str, out: str, least: int) -> None:
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    library: Any = importlib.import_module("polars")
    kept = library.scan_parquet(f"{sources}/*.parquet").filter(library.col("id") > least)
    kept.sink_parquet(f"{out}/all.parquet", compression="zstd")


if __name__ == "__main__":
    name, sources, out, least = sys.argv[1:]
    Path(out).mkdir(parents=True)
    {"duckdb": duckdb, "polars": polars}[name](sources, out, int(least))
