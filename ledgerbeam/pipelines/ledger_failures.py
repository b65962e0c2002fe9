"""``ledgerbeam ledger failures``: the tasks that failed, by reason, and the commands that try them again."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ledgerbeam.ledger import FailureRow, LedgerStore
from ledgerbeam.pipelines.report import count, print_json_stream, print_table, timestamp
from ledgerbeam.pipelines.run_info import retry_command
from ledgerbeam.redaction import HIDDEN, printable, without_secrets

__all__ = ["failures", "grouped_failures"]

SHOWN_ROWS = 20


def failures(store: LedgerStore, args: argparse.Namespace) -> int:
    """Prints the failures of a ledger in groups, largest first, then each by itself. Returns 0."""
    groups = grouped_failures(store.failures(), store.url, store.status()["last_run"])
    if args.json:
        print_json_stream({"groups": groups}, "failures", map(_as_json, store.failures()))
        return 0
    if not groups:
        print("no failures")
        return 0
    for group in groups:
        quarantined = f", {group['quarantined']:,} quarantined" if group["quarantined"] else ""
        example = group["example"]["error"] or group["example"]["task"]
        print(
            f"{count(group['count'], 'task')} of {count(group['sources'], 'source')}: "
            f"{printable(group['reason'])}{quarantined}\n"
            f"  for example {printable(example)}\n"
            f"  to retry: {group['retry'] or 'run the job again'}"
        )
    print()
    rows = islice(store.failures(), SHOWN_ROWS)
    shown = [[row.task, f"{row.attempts}", timestamp(row.last), row.error or row.reason] for row in rows]
    print_table(["task", "times", "last", "error"], [[printable(without_secrets(c)) for c in row] for row in shown])
    more = sum(group["count"] for group in groups) - SHOWN_ROWS
    if more > 0:
        print(f"and {more:,} more; --json has all")
    print(
        "\nTo retry all that are not quarantined, run the same command again. After an edit of the function, add "
        "--on-job-change=accept."
    )
    if any(HIDDEN in (group["retry"] or "") for group in groups):
        print(f"Ledgers keep no secrets: put yours in place of {HIDDEN}.")
    return 0


@dataclass(slots=True)
class _Group:
    """What is known of the failures of one reason while they are read."""

    example: dict[str, Any]
    last_source: bytes
    count: int = 0
    sources: int = 1
    quarantined: int = 0


def grouped_failures(rows: Iterable[FailureRow], ledger: str, last_run: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the failures by reason: the largest group first, equal ones by reason.

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
            group = groups[row.reason] = _Group(_as_json(row), row.source_id)
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


def _as_json(row: FailureRow) -> dict[str, Any]:
    return {
        "source": without_secrets(row.url),
        "task": without_secrets(row.task),
        "reason": without_secrets(row.reason),
        "error": without_secrets(row.error),
        "attempts": row.attempts,
        "last": timestamp(row.last),
        "quarantined": row.quarantined,
    }
