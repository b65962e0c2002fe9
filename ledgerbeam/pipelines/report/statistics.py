"""Statistics as rows of a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ledgerbeam.ledger import MergedStatistic

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
