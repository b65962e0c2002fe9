"""``--dry-run`` of every job: what a run would do, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.filesize import decimal

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.pipelines.console.run_progress import count, duration

_WHY = {
    "new": "this ledger does not know them",
    "changed": "they are not what they were when they were done",
    "failed": "tasks of them failed",
    "open": "begun, or waiting",
    "complete": "skipped",
    "gone": "not listed any more; their outputs stay",
}


def dry_run_lines(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that tell what a run would do.

    Args:
        preview: As JSON has it.
    """
    for line in _lines(preview):
        yield printable(without_secrets(line))


def _lines(preview: Mapping[str, Any]) -> Iterator[str]:
    yield f"ledger: {preview['ledger']} ({'new' if preview['new'] else 'there'})"
    yield from (f"the job has changed: {line}" for line in preview["differences"])
    for state, why in _WHY.items():
        if number := preview["sources"][state]:
            yield f"{count(number, 'source')} {state} ({why}): {_examples(number, preview['examples'][state])}"
    removed = preview["removed"]
    if removed["count"]:
        shown = _examples(removed["count"], removed["examples"])
        yield f"{count(removed['count'], 'output')} out of date removed in the end: {shown}"
    yield from (f"the run would be refused: {line}" for text in preview["refused"] for line in text.splitlines())
    yield f"about {count(preview['tasks'], 'task')} to do; nothing was written"
    as_it_is, *others = preview["costs"]
    if preview["tasks"]:
        known = "" if as_it_is["basis"] != "law" else ", besides the time of a function"
        yield f"predicted: {cost_line(as_it_is)}{known}"
    yield from (f"  with {cost['change']}: {cost_line(cost)}" for cost in others)


def cost_line(cost: Mapping[str, Any]) -> str:
    """Return what a job will cost as a line; `cost` is a `Cost` as JSON has it."""
    written = "" if cost["output_bytes"] is None else f" ({decimal(cost['output_bytes'])})"
    parts = [
        f"about {duration(cost['seconds'])}",
        count(cost["tasks"], "task"),
        f"{decimal(cost['read_bytes'])} to read",
        count(cost["outputs"], "output") + written,
        *([count(cost["requests"], "request")] if cost["requests"] else []),
        f"{decimal(cost['ledger_bytes'])} of ledger",
        f"{decimal(cost['memory_bytes'])} of memory a worker",
    ]
    return ", ".join(parts)


def _examples(number: int, examples: list[str]) -> str:
    return ", ".join(examples) + (", ..." if number > len(examples) else "")
