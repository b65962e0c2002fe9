"""How fast a job goes and when it will be done, from what its ledger holds."""

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
"""So long ago is now, for rates; who shows nothing new for so long is silent."""


@dataclass(frozen=True)
class JobProgress:
    """Where a job stands.

    Attributes:
        running: Whether a run is at work, as far as is known.
        minute: Rates of all runs over the last minute; None if nothing was recorded in it.
        run: Rates of the last run, up to now or to its end; None if they are not known.
        time_left: Seconds until every open source is complete, if those left go like those since the last run began;
            None if no run is at work, while the listing goes on, or before a source is complete.
    """

    running: bool
    minute: dict[str, float] | None
    run: dict[str, float] | None
    time_left: float | None


def job_progress(store: LedgerStore, status: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> JobProgress:
    """Work out the progress of a job.

    Args:
        store: Its ledger.
        status: What `LedgerStore.status` gave.
        runs: What `shown_runs` gave.
    """
    if not runs:
        return JobProgress(running=False, minute=None, run=None, time_left=None)
    now, last = time.time(), runs[-1]
    since = recent_since(now)
    recent = store.recorded(since)
    working = [run for run in runs if _is_at_work(run, run is last, recent)]
    # A step of history holds 10 seconds: what is recent may have begun before the first of the runs.
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
    """Return whether a run is at work: of one that cannot be seen here, if it is the last, or has recorded just now."""
    return run["state"] == "running" or (run["state"] == UNSEEN and (is_last or run["id"] in recorded))


def recent_since(now: float) -> int:
    """Return when the last minute began, as a step of history: seconds since 1970 UTC."""
    return int(now) // HISTORY_SECONDS * HISTORY_SECONDS - RECENT_SECONDS + HISTORY_SECONDS


def shown_runs(store: LedgerStore) -> list[dict[str, Any]]:
    """Return every run with its state, what was recorded in it, and without secrets.

    To what `LedgerStore.runs` gives of a run come ``state`` (see `run_state`), ``seconds`` (None unless it has ended)
    and ``done``, a `Work` as a mapping, or None if an older version recorded for it, which told no runs apart.
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
    """Return what was done a second, and over how many seconds."""
    return {"seconds": round(seconds, 1), **{name: n / seconds for name, n in work._asdict().items()}}


def _time_left(store: LedgerStore, status: Mapping[str, Any], run: Mapping[str, Any], now: float) -> float | None:
    """Return the time that is left, from what all runs have done since the last one began."""
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
