"""Table: a sort of a corpus by a text, compared with other tools that have the same memory."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from benchmarks.data import GIGABYTE, Data
from benchmarks.measured import Measured, measure
from benchmarks.peer import PEERS_REMEDY, peer_python
from benchmarks.peer_sorts import FIELD, KEY_FIELD, write_sources
from benchmarks.table import Row, absent_row, most_row

TITLE = "Sort: JSONL in 4 files by a random text, two processes, 1 GB of memory, start-up included"

SIZE = 5 * GIGABYTE
MEMORY = 1_000_000_000
LIMIT = 1.0
"""Greatest ratio of the wall time to that of the fastest tool that respects the memory limit."""

BYTES_LIMIT = 2.1
"""Greatest ratio of bytes written (run files, shards and indexes) to bytes of the corpus: two passes, and a little."""

_BLOCK_BYTES = 1 << 20
_KEEP = ("duckdb",)
_BESIDE = ("polars", "ray")
_NAMES = {"gnu": "GNU sort", "duckdb": "DuckDB", "polars": "Polars", "ray": "Ray Data"}


def rows(data: Data) -> Iterator[Row]:
    size = int(SIZE * data.factor)
    label = f"sort of {size / GIGABYTE:g} GB"
    folder = data.work / "sort"
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder / "in", size)
    found = {"gnu": _run(folder, "gnu", _gnu(folder))}
    if python := peer_python():
        for program in (*_KEEP, *_BESIDE):
            command = [str(python), "-m", "benchmarks.peer_sorts", program, f"{folder}/in", f"{folder}/{program}"]
            found[program] = _run(folder, program, [*command, str(MEMORY)])
    ours = _run(folder, "ours", _ours(folder))
    _check(folder, found)
    keep = {program: one for program, one in found.items() if program not in _BESIDE}
    best = min(keep, key=lambda program: keep[program].wall)
    yield most_row(
        f"{label}, vs the fastest that keeps to the memory",
        ours.wall / keep[best].wall,
        LIMIT,
        " x",
        ours=_shown(ours),
        other=f"{_NAMES[best]}; " + ", ".join(f"{_NAMES[name]} {_shown(one)}" for name, one in found.items()),
    )
    if not python:
        yield absent_row(f"{label}, vs DuckDB, Polars and Ray Data", f"<= {LIMIT:g} x", PEERS_REMEDY)
    written = sum(path.stat().st_size for path in (folder / "ours").rglob("*") if path.is_file())
    corpus = sum(path.stat().st_size for path in (folder / "in").iterdir())
    yield most_row(f"{label}, bytes written for each of the corpus", written / corpus, BYTES_LIMIT, " x")
    shutil.rmtree(folder)


def _ours(folder: Path) -> list[str]:
    command = [sys.executable, "-m", "ledgerbeam", "sort", f"{folder}/in/*.jsonl", "--by", FIELD, "--to", "jsonl"]
    # The run files stay, to be counted.
    places = ("--output", f"{folder}/ours", "--ledger", f"{folder}/ledger", "--workers=2", "--keep-runs", "--quiet")
    return [*command, *places]


def _gnu(folder: Path) -> list[str]:
    """Return the command of GNU sort. It takes the text between two quotes as the key."""
    (folder / "gnu").mkdir()
    sources = sorted(str(path) for path in (folder / "in").iterdir())
    key = ("-t", '"', "-k", f"{KEY_FIELD},{KEY_FIELD}", "--stable")
    bounds = ("-S", str(MEMORY // 2**10) + "K", "--parallel=2", "-T", str(folder))
    return ["sort", *key, *bounds, "-o", f"{folder}/gnu/sorted.jsonl", *sources]


def _run(folder: Path, name: str, command: list[str]) -> Measured:
    os.sync()  # what the one before has written is not written while this one is timed
    return measure(command, folder / name, environment={"LC_ALL": "C"})


def _check(folder: Path, programs: Mapping[str, Measured]) -> None:
    """Raise RuntimeError if the programs have not written the same lines in the same order."""
    ours = _digest(folder / "ours")
    for program in programs:
        if _digest(folder / program) != ours:
            raise RuntimeError(
                f"{folder / program}: expected the lines of {folder / 'ours'} in their order, found others"
            )


def _digest(folder: Path) -> str:
    """Return a hash of the lines of a folder, in the order of its files."""
    found = blake2b()
    for path in sorted(path for path in folder.glob("*.json*") if path.suffix in (".json", ".jsonl")):
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                found.update(block)
    return found.hexdigest()


def _shown(found: Measured) -> str:
    return f"{found.wall:.1f} s, {found.cpu:.1f} CPU s, {found.memory / 1e6:.0f} MB a process"
