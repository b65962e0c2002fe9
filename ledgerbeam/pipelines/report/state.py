"""State of the job of a ledger, as values for people and programs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ledgerbeam._base.redaction import plain_value
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.console.reporter import count_nulled
from ledgerbeam.pipelines.preview.costs import Cost, cost_of_rest
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.buckets import BucketSizes, bucket_sizes
from ledgerbeam.pipelines.report.progress import JobProgress, job_progress, shown_runs


class LedgerState(NamedTuple):
    """State of the job of a ledger.

    Attributes:
        found: The result of `LedgerStore.status`, without secrets. If the job writes some numbers as null, ``nulled``
            is their count.
        runs: All runs, as `shown_runs` returns them.
        progress: Rates and time left.
        rest: Cost of the remaining work; None if nothing is left, or the cost is not known.
        buckets: Sizes of the buckets, if the job gathers the buckets of an exchange.
    """

    found: dict[str, Any]
    runs: list[dict[str, Any]]
    progress: JobProgress
    rest: Cost | None
    buckets: BucketSizes | None = None

    def values(self) -> dict[str, Any]:
        """Return the JSON object of ``ledger status --json``."""
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
