"""Data of the HTML report: sums and samples whose size does not depend on the size of the job."""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, FailureRow, HistoryRow, SourceRow
from ledgerbeam.pipelines.console.reporter import counting
from ledgerbeam.pipelines.report.accounts import function_values, statistic_rows
from ledgerbeam.pipelines.report.ledger import grouped_failures
from ledgerbeam.pipelines.report.run_info import DONE, TASKS_FAILED, Work
from ledgerbeam.pipelines.report.state import (
    JobProgress,
    LedgerState,
    job_progress,
    ledger_state,
    shown_runs,
    stage_states,
    stage_statistics,
)

STEPS = 60
SLOWEST = 15
SHOWN_RUNS = 30
SHOWN_HOSTS = 30
SPANS_A_BAND = 200
UNNAMED = "not known"
SHOWN_KINDS = 12
LEAD_SECONDS = 60  # maximum time from the start of a run to the end of its first task
DURATIONS_A_BIN = 4  # the ledger's scale has eight durations per doubling

_STEP_SECONDS = tuple(
    unit * n
    for unit, numbers in ((1, (10, 20, 30)), (60, (1, 2, 5, 10, 15, 30)), (3600, (1, 2, 3, 6, 12)))
    for n in numbers
)
_DAY = 86_400


@dataclass(frozen=True)
class Step:
    """A step: the work recorded in one interval of the time axis."""

    begin: float  # in seconds since 1970 UTC
    end: float  # in seconds since 1970 UTC, later than `begin`
    work: Work
    failures: int
    tasks_so_far: int  # number of tasks of the whole job recorded up to `end`

    def rate(self, number: int) -> float:
        """Return `number` divided by the seconds of the step."""
        return number / (self.end - self.begin)


@dataclass(frozen=True)
class HostBand:
    """The runs and the recorded work of a job on one host, over time."""

    host: str  # the last band may stand for several hosts; its name says so
    runs: Sequence[tuple[float, float]]  # start and end of each run, in seconds since 1970 UTC
    steps: Sequence[Step]  # work of the runs, on the steps of the whole job; steps without work are left out
    number: int  # number of all runs
    work: Work  # of all steps
    failures: int  # of all steps

    @property
    def fastest(self) -> float:
        """Tasks per second in the busiest step."""
        return max((step.rate(step.work.tasks) for step in self.steps), default=0.0)


@dataclass(frozen=True)
class DurationBin:
    """Tasks that took from `low` to `high` seconds."""

    low: float
    high: float
    tasks: int


