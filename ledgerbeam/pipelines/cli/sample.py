"""``ledgerbeam map --sample``: what the function made of some records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.pipelines.console.run_progress import count, duration

SHOWN_CHARACTERS = 300


def sample_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that tell of a sample.

    Args:
        summary: That of the `Result`.
    """
    runs = summary["sample"]
    for run in runs:
        yield from (printable(without_secrets(line)) for line in _lines(run))
    for name, value in summary["statistics"].items():
        yield printable(without_secrets(f"statistic {name}: {value}"))
    seconds = summary["seconds"]
    median = ""
    if seconds["median"] is not None:
        median = f"set up in {duration(seconds['set_up'])}, {1000 * seconds['median']:,.3g} ms a record (median), "
    shown = ", ".join(f"{number:,} {outcome}" for outcome, number in summary["records"].items())
    yield f"{count(len(runs), 'record')}: {shown or 'none'}; {median}nothing was written"


def _lines(run: Mapping[str, Any]) -> list[str]:
    place = f"{run['source']}, record {run['record']}"
    took = f"{1000 * run['seconds']:,.3g} ms"
    if run["outcome"] == "kept":
        return [f"{place} kept, {took}"] + [
            f"  {f'{route}: ' if route else ''}{_cut(result)}"
            for route, results in run["results"].items()
            for result in results
        ]
    if run["outcome"] == "unreadable":
        return [f"{place} cannot be read: {run['error']}"]
    return [f"{place} {run['outcome']}, {took}: {run['reason']}", *([f"  {run['error']}"] if run["error"] else [])]


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
