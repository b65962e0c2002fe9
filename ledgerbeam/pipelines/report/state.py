"""State of the job of a ledger: its stages, runs, rates, time left and buckets."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

from ledgerbeam._base.redaction import plain_value, without_secrets
from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.ledger import LedgerStore, MergedStatistic, merged_statistics
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS
from ledgerbeam.ledger.opening import open_store, run_folders
from ledgerbeam.pipelines.console.reporter import count_nulled
from ledgerbeam.pipelines.exchange.stages import NUMBERED, is_optional, stages_of
from ledgerbeam.pipelines.preview.costs import MOST_SOURCES, Cost, cost_of_rest
from ledgerbeam.pipelines.report.accounts import function_values, shown_records
from ledgerbeam.pipelines.report.run_info import UNSEEN, Work, run_state, work_by_run
from ledgerbeam.sources.kind import BUCKET_SCHEME

RECENT_SECONDS = 60  # window of current rates, and time without progress after which a run is silent, in seconds


class LedgerState(NamedTuple):
    """State of the job of a ledger."""

    found: dict[str, Any]  # `LedgerStore.status` without secrets; ``nulled`` counts the numbers written as null
    runs: list[dict[str, Any]]  # all runs, as `shown_runs` returns them
    progress: JobProgress
    rest: Cost | None  # cost of the remaining work; None if nothing is left, or the cost is not known
    buckets: BucketSizes | None = None  # if the job gathers the buckets of an exchange

    def values(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        progress = dataclasses.asdict(self.progress)
        return {
            **self.found,
            "job": shown_job(self.found["job"]),
            "last_run": self.runs[-1] if self.runs else None,
            "running": progress["running"],
            "rates": {"minute": progress["minute"], "run": progress["run"]},
            "time_left": progress["time_left"],
            "rest": None if self.rest is None else dataclasses.asdict(self.rest),
            **({} if self.buckets is None else {"buckets": self.buckets.values()}),
            "runs": self.runs,
        }


def ledger_state(store: LedgerStore) -> LedgerState:
    """Read the state of the job of a ledger."""
    found = store.status()
    found["records"] = shown_records(RecordCounts(**found["records"]))
    nulled = count_nulled(store)
    if nulled is not None:
        found["nulled"] = nulled
    runs = shown_runs(store)
    rest = cost_of_rest(store, found["sources"])
    return LedgerState(found, runs, job_progress(store, found, runs), rest, bucket_sizes(store))


def shown_job(job: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a job as a JSON object without secrets."""
    return None if job is None else {**job, "parameters": plain_value(job["parameters"])}


@dataclass(frozen=True)
class BucketSizes:
    """Sizes of the buckets of an exchange that have records."""

    number: int
    bytes: int  # total bytes of their records, which the second stage reads
    median: int
    largest: int
    largest_bucket: str  # name of the largest bucket; the names of its shards start with it

    @property
    def skew(self) -> float:
        """Size of the largest bucket divided by the mean size."""
        return self.largest * self.number / self.bytes

    def values(self) -> dict[str, Any]:
        """Return the sizes as a JSON object."""
        return {**dataclasses.asdict(self), "skew": self.skew}


def bucket_sizes(store: LedgerStore) -> BucketSizes | None:
    """Return the sizes of the buckets that are the sources of a ledger; None if no source is a bucket with records."""
    first = next(iter(islice(store.sources(), 1)), None)
    if first is None or not first.url.startswith(BUCKET_SCHEME):
        return None
    sizes = [(row.size, row.url) for row in store.sources() if row.state != "gone" and row.size]
    if not sizes:
        return None
    from statistics import median  # noqa: PLC0415 - jobs without buckets need none

    largest, url = max(sizes)
    plain = [size for size, _ in sizes]
    return BucketSizes(len(sizes), sum(plain), int(median(plain)), largest, url.rpartition("/")[2])


