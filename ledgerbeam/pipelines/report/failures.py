"""Failures of a ledger, grouped by what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger.model.rows import FailureRow
from ledgerbeam.pipelines.console.reporter import timestamp
from ledgerbeam.pipelines.report.run_info import retry_command


@dataclass(slots=True)
class _Group:
    """What is known of the failures of one reason while they are read."""

    example: dict[str, Any]
    last_source: bytes
    count: int = 0
    sources: int = 1
    quarantined: int = 0


def grouped_failures(rows: Iterable[FailureRow], ledger: str, last_run: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the failures by reason: the largest group first, equal ones by reason.

    ``{"reason", "count", "sources", "quarantined", "example", "retry"}``: numbers of tasks, of their sources and of
    those that are quarantined; the first failure; a shell command that does these sources again, quarantined tasks
    too, or None if `last_run` did not record how the job was started.

    Args:
        rows: In the order of `LedgerStore.failures`; only one of each reason is held.
        ledger: URL of the ledger.
        last_run: What `LedgerStore.status` gave.
    """
    groups: dict[str, _Group] = {}
    for row in rows:
        group = groups.get(row.reason)
        if group is None:
            group = groups[row.reason] = _Group(failure_values(row), row.source_id)
        group.count += 1
        group.quarantined += row.quarantined
        if row.source_id != group.last_source:  # the failures of a source come together
            group.sources += 1
            group.last_source = row.source_id
    return [
        {
            "reason": without_secrets(reason),
            "count": group.count,
            "sources": group.sources,
            "quarantined": group.quarantined,
            "example": group.example,
            "retry": retry_command(last_run, ledger, reason),
        }
        for reason, group in sorted(groups.items(), key=lambda item: (-item[1].count, item[0]))
    ]


def failure_values(row: FailureRow) -> dict[str, Any]:
    """Return a failure as a JSON object, without secrets."""
    return {
        "source": without_secrets(row.url),
        "task": without_secrets(row.task),
        "reason": without_secrets(row.reason),
        "error": without_secrets(row.error),
        "attempts": row.attempts,
        "last": timestamp(row.last),
        "quarantined": row.quarantined,
    }
