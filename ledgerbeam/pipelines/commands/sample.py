"""``ledgerbeam map --sample``: what the function makes of some records; nothing is written."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.statistics import joined_statistics
from ledgerbeam.pipelines.console import Reporter, count, duration, print_json
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.map import MapJob
from ledgerbeam.redaction import plain_value, printable, without_secrets
from ledgerbeam.sketches import merging

__all__ = ["sample"]

SHOWN_CHARACTERS = 300


def sample(job: MapJob, args: argparse.Namespace) -> int:
    """Call the function with records from all over the sources, and print what becomes of them.

    Args:
        job: The job.
        args: Of the command; `sample` is the number of records.

    Returns:
        0, also where the function raises: that is what the sample is to show.

    Raises:
        LedgerbeamError: The sources cannot be listed, or the function not be imported or built.
    """
    from ledgerbeam.pipelines.jobs.sample import SampleRun, sampled_records, try_function

    reporter = Reporter(as_json=args.json, quiet=args.quiet)
    started = time.perf_counter()
    runs: list[SampleRun] = []
    statistics: Mapping[str, Statistic] = {}
    set_up = 0.0

    def on_set_up(seconds: float) -> None:
        nonlocal set_up
        set_up = seconds

    for run in try_function(job, sampled_records(job, listed_pages(job, reporter.say), args.sample), on_set_up):
        runs.append(run)
        statistics = joined_statistics(statistics, run.statistics)
        if not args.json:
            for line in _lines(run):
                reporter.say(printable(without_secrets(line)))
    called = sorted(run.seconds for run in runs if run.outcome != "unreadable")
    outcomes = Counter(run.outcome for run in runs)
    values = {name: _value(statistic) for name, statistic in sorted(statistics.items())}
    summary = {
        "records": dict(sorted(outcomes.items())),
        "seconds": {
            "all": round(time.perf_counter() - started, 6),
            "set_up": round(set_up, 6),
            "median": round(called[len(called) // 2], 6) if called else None,
            "longest": round(called[-1], 6) if called else None,
        },
        "statistics": values,
    }
    if args.json:
        print_json({**summary, "sample": [_as_json(run) for run in runs]})
        return 0
    for name, value in values.items():
        reporter.say(printable(without_secrets(f"statistic {name}: {value}")))
    median = (
        f"set up in {duration(set_up)}, {1000 * called[len(called) // 2]:,.3g} ms a record (median), " if called else ""
    )
    shown = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(outcomes.items()))
    reporter.say(f"{count(len(runs), 'record')}: {shown or 'none'}; {median}nothing was written")
    return 0


def _value(statistic: Statistic) -> Any:
    merged = merging(statistic.kind)
    merged.take(statistic.data)
    return merged.value()


def _lines(run: Any) -> list[str]:
    place = f"{run.sampled.source.url}, record {run.sampled.number}"
    took = f"{1000 * run.seconds:,.3g} ms"
    if run.outcome == "kept":
        return [f"{place} kept, {took}"] + [
            f"  {f'{route}: ' if route else ''}{_cut(result)}"
            for route, results in run.results.items()
            for result in results
        ]
    if run.outcome == "unreadable":
        return [f"{place} cannot be read: {run.error}"]
    return [f"{place} {run.outcome}, {took}: {run.reason}", *([f"  {run.error}"] if run.error else [])]


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _as_json(run: Any) -> dict[str, Any]:
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
