"""Table: a map of Arrow batches over Parquet, beside DuckDB and Polars: a filter of rows and a new column."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from benchmarks.data import GIGABYTE, Data
from benchmarks.measured import Measured, best_of
from benchmarks.peer import PEERS_REMEDY, peer_python
from benchmarks.peer_sorts import write_sources
from benchmarks.table import Row, absent_row, most_row

TITLE = "Maps of Arrow batches: Parquet in 4 files, half of the rows and a new column, start-up included"

SIZE = 5 * GIGABYTE
LIMIT = 1.2
"""Wall time for each of the faster peer."""

BARE_LIMIT = 1.3
"""CPU time for each of the bare loop."""

ROUNDS = 2
_NAMES = {"duckdb": "DuckDB", "polars": "Polars"}
_GROUP_ROWS = 32_768


def rows(data: Data) -> Iterator[Row]:
    size = int(SIZE * data.factor)
    label = f"map of Parquet of {size / GIGABYTE:g} GB of JSONL as Arrow batches"
    python = peer_python()
    if not python:
        yield absent_row(f"{label}, vs DuckDB and Polars", f"<= {LIMIT:g} x", PEERS_REMEDY)
        return
    folder = data.work / "columns"
    shutil.rmtree(folder, ignore_errors=True)
    write_parquet(folder, size)
    commands = {"ours": _ours(folder)} | {
        name: [str(python), "-m", "benchmarks.peer_columns", name, f"{folder}/in", f"{folder}/{name}"]
        for name in _NAMES
    }
    commands["bare"] = [sys.executable, "-m", "benchmarks.peer_columns", "bare", f"{folder}/in", f"{folder}/bare"]
    best = best_of(folder, commands, ROUNDS)
    _check(folder)
    shutil.rmtree(folder)
    fastest = min(_NAMES, key=lambda name: best[name].wall)
    yield most_row(
        f"{label}, vs the faster peer",
        best["ours"].wall / best[fastest].wall,
        LIMIT,
        " x",
        ours=shown(best["ours"]),
        other=f"{_NAMES[fastest]}; " + ", ".join(f"{_NAMES[name]} {shown(best[name])}" for name in _NAMES),
    )
    yield most_row(
        f"{label}, CPU time, vs a bare loop of pyarrow",
        best["ours"].cpu / best["bare"].cpu,
        BARE_LIMIT,
        " x",
        ours=shown(best["ours"]),
        other=f"bare loop {shown(best['bare'])}",
    )


def write_parquet(folder: Path, size: int, *, keep_lines: bool = False) -> None:
    """Write JSON lines, and the same rows as Parquet."""
    write_sources(folder / "lines", size)
    (folder / "in").mkdir()
    for path in sorted((folder / "lines").iterdir()):
        with pq.ParquetWriter(folder / "in" / f"{path.stem}.parquet", _schema(), compression="zstd") as writer:
            for batch in pj.open_json(path):
                writer.write_batch(batch.cast(_schema()), row_group_size=_GROUP_ROWS)
    if not keep_lines:
        shutil.rmtree(folder / "lines")


def _schema() -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("key", pa.string()), ("text", pa.string())])


def _ours(folder: Path) -> list[str]:
    work = [
        "ledgerbeam",
        "map",
        "benchmarks.batch_functions:add_lengths",
        f"{folder}/in/*.parquet",
        "--as",
        "arrow",
        "--to",
        "parquet",
    ]
    places = ("--output", f"{folder}/ours", "--ledger", f"{folder}/ours-ledger", "--workers=2", "--quiet")
    return [sys.executable, "-m", *work, *places]


def _check(folder: Path) -> None:
    """Refuse programs that have not written the same rows."""
    sums = {name: _sums(folder / name) for name in ("ours", *_NAMES, "bare")}
    for name, found in sums.items():
        if found != sums["ours"]:
            raise RuntimeError(f"{folder / name}: expected {sums['ours']} (rows, sums of numbers), found {found}")


def _sums(folder: Path) -> tuple[int, int, int]:
    count = numbers = lengths = 0
    for path in folder.rglob("*.parquet"):
        for batch in pq.ParquetFile(path).iter_batches(columns=["id", "n"]):
            count += len(batch)
            numbers += sum(batch["id"].to_pylist())
            lengths += sum(batch["n"].to_pylist())
    return count, numbers, lengths


def shown(found: Measured) -> str:
    """Return times and memory as text."""
    return f"{found.wall:.1f} s, {found.cpu:.1f} CPU s, {found.memory / 1e6:.0f} MB a process"
