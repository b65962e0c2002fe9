"""Measures a job of many packed sources on Prism, which gets all sources at once, not in waves like the local runner.

    python -m benchmarks scale-prism [--sources N ...] [--json FILE]

Prism comes from `make servers`. docs/scale-measurements.md has the results. Ten million sources take half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer import ROOT
from benchmarks.scale_runs import SAMPLE_SECONDS, Shape, disk_bytes, tree, write_sources

DEFAULT = (100_000, 1_000_000)
PRISM = ROOT / ".cache" / "bin" / "prism"
_RECORDS = 10
_PACK = 16 << 20


def main(argv: Sequence[str]) -> int:
    """Print the measurements. Return 0, or 2 if Prism is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale-prism", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sources", type=int, nargs="+", default=DEFAULT, metavar="N", help="of 1 kB, in packs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    args = parser.parse_args(argv)
    if not PRISM.exists():
        parser.error(f"{PRISM} is not there: run `make servers`")
    work = ROOT / ".cache" / "bench" / "scale-prism"
    rows: list[dict[str, Any]] = []
    print(
        f"{'sources':>11}  {'':<6}{'tasks':>7}{'s':>8}{'CPU s':>8}{'launcher MB':>13}{'private':>9}{'Prism MB':>10}"
        f"{'ledger MB':>11}{'load':>6}"
    )
    for count in args.sources:
        shutil.rmtree(work, ignore_errors=True)
        try:
            write_sources(work / "in", Shape(count, 1, _RECORDS))
            for what in ("clean", "rerun"):
                rows.append({"sources": count, "what": what, **_run(work), "load": os.getloadavg()[0]})
                print(_line(rows[-1]), flush=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _line(row: dict[str, Any]) -> str:
    launcher, private, prism, ledger = (row[name] / 1e6 for name in ("launcher", "private", "prism", "ledger"))
    return (
        f"{row['sources']:>11,}  {row['what']:<6}{row['tasks']:>7,}{row['seconds']:>8.0f}{row['cpu']:>8.0f}"
        f"{launcher:>13.0f}{private:>9.0f}{prism:>10.0f}{ledger:>11.1f}{row['load']:>6.1f}"
    )


def _run(folder: Path) -> dict[str, Any]:
    """Run the job to its end, and return its cost.

    Raises:
        RuntimeError: The job ended with an error.
    """
    ledger = folder / "ledger"
    words = [sys.executable, "-m", "ledgerbeam", "convert", f"{folder}/in/**/*.jsonl", "--output", f"{folder}/out"]
    words += ["--to=jsonl", "--ledger", str(ledger), f"--pack={_PACK}", "--json"]
    words += ["--", "--runner=PrismRunner", f"--prism_location={PRISM}"]
    began, cpu = time.perf_counter(), _cpu()
    process = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    memory = {"launcher": 0, "private": 0, "prism": 0}
    watching = threading.Thread(target=_watch, args=(process, memory))
    watching.start()
    out, err = process.communicate()
    watching.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{err}")
    took = {"seconds": time.perf_counter() - began, "cpu": _cpu() - cpu}
    return {"tasks": json.loads(out)["tasks"]["done"], **took, **memory, "ledger": disk_bytes(ledger)}


def _watch(process: subprocess.Popen[str], memory: dict[str, int]) -> None:
    """Record the peak memory of the launcher, which contains the workers, and of Prism."""
    while process.poll() is None:
        for pid in tree(process.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            except OSError:  # it has ended
                continue
            found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            if pid == process.pid:
                _note(memory, "launcher", found, "VmHWM")
                _note(memory, "private", found, "RssAnon")
            elif found["Name"].strip().startswith("prism"):
                _note(memory, "prism", found, "VmHWM")
        time.sleep(SAMPLE_SECONDS)


def _note(memory: dict[str, int], kind: str, found: dict[str, str], what: str) -> None:
    if what in found:
        memory[kind] = max(memory[kind], int(found[what].split()[0]) * 1024)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
