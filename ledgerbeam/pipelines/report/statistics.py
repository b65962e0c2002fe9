"""Statistics of functions as rows of a table, and the time of workers as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ledgerbeam.ledger import MergedStatistic
from ledgerbeam.ledger.model.rows import PARTS
from ledgerbeam.pipelines.console.run_progress import count, duration

SHOWN_VALUES = 10
"""Maximum number of most frequent values that are shown."""


class StatisticRow(NamedTuple):
    """A row of the table. Only the first row of a statistic has its name."""

    name: str
    kind: str
    tasks: str
    value: str
    bounds: str


def statistic_rows(name: str, merged: MergedStatistic) -> Iterator[StatisticRow]:
    """Yield the rows of one statistic.

    A task has no value if it ran before the function recorded the statistic, or if its records had no values. The
    column of tasks then shows ``3 of 8``.
    """
    tasks = f"{merged.tasks:,}" if merged.tasks == merged.of else f"{merged.tasks:,} of {merged.of:,}"
    head, bounds = (name, merged.kind, tasks), merged.bounds()
    for text in _texts(merged.kind, merged.value()):
        yield StatisticRow(*head, text, bounds)
        head, bounds = ("", "", ""), ""


def _texts(kind: str, value: Any) -> list[str]:
    match kind:
        case "observe":
            shown = ", ".join(f"{part} {_number(value[part])}" for part in ("min", "p50", "mean", "p99", "max"))
            return [f"{value['count']:,} values: {shown}"]
        case "top":
            return [f"{row['estimate']:,}  {_value(row['value'])}" for row in value[:SHOWN_VALUES]] or ["none"]
    return [f"{value:,}"]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.6g}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
