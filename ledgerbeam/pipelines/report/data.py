"""What the report of a ledger shows: sums and samples of bounded size, whatever the job's."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import LedgerStore, merged_statistics
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, FailureRow, HistoryRow, SourceRow
from ledgerbeam.pipelines.console import counting
from ledgerbeam.pipelines.report.failures import grouped_failures
from ledgerbeam.pipelines.report.progress import JobProgress, job_progress, shown_runs
from ledgerbeam.pipelines.report.run_info import DONE, TASKS_FAILED, Work
from ledgerbeam.pipelines.report.statistics import StatisticRow, statistic_rows

__all__ = ["DurationBin", "FailureKind", "OpenTasks", "ReportData", "Step", "report_data"]

STEPS = 60
SLOWEST = 15
SHOWN_RUNS = 30
SHOWN_KINDS = 12
LEAD_SECONDS = 60  # of a run before its first task ends
DURATIONS_A_BIN = 4  # of eight to a doubling

_STEP_SECONDS = tuple(
    unit * n
    for unit, numbers in ((1, (10, 20, 30)), (60, (1, 2, 5, 10, 15, 30)), (3600, (1, 2, 3, 6, 12)))
    for n in numbers
)
_DAY = 86_400


@dataclass(frozen=True)
class Step:
    """What was recorded in one step of time.

    Attributes:
        begin: Seconds since 1970 UTC.
        end: Seconds since 1970 UTC, later than `begin`.
        work: What was recorded in it.
        failures: Failures that were recorded in it.
        tasks_so_far: Tasks recorded up to its end.
    """

    begin: float
    end: float
    work: Work
    failures: int
    tasks_so_far: int

    def rate(self, number: int) -> float:
        """Return how many a second `number` in this step is."""
        return number / (self.end - self.begin)


@dataclass(frozen=True)
class DurationBin:
    """Tasks that took from `low` to `high` seconds."""

    low: float
    high: float
    tasks: int


@dataclass(frozen=True)
class FailureKind:
    """Failures of one reason: number of tasks and sources, and the error of one of them."""

    reason: str
    tasks: int
    sources: int
    example: str


@dataclass
class OpenTasks:
    """An estimate of the open tasks of sources, by their sizes.

    Attributes:
        task_size: Size of a task, in what the sizes of sources are counted in; None if it is not known.
        open: Open tasks of sources without a failure, at least one each.
        in_failed: Open tasks of sources with failures, including those that failed.
    """

    task_size: int | None
    open: int = 0
    in_failed: int = 0

    def add(self, row: SourceRow) -> None:
        """Count a source."""
        expected = -(-row.size // self.task_size) if self.task_size and not row.members else 1
        if row.state == "open":
            self.open += max(expected - row.totals.tasks, 1)
        elif row.state == "failed":
            self.in_failed += max(expected - row.totals.tasks, 1)

    def without(self, failed: int, *, has_ended: bool = False) -> int:
        """Return how many tasks are open and have not failed.

        Args:
            failed: How many have failed.
            has_ended: Whether the last run reached its end: then all open tasks of sources with failures have failed.
        """
        return self.open + (0 if has_ended else max(self.in_failed - failed, 0))


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows.

    Attributes:
        ledger: Its URL.
        status: What `LedgerStore.status` gave.
        records: What became of all records.
        open_tasks: About how many tasks are neither done nor failed.
        progress: Rates and time left.
        steps: Course of the job, in time order, without gaps; the first begins with the first run, the last ends with
            the last.
        step_seconds: Length of the other steps.
        durations: Task durations, shortest first, without gaps.
        quantiles: Durations in seconds below which half, 95 % and 99 % of tasks are, and the longest, by their name.
        kinds: Failures by reason, most first; the last may stand for all further reasons.
        slowest: Sources whose tasks took longest, added up, slowest first.
        runs: The newest runs, newest first, as `shown_runs` returns them.
        runs_left_out: Number of older runs.
        statistics: What the functions observed, as rows of a table.
        statistics_error: Why there are none, if they do not read.
    """

    ledger: str
    status: Mapping[str, Any]
    records: RecordCounts
    open_tasks: int
    progress: JobProgress
    steps: Sequence[Step]
    step_seconds: int
    durations: Sequence[DurationBin]
    quantiles: Mapping[str, float]
    kinds: Sequence[FailureKind]
    slowest: Sequence[SourceRow]
    runs: Sequence[Mapping[str, Any]]
    runs_left_out: int
    statistics: Sequence[StatisticRow] = ()
    statistics_error: str = ""


