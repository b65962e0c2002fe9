"""Table: steps of datatrove, unchanged, in a job over one file, beside datatrove's local executor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.blocks_steps import NAMES
from benchmarks.data import GIGABYTE, Data
from benchmarks.measured import Measured, measure
from benchmarks.peer import ROOT
from benchmarks.table import Row, Work, absent_row, speed_row
from tests.adapters.documents import pages

TITLE = "Blocks: 9 filters, 3 formatters and Trafilatura of datatrove over pages in one JSONL file"

PYTHON = ROOT / ".cache" / "blocks" / "bin" / "python"
REMEDY = "run make blocks"
SCALE_TARGET, PEER_TARGET = 1.8, 1.5
DIFFERENT = 20_000
"""Number of different pages. The file repeats them under other IDs."""


def rows(data: Data) -> Iterator[Row]:
    if not PYTHON.exists():
        yield absent_row("two workers, vs one", f">= {SCALE_TARGET:g}", REMEDY)
        return
    folder = data.work / "blocks"
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "in" / "pages.jsonl"
    size = GIGABYTE if data.full else data.count(GIGABYTE // 10)
    count = _write(source, size, data.count(DIFFERENT))
    one, two = (_job(source, folder, workers) for workers in (1, 2))
    if _files(folder / "ours-1") != _files(folder / "ours-2"):
        raise RuntimeError(f"{folder}: the outputs of one worker and of two differ")
    work = Work(f"a job of {len(NAMES)} functions over {size / 1e6:.0f} MB, two workers", "pages", count)
    note = f", {one.wall:.0f} s; ours {two.wall:.0f} s wall, {two.cpu:.0f} s CPU, {two.memory / 1e6:.0f} MB"
    yield speed_row(work, two.wall, "one worker", one.wall, SCALE_TARGET, note=note)
    theirs = measure([str(PYTHON), "-m", "benchmarks.blocks_steps", str(source), f"{folder}/theirs"], folder / "theirs")
    ours, same = _records(folder / "ours-2"), _records(folder / "theirs")
    if ours != same:
        first = next((key for key in ours | same if ours.get(key) != same.get(key)), "")
        raise RuntimeError(f"{folder}: {len(ours)} records, datatrove {len(same)}; they differ at {first}")
    note = f" in two tasks, {theirs.wall:.0f} s wall, {theirs.cpu:.0f} s CPU; {len(ours):,} equal records"
    yield speed_row(work, two.wall, "datatrove", theirs.wall, PEER_TARGET, note=note)
    shutil.rmtree(folder)


def _write(path: Path, size: int, different: int) -> int:
    """Write pages up to a size, and return their number."""
    path.parent.mkdir(parents=True)
    known = pages(different)
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            page = {
                **known[count % different],
                "id": f"page-{count}",
                "url": f"https://www.site{count % 40}.com/{count}",
            }
            written += file.write(json.dumps(page) + "\n")
            count += 1
    return count


def _job(source: Path, folder: Path, workers: int) -> Measured:
    first, *others = (f"benchmarks.blocks_steps:{name}" for name in NAMES)
    then = [word for name in others for word in ("--then", name)]
    output = folder / f"ours-{workers}"
    task = min(16 << 20, max(1 << 20, source.stat().st_size // 16))  # also a small file has several tasks
    chosen = ("--output", str(output), "--to", "jsonl", "--ledger", f"{output}.ledger", "--workers", str(workers))
    words = ["map", first, *then, str(source), *chosen, "--task-bytes", str(task), "--quiet"]
    return measure([str(PYTHON), "-m", "ledgerbeam", *words], output)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def _records(folder: Path) -> dict[str, Any]:
    """Return the records by ID, with metadata as keys, but without the path that datatrove's reader adds."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.open(encoding="utf-8"):
            record = json.loads(line)
            found[record["id"]] = {**record.pop("metadata", {}), **record}
            found[record["id"]].pop("file_path", None)
    return found
