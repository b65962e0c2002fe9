"""Where the time of the workers of runs went, as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledgerbeam.ledger.model.runs import PARTS
from ledgerbeam.pipelines.console.run_progress import count, duration


def describe_time(found: Mapping[str, Any]) -> str:
    """Return in one line where the time of a run's workers went, in the order of the work."""
    seconds, whole = found["seconds"], sum(found["seconds"].values())
    shares = ", ".join(f"{part} {_share(seconds[part], whole)}" for part in PARTS if part in seconds)
    return f"{shares}; {duration(whole)} {_of_workers(found)}"


def time_table(runs: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return a table of runs, those whose time is known: its heads, and its rows."""
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
