"""State of the job of a ledger, and of its buckets, as values for people and programs."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from ledgerbeam._base.redaction import plain_value
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.console.reporter import count_nulled
from ledgerbeam.pipelines.preview.costs import Cost, cost_of_rest
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.progress import JobProgress, job_progress, shown_runs
from ledgerbeam.sources.kind import BUCKET_SCHEME


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


@dataclass(frozen=True)
class BucketSizes:
    """Sizes of the buckets of an exchange that have records.

    Attributes:
        number: Number of buckets.
        bytes: Total bytes of their records, which the second stage reads.
        median: Median size in bytes.
        largest: Size of the largest bucket in bytes.
        largest_bucket: Name of the largest bucket. The names of its shards start with it.
    """

    number: int
    bytes: int
    median: int
    largest: int
    largest_bucket: str

    @property
    def skew(self) -> float:
        """Size of the largest bucket divided by the mean size."""
        return self.largest * self.number / self.bytes

    def values(self) -> dict[str, Any]:
        """Return the sizes as a JSON object."""
        return {
            "number": self.number,
            "bytes": self.bytes,
            "median": self.median,
            "largest": self.largest,
            "largest_bucket": self.largest_bucket,
            "skew": self.skew,
        }


def bucket_sizes(store: LedgerStore) -> BucketSizes | None:
    """Return the sizes of the buckets that are the sources of a ledger; None if no source is a bucket with records."""
    first = next(iter(islice(store.sources(), 1)), None)
    if first is None or not first.url.startswith(BUCKET_SCHEME):
        return None
    sizes = [(row.size, row.url) for row in store.sources() if row.state != "gone" and row.size]
    if not sizes:
        return None
    largest, url = max(sizes)
    plain = [size for size, _ in sizes]
    return BucketSizes(len(sizes), sum(plain), int(statistics.median(plain)), largest, url.rpartition("/")[2])