def report_data(store: LedgerStore) -> ReportData:
    """Read from a ledger what its report shows."""
    status, runs, durations = store.status(), shown_runs(store), store.durations()
    history = store.history()
    step_seconds = _step_seconds(history)
    statistics, statistics_error = _statistics(store)
    owed = OpenTasks(_task_size(status))
    with counting("source") as advance:
        slowest = heapq.nlargest(SLOWEST, _counted(store.sources(), advance, owed), key=_task_time)
    return ReportData(
        ledger=store.url,
        status=status,
        records=RecordCounts(**status["records"]),
        open_tasks=owed.without(status["tasks"]["failed"], has_ended=_has_ended(runs)),
        progress=job_progress(store, status, runs),
        steps=_steps(history, step_seconds, runs),
        step_seconds=step_seconds,
        durations=_duration_bins(durations),
        quantiles=_quantiles(durations),
        kinds=_kinds(store.failures(), store.url),
        slowest=[row for row in slowest if row.totals.milliseconds],
        runs=runs[: -SHOWN_RUNS - 1 : -1],
        runs_left_out=max(0, len(runs) - SHOWN_RUNS),
        statistics=statistics,
        statistics_error=statistics_error,
    )


def _statistics(store: LedgerStore) -> tuple[list[StatisticRow], str]:
    """Return what functions observed; a report without that is better than none."""
    try:
        found = merged_statistics(store)
    except LedgerError as error:
        return [], str(error)
    return [row for name, merged in found.items() for row in statistic_rows(name, merged)], ""


def _counted(rows: Iterable[SourceRow], advance: Any, owed: OpenTasks) -> Iterable[SourceRow]:
    for row in rows:
        advance(1, 0)
        owed.add(row)
        yield row


def _task_size(status: Mapping[str, Any]) -> int | None:
    """Return the size of a task: of a graph, whose sources are counted in records, only if it is in records too."""
    parameters = (status["job"] or {}).get("parameters", {})
    found = parameters.get("task_records") or (None if "graph" in parameters else parameters.get("task_bytes"))
    return found if isinstance(found, int) and found > 0 else None


def _has_ended(runs: Sequence[Mapping[str, Any]]) -> bool:
    return bool(runs) and runs[-1]["outcome"] in (DONE, TASKS_FAILED)


def _task_time(row: SourceRow) -> int:
    return row.totals.milliseconds


def _steps(history: Sequence[HistoryRow], seconds: int, runs: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Add history up to steps of a length."""
    if not history:
        return []
    found = {begin: list(rows) for begin, rows in groupby(history, key=lambda row: row.time // seconds * seconds)}
    begins = range(min(found), max(found) + 1, seconds)
    first, last = _bounds(history, runs)
    steps: list[Step] = []
    so_far = 0
    for begin in begins:
        rows = found.get(begin, [])
        work = Work.of(rows)
        so_far += work.tasks
        failures = sum(row.failures for row in rows)
        steps.append(Step(max(begin, first) if steps else first, min(begin + seconds, last), work, failures, so_far))
    return steps


def _bounds(history: Sequence[HistoryRow], runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return when the first run began and the last ended, or now, so far as they lie in the ends of history."""
    first, last = history[0].time, history[-1].time
    begins = [run["began"] for run in runs if first - LEAD_SECONDS < run["began"] < first + HISTORY_SECONDS - 1]
    ends = [
        end for end in (*(run["ended"] for run in runs), time.time()) if end and last < end < last + HISTORY_SECONDS
    ]
    begin = max(begins, default=float(first))
    return begin, max(begin + 1, max(ends, default=float(last + HISTORY_SECONDS)))


def _step_seconds(history: Sequence[HistoryRow]) -> int:
    """Return the shortest round step of which fewer than `STEPS` cover a history."""
    span = history[-1].time + HISTORY_SECONDS - history[0].time if history else 0
    for seconds in _STEP_SECONDS:
        if span < seconds * (STEPS - 1):
            return seconds
    return _DAY * (1 + span // (_DAY * (STEPS - 1)))


def _duration_bins(durations: Mapping[float, int]) -> list[DurationBin]:
    """Put neighbours of the ledger's scale together, and bins of no task between others."""
    if not durations:
        return []
    first = min(durations)
    ratio = 2 ** (DURATIONS_A_BIN / 8)
    half = 2 ** (1 / 16)
    bins = [DurationBin(first / half, first / half * ratio, 0)]
    for value, tasks in durations.items():
        while value >= bins[-1].high:
            bins.append(DurationBin(bins[-1].high, bins[-1].high * ratio, 0))
        last = bins[-1]
        bins[-1] = DurationBin(last.low, last.high, last.tasks + tasks)
    return bins


def _quantiles(durations: Mapping[float, int]) -> dict[str, float]:
    total = sum(durations.values())
    found: dict[str, float] = {}
    so_far = 0
    for value, tasks in durations.items():
        so_far += tasks
        for name, share in (("half", 0.5), ("95 %", 0.95), ("99 %", 0.99), ("all", 1.0)):
            if name not in found and so_far >= share * total:
                found[name] = value
    return found


def _kinds(rows: Iterable[FailureRow], ledger: str) -> list[FailureKind]:
    groups = grouped_failures(rows, ledger, None)
    kinds = [
        FailureKind(group["reason"], group["count"], group["sources"], group["example"]["error"])
        for group in groups[:SHOWN_KINDS]
    ]
    rest = groups[SHOWN_KINDS:]
    if rest:
        tasks, sources = (sum(group[name] for group in rest) for name in ("count", "sources"))
        kinds.append(FailureKind(f"{len(rest):,} further reasons", tasks, sources, ""))
    return kinds