@dataclass
class OpenTasks:
    """An estimate of the open tasks of sources, from the sizes of the sources."""

    task_size: int | None  # in the unit of the sizes of sources; None if it is not known
    open: int = 0  # of sources without a failure, at least one for each source
    in_failed: int = 0  # of sources with failures, including the failed tasks

    def add(self, row: SourceRow) -> None:
        """Count a source."""
        expected = -(-row.size // self.task_size) if self.task_size and not row.members else 1
        if row.state == "open":
            self.open += max(expected - row.totals.tasks, 1)
        elif row.state == "failed":
            self.in_failed += max(expected - row.totals.tasks, 1)

    def without(self, failed: int, *, has_ended: bool = False) -> int:
        """Return the number of open tasks without `failed` ones. `has_ended`: failed sources have no others open."""
        return self.open + (0 if has_ended else max(self.in_failed - failed, 0))


@dataclass(frozen=True)
class ReportData:
    """All data of a report."""

    ledger: str
    status: Mapping[str, Any]  # the result of `LedgerStore.status`
    records: RecordCounts
    open_tasks: int  # estimated number of tasks that are neither done nor failed
    progress: JobProgress
    steps: Sequence[Step]  # in time order, without gaps, from the start of the first run to the end of the last
    step_seconds: int  # length of all steps but the first and the last
    hosts: Sequence[HostBand]  # hosts with the most tasks are first
    durations: Sequence[DurationBin]  # shortest first, without gaps
    quantiles: Mapping[str, float]  # median, 95 % and 99 % quantile and maximum of the durations in seconds, by name
    kinds: Sequence[Mapping[str, Any]]  # `grouped_failures`; the last entry may stand for all further reasons
    slowest: Sequence[SourceRow]  # largest total task time first
    runs: Sequence[Mapping[str, Any]]  # the newest runs of `shown_runs`, newest first
    runs_left_out: int
    stages: Mapping[str, LedgerState]  # by name, the last stage last; empty for a job of one stage
    statistics: Sequence[Sequence[str]] = ()  # of the functions of all stages
    functions: Sequence[Mapping[str, Any]] = ()  # `function_values`
    statistics_error: str = ""  # error of reading the statistics; empty if they were read


def report_data(store: LedgerStore, storage_options: Mapping[str, Any] | None = None) -> ReportData:
    """Read the data of a report from a ledger and the ledgers of its earlier stages."""
    status, runs, durations = store.status(), shown_runs(store), store.durations()
    history = store.history()
    step_seconds = _step_seconds(history)
    options = storage_options or {}
    stages = stage_states(store, options)
    statistics, functions, statistics_error = _statistics(store, options)
    owed = OpenTasks(_task_size(status))
    has_ended = bool(runs) and runs[-1]["outcome"] in (DONE, TASKS_FAILED)
    steps = _steps(history, step_seconds, runs)
    with counting("source") as advance:
        slowest = heapq.nlargest(
            SLOWEST, _counted(store.sources(), advance, owed), key=lambda row: row.totals.milliseconds
        )
    return ReportData(
        ledger=store.url,
        status=status,
        records=RecordCounts(**status["records"]),
        open_tasks=owed.without(status["tasks"]["failed"], has_ended=has_ended),
        progress=job_progress(store, status, runs),
        steps=steps,
        step_seconds=step_seconds,
        hosts=_bands(history, runs, steps, step_seconds),
        durations=_duration_bins(durations),
        quantiles=_quantiles(durations),
        kinds=_kinds(store.failures(), store.url),
        slowest=[row for row in slowest if row.totals.milliseconds],
        runs=runs[: -SHOWN_RUNS - 1 : -1],
        runs_left_out=max(0, len(runs) - SHOWN_RUNS),
        stages={**stages, status["job"]["pipeline"]: ledger_state(store)} if stages else {},
        statistics=statistics,
        functions=functions,
        statistics_error=statistics_error,
    )


def _statistics(
    store: LedgerStore, options: Mapping[str, Any]
) -> tuple[list[Sequence[str]], list[dict[str, Any]], str]:
    """Return statistics, counts of functions and an empty error; if they cannot be read, the error instead."""
    try:
        found, functions = stage_statistics(store, options), function_values(store)
    except LedgerError as error:
        return [], [], str(error)
    return [row for name, merged in found.items() for row in statistic_rows(name, merged)], functions, ""


def _counted(rows: Iterable[SourceRow], advance: Any, owed: OpenTasks) -> Iterable[SourceRow]:
    for row in rows:
        advance(1, 0)
        owed.add(row)
        yield row


def _task_size(status: Mapping[str, Any]) -> int | None:
    """Return the size of a task; None if it is unknown. Sources of a graph have sizes in records, not in bytes."""
    parameters = (status["job"] or {}).get("parameters", {})
    found = parameters.get("task_records") or (None if "graph" in parameters else parameters.get("task_bytes"))
    return found if isinstance(found, int) and found > 0 else None


def _steps(history: Sequence[HistoryRow], seconds: int, runs: Sequence[Mapping[str, Any]]) -> list[Step]:
    if not history:
        return []
    found = {begin: list(rows) for begin, rows in groupby(history, key=lambda row: row.time // seconds * seconds)}
    first, last = _bounds(history, runs)
    steps: list[Step] = []
    so_far = 0
    for begin in range(min(found), max(found) + 1, seconds):
        rows = found.get(begin, [])
        work = Work.of(rows)
        so_far += work.tasks
        failures = sum(row.failures for row in rows)
        steps.append(Step(max(begin, first) if steps else first, min(begin + seconds, last), work, failures, so_far))
    return steps


def _bands(
    history: Sequence[HistoryRow], runs: Sequence[Mapping[str, Any]], steps: Sequence[Step], seconds: int
) -> list[HostBand]:
    """Return a band for each host, with the steps of the whole job. The last band may stand for several hosts."""
    if not steps:
        return []
    named = {run["id"]: str(run["info"].get("host") or UNNAMED) for run in runs}
    tasks = Counter[str]()
    for row in history:
        tasks[named.get(row.run or "", UNNAMED)] += row.totals.tasks
    hosts = [host for host, _ in sorted(tasks.items(), key=lambda pair: (-pair[1], pair[0]))]
    further = hosts[SHOWN_HOSTS - 1 :] if len(hosts) > SHOWN_HOSTS else []
    band_of = {host: host for host in hosts} | dict.fromkeys(further, f"{len(further):,} further hosts")
    rows: dict[str, list[HistoryRow]] = defaultdict(list)
    for row in history:
        rows[band_of[named.get(row.run or "", UNNAMED)]].append(row)
    last = {row.run: row.time + HISTORY_SECONDS for row in history}
    bands = []
    for band, of_band in rows.items():
        own = [run for run in runs if band_of.get(named[run["id"]]) == band]
        spans = [(run["began"], run["ended"] or last.get(run["id"], run["began"])) for run in own]
        clipped = [(max(begin, steps[0].begin), min(end, steps[-1].end)) for begin, end in spans]
        in_step: dict[int, list[HistoryRow]] = defaultdict(list)
        for row in of_band:
            in_step[row.time // seconds - history[0].time // seconds].append(row)
        band_steps = [
            replace(steps[number], work=Work.of(of_step), failures=sum(row.failures for row in of_step))
            for number, of_step in sorted(in_step.items())
        ]
        work, failures = Work.of(of_band), sum(row.failures for row in of_band)
        bands.append(HostBand(band, sorted(clipped)[:SPANS_A_BAND], band_steps, len(own), work, failures))
    return sorted(bands, key=lambda band: (band.host not in hosts, -band.work.tasks, band.host))


def _bounds(history: Sequence[HistoryRow], runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return start and end of the time axis: the ends of history, moved to a start or an end of a run close to them."""
    first, last = history[0].time, history[-1].time
    begins = [run["began"] for run in runs if first - LEAD_SECONDS < run["began"] < first + HISTORY_SECONDS - 1]
    ended = (*(run["ended"] for run in runs), time.time())
    ends = [end for end in ended if end and last < end < last + HISTORY_SECONDS]
    begin = max(begins, default=float(first))
    return begin, max(begin + 1, max(ends, default=float(last + HISTORY_SECONDS)))


def _step_seconds(history: Sequence[HistoryRow]) -> int:
    """Return the shortest round step length in seconds that covers the history with fewer than `STEPS` steps."""
    span = history[-1].time + HISTORY_SECONDS - history[0].time if history else 0
    for seconds in _STEP_SECONDS:
        if span < seconds * (STEPS - 1):
            return seconds
    return _DAY * (1 + span // (_DAY * (STEPS - 1)))


def _duration_bins(durations: Mapping[float, int]) -> list[DurationBin]:
    """Merge neighbouring durations, as the ledger rounds them, into bins, and fill gaps with empty bins."""
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


def _kinds(rows: Iterable[FailureRow], ledger: str) -> list[dict[str, Any]]:
    groups = grouped_failures(rows, ledger, None)
    kinds, rest = groups[:SHOWN_KINDS], groups[SHOWN_KINDS:]
    if rest:
        sums = {name: sum(group[name] for group in rest) for name in ("count", "sources")}
        kinds.append({"reason": f"{len(rest):,} further reasons", **sums, "example": {"error": ""}})
    return kinds
