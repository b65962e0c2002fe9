"""Trial of a function on some records, for ``map`` with `sample`; nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.redaction import plain_value
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.summaries import joined_statistics
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console.run_console import RunConsole
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.one_stage import MapJob
from ledgerbeam.pipelines.preview.sample import SampleRun, sampled_records, try_function
from ledgerbeam.sketches import merging


@dataclass(frozen=True)
class SampleCall:
    """A call that tries a function on some records.

    Attributes:
        job: The job.
        number: Number of records.
    """

    job: MapJob
    number: int

    def result(self, console: RunConsole) -> Result:
        """Call the function with records from all over the sources, and return the results.

        Args:
            console: Takes lines about files that are no sources.

        Raises:
            LedgerbeamError: The sources cannot be listed, or the function cannot be imported or built.
        """
        started = time.perf_counter()
        runs: list[SampleRun] = []
        statistics: Mapping[str, Statistic] = {}
        set_ups: list[float] = []
        for run in try_function(
            self.job, sampled_records(self.job, listed_pages(self.job, console.say), self.number), set_ups.append
        ):
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
            "statistics": {name: _value(statistic) for name, statistic in sorted(statistics.items())},
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
    return {**found, "results": {route: [_json_value(one) for one in rows] for route, rows in run.results.items()}}


def _json_value(value: Any) -> Any:
    """Return a result for JSON; of a sample of a tar the sizes of its members."""
    if isinstance(value, Mapping) and any(isinstance(part, bytes) for part in value.values()):
        return {name: len(part) for name, part in value.items()}
    return value
