"""Table: Parquet to Parquet, compared with loops over pyarrow, with two workers in place of one, and with peers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.batch_functions import add_length
from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, ROOT, Peer, PeerError, peer_python
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import alternate, best, timed
from ledgerbeam.io import ParquetFormat, publish_bytes
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source, Task
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.sources.kind import TaskReader
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.outcomes import TaskResults

TITLE = "Parquet: maps to Parquet, all in Zstandard at level 3"

TASK_BYTES = 16 * 2**20
ROUNDS = 3
COMMAND_ROUNDS = 2
PEERS = {"duckdb": "DuckDB", "polars": "Polars", "datatrove": "datatrove", "ray": "Ray Data"}


def rows(data: Data) -> Iterator[Row]:
    part, whole, out = data.parquet_part, data.parquet, data.work / "parquet"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        yield from _loops(part, out)
        yield from _commands(whole, out)
        yield from _peers(whole, out)
    finally:
        shutil.rmtree(out)


def _loops(path: Path, out: Path) -> Iterator[Row]:
    """Compare tasks in this process, from reading to publishing, with loops that are written by hand."""
    size, count = path.stat().st_size, _rows_of(path)
    seconds = best(
        {
            "ours": timed(partial(_tasks, path, out, "arrow", "benchmarks.batch_functions:same")),
            "loop": timed(partial(_batch_loop, path, out)),
        },
        ROUNDS,
    )
    work = Work("--as arrow, identity, one process", "B", size)
    yield speed_row(work, seconds["ours"], "iter_batches + write_table", seconds["loop"], 0.8)
    seconds = best(
        {
            "ours": timed(partial(_tasks, path, out, "records", "benchmarks.batch_functions:add_length")),
            "loop": timed(partial(_record_loop, path, out)),
        },
        ROUNDS,
    )
    work = Work("records, a field more, one process", "records", count)
    yield speed_row(work, seconds["ours"], "to_pylist + function + from_pylist", seconds["loop"], 0.8)


def _tasks(path: Path, out: Path, form: Any, function: str) -> None:
    """Do the work of all tasks of a file, without a ledger."""
    found = stat(str(path))
    source, sources = Source(found.url, found.size, found.version), FileSources(form=form)
    reader, encoder = TaskReader(sources), ParquetFormat(schema=_schema(path, function))
    work = MapRecords(function, encoder, form=form)
    cut = sources.kind_of(source).cut(source, TaskLimits(TASK_BYTES))
    for start, stop in cut.spans:
        task = Task(cut.source, start, stop, ((0, 1),))
        done = work(task.replace(records=reader.read(task)))
        if not isinstance(done, Task) or not isinstance(done.records, TaskResults):
            raise TypeError(f"expected the results of {task.name}, found {done}")
        (file,) = encoder.encode(done.records.datasets[""])
        publish_bytes(f"{out}/ours-{start:010d}.parquet", file.data)


def _schema(path: Path, function: str) -> Any:
    schema = pq.read_schema(path)
    return schema.append(pa.field("length", pa.int64())) if function.endswith("add_length") else schema


def _batch_loop(path: Path, out: Path) -> None:
    with _writer(out, pq.read_schema(path)) as writer:
        for batch in pq.ParquetFile(path).iter_batches():
            writer.write_table(pa.Table.from_batches([batch]))


def _record_loop(path: Path, out: Path) -> None:
    schema = _schema(path, "add_length")
    with _writer(out, schema) as writer:
        for batch in pq.ParquetFile(path).iter_batches():
            writer.write_table(pa.Table.from_pylist([add_length(row) for row in batch.to_pylist()], schema=schema))


def _writer(out: Path, schema: Any) -> Any:
    return pq.ParquetWriter(out / "loop.parquet", schema, compression="zstd", compression_level=3)


def _rows_of(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def _commands(path: Path, out: Path) -> Iterator[Row]:
    """Compare two workers with one on a file of 64 row groups, by the time of the whole command."""
    work = Work("map of one file of 64 row groups, two workers, start-up included", "B", path.stat().st_size)
    if len(os.sched_getaffinity(0)) < 2:
        yield absent_row(work.name, ">= 1.8", "a machine with two cores")
        return
    contenders = {str(count): timed(partial(_map, path, out, "clean_batch", count)) for count in (1, 2)}
    seconds = {name: min(runs) for name, runs in alternate(contenders, COMMAND_ROUNDS, warm_up=False).items()}
    yield speed_row(work, seconds["2"], "one worker", seconds["1"], 1.8)


def _peers(path: Path, out: Path) -> Iterator[Row]:
    """Compare with peers that cannot be restarted. All use both cores."""
    python = peer_python()
    size = path.stat().st_size
    work = Work("identity of one file, the whole command", "B", size)
    if python is None:
        yield absent_row(f"{work.name}: {', '.join(PEERS.values())}", "shown", PEERS_REMEDY)
        return
    ours = min(alternate({"": timed(partial(_map, path, out, "same", 2))}, COMMAND_ROUNDS, warm_up=False)[""])
    for name, shown in PEERS.items():
        try:
            theirs = min(_peer(python, name, path, out) for _ in range(COMMAND_ROUNDS))
        except PeerError as error:
            yield absent_row(f"{work.name}: {shown}", "shown", f"{str(error).strip().splitlines()[-1]:.80}")
            continue
        yield _shown(speed_row(work, ours, shown, theirs, 0))


def _peer(python: Path, name: str, path: Path, out: Path) -> float:
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Peer("benchmarks.peer_parquet", python, {"RAY_DEDUP_LOGS": "0"}) as peer:
        run: Callable[[], float] = peer.contender(name, path=str(path), out=str(folder))
        return run()


def _shown(row: Row) -> Row:
    """Return a row without a target, for a comparison with programs that do less."""
    return Row(row.work, row.ours, row.other, row.ratio, "shown", "ok")


def _map(path: Path, out: Path, function: str, workers: int) -> None:
    for name in ("out", "ledger"):
        shutil.rmtree(out / name, ignore_errors=True)
    command = [sys.executable, "-m", "ledgerbeam", "map", f"benchmarks.batch_functions:{function}", str(path)]
    options = [f"--output={out}/out", f"--ledger={out}/ledger", f"--workers={workers}", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *options, "--to=parquet", "--as=arrow"],
        check=False,
        cwd=out,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
