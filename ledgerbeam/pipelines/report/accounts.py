"""Record counts, statistics of functions, and times of workers, as lines and table rows for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.ledger import LedgerStore, MergedStatistic
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import PARTS
from ledgerbeam.ledger.summaries import function_summaries
from ledgerbeam.pipelines.console.run_progress import count, duration

MAIN_ROUTE = "(no route)"  # label of the route without a name

SHOWN_NAMES = 10
SHOWN_VALUES = 10  # maximum number of most frequent values that are shown


def shown_records(counts: RecordCounts) -> dict[str, Any]:
    """Return `RecordCounts.as_dict` with secrets removed from the names."""
    shown = counts.as_dict()
    return {name: shown_names(value) if isinstance(value, Mapping) else value for name, value in shown.items()}


def account_lines(counts: RecordCounts) -> list[tuple[str, str]]:
    """Return record counts as names and values. If all records were written without a route, return one line."""
    if counts.is_plain:
        return [("records", f"{counts.records:,}")]
    dropped, rejected = (sum(part.values()) for part in (counts.dropped, counts.rejected))
    became = f"{counts.read:,} read, {counts.kept:,} kept, {dropped:,} dropped, {rejected:,} rejected"
    lines = [("records", f"{became}; {counts.records:,} written")]
    for name, part in (("dropped", counts.dropped), ("rejected", counts.rejected), ("routes", _routes(counts))):
        if part:
            lines.append((f"  {name}", _most_text(part)))
    return lines


def function_values(store: LedgerStore) -> list[dict[str, Any]]:
    """Return `function_summaries` without secrets; an empty list for a job of one function.

    For a job of several functions this reads the statistics of every task.
    """
    job = store.job()
    rows = [] if job is None or "functions" not in job.parameters else function_summaries(store)
    return [{**row, **{end: shown_names(row[end]) for end in ("dropped", "rejected")}} for row in rows]


def function_lines(function: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the counts of one of several functions, as names and values; see `function_values`."""
    ends = {outcome: function[outcome] for outcome in ("dropped", "rejected")}
    became = ", ".join(f"{sum(reasons.values()):,} {outcome}" for outcome, reasons in ends.items())
    label = printable(without_secrets(function["function"]))
    yield f"in {label}", f"{function['received']:,} received, {function['returned']:,} returned, {became}"
    yield from ((f"  {outcome}", _most_text(reasons)) for outcome, reasons in ends.items() if reasons)


def _most_text(part: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(one)} {number:,}" for one, number in _most_first(shown_names(part)))


def account_table(counts: RecordCounts) -> list[tuple[str, str, int]]:
    """Return rows of outcome, reason or route, and number of records. In each outcome, the largest number is first."""
    rows = [("read", "", counts.read), ("kept", "", counts.kept)]
    written = _routes(counts) or {"": counts.records}
    for what, part in (("dropped", counts.dropped), ("rejected", counts.rejected), ("written", written)):
        rows += [(what, name, number) for name, number in _most_first(shown_names(part))]
    return rows


def _routes(counts: RecordCounts) -> Mapping[str, int]:
    """Return the number of records written by route; empty if only the route without a name was written."""
    if set(counts.written) <= {""}:
        return {}
    return {name or MAIN_ROUTE: number for name, number in counts.written.items()}


def shown_names(part: Mapping[str, int]) -> dict[str, int]:
    """Return counts by name, with secrets removed from the names, sorted."""
    shown: Counter[str] = Counter()
    for name, number in part.items():
        shown[without_secrets(name)] += number
    return dict(sorted(shown.items()))


def _most_first(part: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the `SHOWN_NAMES` largest entries, largest first, and one entry for the sum of the others."""
    ordered = sorted(part.items(), key=lambda item: (-item[1], item[0]))
    rest = ordered[SHOWN_NAMES:]
    others = [(f"{len(rest):,} more", sum(number for _, number in rest))] if rest else []
    return [*ordered[:SHOWN_NAMES], *others]


def statistic_rows(name: str, merged: MergedStatistic) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the rows of one statistic: name, kind, tasks, value and bounds. Only the first row has the name.

    A task has no value if it ran before the function recorded the statistic, or if its records had no values. The
    column of tasks then shows ``3 of 8``.
    """
    tasks = f"{merged.tasks:,}" if merged.tasks == merged.of else f"{merged.tasks:,} of {merged.of:,}"
    head, bounds = (name, merged.kind, tasks), merged.bounds()
    for text in _texts(merged.kind, merged.value()):
        yield (*head, text, bounds)
        head, bounds = ("", "", ""), ""


def _texts(kind: str, value: Any) -> list[str]:
    match kind:
        case "observe":
            shown = ", ".join(f"{part} {_number(value[part])}" for part in ("min", "p50", "mean", "p99", "max"))
            return [f"{value['count']:,} values: {shown}"]
        case "top":
            most = [(row["estimate"], row["value"]) for row in value[:SHOWN_VALUES]]
            return [f"{number:,}  {one if isinstance(one, str) else json.dumps(one)}" for number, one in most] or [
                "none"
            ]
    return [f"{value:,}"]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.6g}"


def describe_time(found: Mapping[str, Any]) -> str:
    """Return one line with the shares of activities in the time of a run's workers, in the order of the work."""
    seconds, whole = found["seconds"], sum(found["seconds"].values())
    shares = ", ".join(f"{part} {_share(seconds[part], whole)}" for part in PARTS if part in seconds)
    workers = f"of {count(found['workers'], 'worker')}" if found["workers"] else "of all workers"
    return f"{shares}; {duration(whole)} {workers}"


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
