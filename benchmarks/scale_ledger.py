"""Measures how long a host without a copy takes to open a large remote ledger, before and after compaction.

    python -m benchmarks scale-ledger [--sources N ...] [--tasks N] [--segments-only] [--json FILE]

docs/scale-measurements.md has the results. A million sources need 4 GB of disk during the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peer import ROOT, Peer

DEFAULT = (10_000, 100_000, 1_000_000)


def main(argv: Sequence[str]) -> int:
    """Print the measurements. Return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale-ledger", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sources", type=int, nargs="+", default=DEFAULT, metavar="N", help="all of them done")
    parser.add_argument("--tasks", type=int, default=1, metavar="N", help="of each source, 1 if not given")
    parser.add_argument("--segments-only", action="store_true", help="without a compaction")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    args = parser.parse_args(argv)
    work = ROOT / ".cache" / "bench" / "scale"
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    print(
        f"{'sources':>11}{'tasks':>13}  {'':<20}{'s':>8}{'CPU s':>8}{'us each':>9}{'MB':>7}{'written GB':>12}"
        f"{'objects GB':>12}{'sidecar GB':>12}{'load':>6}"
    )
    for count in args.sources:
        with TemporaryDirectory(dir=work) as folder:
            for what, row in _measured(Path(folder), count, args.tasks, with_snapshot=not args.segments_only):
                entries = {"sources": count, "tasks": count * args.tasks}
                rows.append({**entries, "what": what, **row, "load": os.getloadavg()[0]})
                print(_line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _line(row: Mapping[str, Any]) -> str:
    size, sidecar = (f"{row[name] / 1e9:>12.2f}" if name in row else f"{'':>12}" for name in ("bytes", "sidecar"))
    return (
        f"{row['sources']:>11,}{row['tasks']:>13,}  {row['what']:<20}{row['seconds']:>8.1f}{row['cpu']:>8.1f}"
        f"{1e6 * row['cpu'] / row['tasks']:>9.1f}{row['memory'] / 1e6:>7.0f}{row['written'] / 1e9:>12.2f}"
        f"{size}{sidecar}{row['load']:>6.1f}"
    )


def _measured(folder: Path, count: int, tasks: int, *, with_snapshot: bool) -> Iterator[tuple[str, dict[str, float]]]:
    ledger, host = str(folder / "ledger"), str(folder / "host")
    with Peer("benchmarks.fold_work") as maker:
        size = maker.ask("make_ledger", ledger=ledger, sidecar=str(folder / "maker"), count=count, tasks=tasks)
    yield "fold segments", {**_ask("fold", ledger=ledger, sidecar=host, done=count), "bytes": size}
    yield "look again", _ask("again", ledger=ledger, sidecar=host, done=count)
    if with_snapshot:
        yield "compact", _ask("compact", ledger=ledger, sidecar=host)
        shutil.rmtree(host)
        yield "fold the snapshot", _ask("fold", ledger=ledger, sidecar=host, done=count)


def _ask(work: str, **arguments: object) -> dict[str, float]:
    """Do some work in a separate process, so that its memory is measured alone. Return the result."""
    with Peer("benchmarks.fold_work") as process:
        return dict(process.ask(work, **arguments))
