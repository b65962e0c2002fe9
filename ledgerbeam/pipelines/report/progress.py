"""Rates and estimated time left of a job, from its ledger."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS
from ledgerbeam.ledger.opening import run_folders
from ledgerbeam.pipelines.preview.costs import MOST_SOURCES
from ledgerbeam.pipelines.report.run_info import UNSEEN, Work, run_state, work_by_run

RECENT_SECONDS = 60
"""Window of current rates, and time without progress after which a run is silent, in seconds."""


@dataclass(frozen=True)
class JobProgress:
    """Progress of a job.

    Attributes:
        running: Whether a run is active, as far as is known.
        minute: Rates of all runs over the last minute; None if nothing was recorded in it.
        run: Rates of the last run, up to now or to its end; None if they are not known.
        time_left: Estimated seconds until every open source is complete, at the rate since the last run started. None
            if no run is active, during the listing, or before a source is complete.
    """

    running: bool
    minute: dict[str, float] | None
    run: dict[str, float] | None
    time_left: float | None


def job_progress(store: LedgerStore, status: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> JobProgress:
    """Return the progress of a job.

    Args:
        store: The ledger of the job.
        status: The result of `LedgerStore.status`.
        runs: The result of `shown_runs`.
    """
    if not runs:
        return JobProgress(running=False, minute=None, run=None, time_left=None)
    now, last = time.time(), runs[-1]
    since = recent_since(now)
    recent = store.recorded(since)
    working = [run for run in runs if _is_at_work(run, run is last, recent)]
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


def _is_at_work(run: Mapping[str, Any], is_last: bool, recorded: Collection[str | None]) -> bool:
    """Return whether a run is active. An unseen run counts as active if it is the last, or recorded work recently."""
    return run["state"] == "running" or (run["state"] == UNSEEN and (is_last or run["id"] in recorded))


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
            "info": {name: _shown(value) for name, value in run["info"].items()},
            "state": run_state(run, store, living),
            "seconds": None if run["ended"] is None else run["ended"] - run["began"],
            "done": None if work is None else work._asdict(),
        }
        for run, work in zip(runs, works, strict=True)
    ]


def _shown(value: Any) -> Any:
    return without_secrets(value) if isinstance(value, str) else value


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
