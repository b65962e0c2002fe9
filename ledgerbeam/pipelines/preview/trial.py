"""Trials of a job's function on some records, in this process: its speed for ``--dry-run``, and ``map --sample``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import orjson

from ledgerbeam._base.redaction import plain_value
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.accounts import FUNCTIONS, Statistic
from ledgerbeam.ledger.summaries import full_name, joined_statistics
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console.reporter import RunConsole
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.map import MapJob
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.preview.costs import Speed
from ledgerbeam.pipelines.preview.sample import SampleRun, Tracer, sampled_records, try_function, without_contents
from ledgerbeam.sketches import merging
from ledgerbeam.user_code.objects import close_objects

_RECORDS, _SOURCES, _BYTES = 64, 8, 1 << 20  # at most, in the sample that measures speed
_SECONDS = 1.0  # after this time, without set-up, no further record is tried


def measured_speed(job: JobSpec) -> Speed | None:
    """Return the measured speed of a job's function; None if the job has no function, or no record was processed."""
    if not isinstance(job, ShardJob) or job.command not in ("map", "annotate", "tokenize"):
        return None
    set_ups: list[float] = []
    size, seconds, began = 0, 0.0, time.perf_counter()
    try:
        opened, pages = job.sources().opened(job.storage_options), islice(job.pages(), 1)
        sampled = list(sampled_records(opened, pages, _RECORDS, sources=_SOURCES, most_bytes=_BYTES))
        for run in try_function(job.trial_work(), sampled, set_ups.append):
            if run.outcome != "unreadable":
                records = run.sampled.records
                size += sum(map(_record_size, records)) if isinstance(records, list) else 0  # tables have no size
                seconds += run.seconds
            if time.perf_counter() - began > _SECONDS + sum(set_ups):
                break
    except (LedgerbeamError, TypeError):  # the run reports library errors; records of other types have no size
        return None
    finally:
        close_objects()
    return Speed(sum(set_ups), seconds / size) if size else None


def _record_size(record: Any) -> int:
    """Return the approximate size of a record in its source, in bytes."""
    if isinstance(record, (bytes, str)):
        return len(record)
    parts = list(record.values()) if isinstance(record, Mapping) else []
    if any(isinstance(part, bytes) for part in parts):  # members of a sample
        return sum(len(part) for part in parts if isinstance(part, bytes))
    return len(orjson.dumps(record, str, orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)) + 1


@dataclass(frozen=True)
class SampleCall:
    """A call that tries a function on some records."""

    job: MapJob
    number: int

    def result(self, console: RunConsole) -> Result:
        """Call the function with records from all over the sources, and return the results."""
        started = time.perf_counter()
        runs: list[SampleRun] = []
        statistics: Mapping[str, Statistic] = {}
        set_ups: list[float] = []
        tracer = Tracer() if len(self.job.functions) > 1 else None
        work = self.job.trial_work(None if tracer is None else tracer.traced)
        opened = self.job.sources().opened(self.job.storage_options)
        sampled = sampled_records(opened, listed_pages(self.job, console.say), self.number)
        for run in try_function(work, sampled, set_ups.append, to=self.job.to, tracer=tracer):
            runs.append(run)
            statistics = joined_statistics(statistics, run.statistics)
        called = sorted(run.seconds for run in runs if run.outcome != "unreadable")
        seconds = time.perf_counter() - started
        outcomes = Counter(run.outcome for run in runs)
        summary = {
            "records": dict(sorted(outcomes.items())),
            "seconds": {
                "all": round(seconds, 6),
                "set_up": round(sum(set_ups), 6),
                "median": round(called[len(called) // 2], 6) if called else None,
                "longest": round(called[-1], 6) if called else None,
            },
            "statistics": {
                full_name(name): _value(statistic)
                for name, statistic in sorted(statistics.items())
                if name != FUNCTIONS
            },
            "sample": [_as_json(run) for run in runs],
        }
        return Result(self.job.command, complete=False, seconds=seconds, output=self.job.output, summary=summary)


def _value(statistic: Statistic) -> Any:
    merged = merging(statistic.kind)
    merged.take(statistic.data)
    return merged.value()


def _as_json(run: SampleRun) -> dict[str, Any]:
    found: dict[str, Any] = plain_value(
        {
            "source": run.sampled.source.url,
            "record": run.sampled.number,
            "outcome": run.outcome,
            "reason": run.reason,
            "error": run.error,
            "seconds": round(run.seconds, 6),
        }
    )
    found["results"] = {route: [without_contents(one) for one in rows] for route, rows in run.results.items()}
    return {**found, "functions": [asdict(one) for one in run.trials]} if run.trials else found
