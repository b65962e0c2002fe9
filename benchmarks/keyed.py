"""Table: dedup and join of JSONL, beside DuckDB with the same memory, and Polars in memory."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks.data import GIGABYTE, Data
from benchmarks.measured import Measured, measure
from benchmarks.peer import PEERS_REMEDY, peer_python
from benchmarks.peer_sorts import FIELD, write_sources
from benchmarks.table import Row, absent_row, most_row

TITLE = "Dedup by a text and join by a key: JSONL, two processes, 1 GB of memory, start-up included"

SIZE = 2.5 * GIGABYTE
MEMORY = 1_000_000_000
LIMIT = 1.0
"""Greatest ratio of the wall time to that of DuckDB, which respects the memory limit."""

BARE_LIMIT = 1.3
"""Greatest ratio of the CPU time to that of a bare loop of two processes with orjson."""

_NAMES = {"duckdb": "DuckDB", "polars": "Polars", "bare": "bare loop"}
_REPEATED = 50_000  # first lines of each file that occur again at its end


def rows(data: Data) -> Iterator[Row]:
    size = int(SIZE * data.factor)
    python = peer_python()
    folder = data.work / "keyed"
    shutil.rmtree(folder, ignore_errors=True)
    if python:
        _write_both_sides(folder, size)
    for work, ours in (
        ("dedup", ["{}/left/*.jsonl", "--by", "text"]),
        ("join", ["{0}/left/*.jsonl", "{0}/right.jsonl"]),
    ):
        label = f"{work} of {size / GIGABYTE:g} GB, vs DuckDB"
        if not python:
            yield absent_row(label, f"<= {LIMIT:g} x", PEERS_REMEDY)
            continue
        command = [sys.executable, "-m", "ledgerbeam", work, *(word.format(folder) for word in ours)]
        command += [] if work == "dedup" else ["--by", FIELD]
        places = ("--output", f"{folder}/ours", "--ledger", f"{folder}/ledger", "--workers=2", "--quiet")
        found = {"ours": _run(folder, "ours", [*command, "--to", "jsonl", *places])}
        for name in _NAMES:
            peer = [
                sys.executable if name == "bare" else str(python),
                "-m",
                "benchmarks.peer_keyed",
                name,
                work,
                str(folder),
                f"{folder}/{name}",
                str(MEMORY),
            ]
            found[name] = _run(folder, name, peer)
        _check(folder)
        yield most_row(
            label,
            found["ours"].wall / found["duckdb"].wall,
            LIMIT,
            " x",
            ours=_shown(found["ours"]),
            other=", ".join(f"{_NAMES[name]} {_shown(found[name])}" for name in _NAMES),
        )
        yield most_row(
            f"{label.partition(',')[0]}, CPU time, vs a bare loop of orjson",
            found["ours"].cpu / found["bare"].cpu,
            BARE_LIMIT,
            " x",
            ours=_shown(found["ours"]),
            other=_shown(found["bare"]),
        )
        for name in ("ledger", *found):
            shutil.rmtree(folder / name)
    shutil.rmtree(folder, ignore_errors=True)


def _write_both_sides(folder: Path, size: int) -> None:
    """Write the left side with repeated lines, and a right side with the keys of half of its files."""
    write_sources(folder / "left", size)
    files = sorted((folder / "left").iterdir())
    with (folder / "right.jsonl").open("wb") as right:
        for path in files[: len(files) // 2]:
            with path.open("rb") as lines:
                # The right side has a key and a text of another name.
                right.writelines(b"{" + line.partition(b",")[2].replace(b'"text":', b'"other":', 1) for line in lines)
    for path in files:
        with path.open("rb") as lines:
            repeated = list(islice(lines, _REPEATED))
        with path.open("ab") as end:
            end.writelines(repeated)


def _run(folder: Path, name: str, command: list[str]) -> Measured:
    os.sync()  # what the one before has written is not written while this one is timed
    return measure(command, folder / name)


def _check(folder: Path) -> None:
    """Raise RuntimeError if the programs have not written the same number of lines."""
    counts = {
        name: sum(path.read_bytes().count(b"\n") for path in (folder / name).glob("*.jsonl"))
        for name in ("ours", *_NAMES)
    }
    if len(set(counts.values())) > 1:
        raise RuntimeError(f"{folder}: expected the same number of lines from each program, found {counts}")


def _shown(found: Measured) -> str:
    return f"{found.wall:.1f} s, {found.cpu:.1f} CPU s, {found.memory / 1e6:.0f} MB a process"