@dataclass(frozen=True)
class JobProgress:
    """Progress of a job.

    `time_left` is the estimated time in seconds until every source is complete, at the rate since the last run started.
    It is None if no run is active, during the listing, or before a source is complete.
    """

    running: bool  # whether a run is active, as far as is known
    minute: dict[str, float] | None  # rates of all runs over the last minute; None if nothing was recorded in it
    run: dict[str, float] | None  # rates of the last run, up to now or to its end; None if they are not known
    time_left: float | None


def job_progress(store: LedgerStore, status: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> JobProgress:
    """Return the progress of a job from `LedgerStore.status` and `shown_runs` of its ledger."""
    if not runs:
        return JobProgress(running=False, minute=None, run=None, time_left=None)
    now, last = time.time(), runs[-1]
    since = recent_since(now)
    recent = store.recorded(since)
    # A run that is not seen counts as active if it is the last run or has recent work.
    unseen = [run for run in runs if run["state"] == UNSEEN and (run is last or run["id"] in recent)]
    working = [run for run in runs if run["state"] == "running" or run in unseen]
    # A row of history covers 10 seconds, so the recent rows may start before the first active run.
    began = min((run["began"] for run in working), default=now)
    minute = rates_of(Work.of(recent.values()), now - max(since, min(began, now - 1)))
    ended = last["ended"] or (now if last in working else None)
    seconds = max(ended - last["began"], 0.001) if ended else None
    work = None if last["done"] is None else Work(**last["done"])
    return JobProgress(
        running=bool(working),
        minute=minute if working and recent else None,
        run=rates_of(work, seconds) if work and seconds else None,
        time_left=_time_left(store, status, last, now) if working else None,
    )


def recent_since(now: float) -> int:
    """Return the start of the last minute, rounded to a row of history: seconds since 1970 UTC."""
    return int(now) // HISTORY_SECONDS * HISTORY_SECONDS - RECENT_SECONDS + HISTORY_SECONDS


def shown_runs(store: LedgerStore) -> list[dict[str, Any]]:
    """Return every run with its state and recorded work, without secrets.

    Adds to the result of `LedgerStore.runs`: ``state`` (see `run_state`), ``seconds`` (None unless the run has ended),
    and ``done``, a `Work` as a mapping. ``done`` is None if an older version, which did not separate runs, recorded it.
    """
    runs = store.runs()
    living = {launcher.run for launcher in run_folders(store).launchers() if launcher.lives} if runs else set()
    works = work_by_run(runs, store.recorded())
    return [
        {
            **run,
            "info": {k: without_secrets(v) if isinstance(v, str) else v for k, v in run["info"].items()},
            "state": run_state(run, store, living),
            "seconds": None if run["ended"] is None else run["ended"] - run["began"],
            "done": None if work is None else work._asdict(),
        }
        for run, work in zip(runs, works, strict=True)
    ]


def rates_of(work: Work, seconds: float) -> dict[str, float]:
    """Return the work per second, and the number of seconds."""
    return {"seconds": round(seconds, 1), **{name: n / seconds for name, n in work._asdict().items()}}


def _time_left(store: LedgerStore, status: Mapping[str, Any], run: Mapping[str, Any], now: float) -> float | None:
    """Return the estimated time left in seconds, from the work of all runs since the start of the last run."""
    left, seconds = status["sources"]["open"], max(now - run["began"], 0.001)
    work = Work.of(store.recorded(run["began"]).values())
    if not run["listing_finished"] or not work.sources:
        return None
    if sum(status["sources"].values()) > MOST_SOURCES:
        return float(left * seconds / work.sources)
    done_bytes = left_bytes = 0
    for row in store.sources():
        if row.state == "open":
            left_bytes += row.size
        elif row.completed >= int(run["began"]):
            done_bytes += row.size
    return left_bytes * seconds / done_bytes if done_bytes else None


def stage_ledgers(
    store: LedgerStore, storage_options: Mapping[str, Any], *, besides: Collection[str] = ()
) -> dict[str, LedgerStore]:
    """Open the existing ledgers of the earlier stages of a job, by name and in order. Leave out the names in `besides`.

    Optional stages without sources are left out.
    """
    job = store.job()
    found: dict[str, LedgerStore] = {}
    for stage in () if job is None else stages_of(job):
        for name in _numbered(stage):
            with contextlib.suppress(LedgerNotFoundError):
                if name not in besides:
                    ledger = open_store(f"{store.url}/{name}", dict(storage_options), create=False, read_only=True)
                    gone = ledger.gone_ids() if is_optional(stage) else set()
                    if not is_optional(stage) or any(not gone.issuperset(page) for page in ledger.source_ids()):
                        found[name] = ledger
            if name not in found and name not in besides:
                break
    return found


def _numbered(stage: str) -> Iterator[str]:
    """Yield the names of a stage: one name, or without end ``merge-1``, ``merge-2`` and so on for a numbered stage."""
    if not stage.endswith(NUMBERED):
        yield stage
        return
    yield from (f"{stage.removesuffix(NUMBERED)}-{number}" for number in count(1))


def every_ledger(store: LedgerStore, storage_options: Mapping[str, Any]) -> list[LedgerStore]:
    """Return the ledgers of all stages of a job, in order, the last stage last; see `stage_ledgers`."""
    return [*stage_ledgers(store, storage_options).values(), store]


def stages_line(stages: Mapping[str, LedgerStore]) -> str:
    """Return the done tasks of each stage, in order: ``scatter 12 of 12 tasks, pairs 3 of 8``."""
    found = [f"{name} {stage_tasks(store)}" for name, store in stages.items()]
    return ", ".join([f"{found[0]} tasks", *found[1:]])


def stage_tasks(store: LedgerStore) -> str:
    """Return the done tasks of a stage: ``3 of 8``, or ``3`` if the total is not known.

    The number of tasks of incomplete sources is estimated from the sizes of the sources.
    """
    status, job = store.status(), store.job()
    done = status["tasks"]["done"]
    if status["complete"]:
        return f"{done:,} of {done:,}"
    parameters: Mapping[str, Any] = {} if job is None else job.parameters
    size = parameters.get("task_bytes") or parameters.get("shard_bytes")
    if not isinstance(size, int) or not 0 < sum(status["sources"].values()) <= MOST_SOURCES:
        return f"{done:,}"
    unfinished = (row for row in store.sources() if row.state in ("open", "failed"))
    left = sum(max(1, -(-row.size // size) - row.totals.tasks) for row in unfinished)
    return f"{done:,} of {done + left:,}"


def stage_states(store: LedgerStore, storage_options: Mapping[str, Any]) -> dict[str, LedgerState]:
    """Return the state of each earlier stage of a job; see `stage_ledgers`."""
    return {name: ledger_state(stage) for name, stage in stage_ledgers(store, storage_options).items()}


def stage_statistics(
    store: LedgerStore, storage_options: Mapping[str, Any], name: str | None = None
) -> dict[str, MergedStatistic]:
    """Return the statistics of the functions of all stages, by name; see `merged_statistics`."""
    ledgers = every_ledger(store, storage_options)
    return {each: merged for ledger in ledgers for each, merged in merged_statistics(ledger, name).items()}


def status_values(store: LedgerStore, state: LedgerState, stages: Mapping[str, LedgerState]) -> dict[str, Any]:
    """Return the JSON object of ``ledger status --json``: of several functions with the counts of each."""
    functions = function_values(store)
    return state_values(state, stages) | ({"functions": functions} if functions else {})


def state_values(state: LedgerState, stages: Mapping[str, LedgerState]) -> dict[str, Any]:
    """Return the state of a job as a JSON object. A job is complete when all its stages are complete."""
    values = state.values()
    if not stages:
        return values
    complete = values["complete"] and all(stage.found["complete"] for stage in stages.values())
    return {**values, "complete": complete, "stages": {name: stage.values() for name, stage in stages.items()}}
