"""Failures of a ledger, grouped by reason, and its rejected records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ledgerbeam._base.names import REJECTS
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import StorageError
from ledgerbeam.io import Options
from ledgerbeam.io.lines.jsonl_reader import stream_records
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import FailureRow
from ledgerbeam.pipelines.console.reporter import timestamp
from ledgerbeam.pipelines.report.run_info import retry_command


@dataclass(slots=True)
class _Group:
    """Failures of one reason that have been read so far."""

    example: dict[str, Any]
    last_source: bytes
    count: int = 0
    sources: int = 1
    quarantined: int = 0


def grouped_failures(rows: Iterable[FailureRow], ledger: str, last_run: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the failures by reason, largest group first; groups of equal size are sorted by reason.

    A group is ``{"reason", "count", "sources", "quarantined", "example", "retry"}``. ``count``, ``sources`` and
    ``quarantined`` are numbers of tasks, sources and quarantined tasks. ``example`` is the first failure. ``retry`` is
    a shell command that processes these sources again, with quarantined tasks; None if `last_run` has no command.

    Args:
        rows: In the order of `LedgerStore.failures`. One row per reason is kept in memory.
        ledger: URL of the ledger.
        last_run: The last run, from `LedgerStore.status`.
    """
    groups: dict[str, _Group] = {}
    for row in rows:
        group = groups.get(row.reason)
        if group is None:
            group = groups[row.reason] = _Group(failure_values(row), row.source_id)
        group.count += 1
        group.quarantined += row.quarantined
        if row.source_id != group.last_source:  # failures are ordered by source
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


def rejected_rows(
    store: LedgerStore, options: Options | None = None, *, reason: str | None = None, source: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rejected records of a ledger, each with the name of the ``file`` that stores it.

    Args:
        store: The ledger.
        options: Storage options of the job's outputs.
        reason: Shell pattern. Only records with a matching reason are yielded.
        source: Shell pattern. Only records of matching source URLs are yielded.

    Raises:
        StorageError: A recorded file cannot be read.
    """
    job = store.job()
    root = job.parameters.get("output") if job else None
    asked = {"reason": reason, "source": source}
    for found in store.outputs():
        if found.output.route != REJECTS:
            continue
        try:
            for row in stream_records(f"{root}/{found.output.name}", options):
                if _is_asked_for(row, asked):
                    yield {**row, "file": found.output.name}
        except StorageError as error:
            raise StorageError(
                f"{error}; the ledger has recorded this file: to write it again, run the job's command again"
            ) from error


def _is_asked_for(row: Mapping[str, Any], asked: Mapping[str, str | None]) -> bool:
    return all(
        pattern is None or row[name] == pattern or fnmatchcase(row[name], pattern) for name, pattern in asked.items()
    )
