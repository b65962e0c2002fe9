"""Time of the workers of runs by activity, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledgerbeam.ledger.model.runs import PARTS
from ledgerbeam.pipelines.console.run_progress import count, duration


def describe_time(found: Mapping[str, Any]) -> str:
    """Return one line with the shares of activities in the time of a run's workers, in the order of the work."""
    seconds, whole = found["seconds"], sum(found["seconds"].values())
    shares = ", ".join(f"{part} {_share(seconds[part], whole)}" for part in PARTS if part in seconds)
    return f"{shares}; {duration(whole)} {_of_workers(found)}"


def time_table(runs: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return the heads and rows of a table of the runs whose time is known."""
    rows = []
    for run in runs:
        if not (found := run["time"]):
            continue
        seconds, cpu = found["seconds"], found["cpu"]
        whole = sum(seconds.values())
        parts = [f"{seconds[part]:,.1f} s, {_share(seconds[part], whole)}" if part in seconds else "" for part in PARTS]
        workers = f"{found['workers']:,}" if found["workers"] else ""
        used = f"{sum(cpu.values()):,.1f} s" if cpu else ""
        rows.append([run["id"], workers, *parts, f"{whole:,.1f} s", used])
    numbers = [(name, "number") for name in ("workers", *PARTS, "all", "processors")]
    return [("run", ""), *numbers], rows


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def _of_workers(found: Mapping[str, Any]) -> str:
    return f"of {count(found['workers'], 'worker')}" if found["workers"] else "of all workers"
