"""``ledgerbeam ledger failures``: the tasks that failed, by reason, and the commands that try them again."""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

from ledgerbeam.ledger import FailureRow, LedgerStore
from ledgerbeam.pipelines.report import count, print_json, print_table, timestamp
from ledgerbeam.pipelines.run_info import retry_command
from ledgerbeam.redaction import HIDDEN, printable, without_secrets

__all__ = ["failures", "grouped_failures"]

SHOWN_ROWS = 20


def failures(store: LedgerStore, args: argparse.Namespace) -> int:
    """Prints the failures of a ledger in groups, largest first, then each by itself. Returns 0."""
    rows = list(store.failures())
    groups = grouped_failures(rows, store.url, store.status()["last_run"])
    if args.json:
        print_json({"groups": groups, "failures": [_as_json(row) for row in rows]})
        return 0
    if not rows:
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
    shown = [[row.task, f"{row.attempts}", timestamp(row.last), row.error or row.reason] for row in rows[:SHOWN_ROWS]]
    print_table(["task", "times", "last", "error"], [[printable(without_secrets(c)) for c in row] for row in shown])
    if len(rows) > SHOWN_ROWS:
        print(f"and {len(rows) - SHOWN_ROWS:,} more; --json has all")
    print(
        "\nTo retry all that are not quarantined, run the same command again. After an edit of the function, add "
        "--on-job-change=accept."
    )
    if any(HIDDEN in (group["retry"] or "") for group in groups):
        print(f"Ledgers keep no secrets: put yours in place of {HIDDEN}.")
    return 0


def grouped_failures(rows: list[FailureRow], ledger: str, last_run: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the failures by reason: the largest group first, equal ones by reason.

    ``{"reason", "count", "sources", "quarantined", "example", "retry"}``: numbers of tasks, of their sources and of
    those that are quarantined; the first failure; a shell command that does these sources again, quarantined tasks
    too, or None if `last_run` did not record how the job was started.
    """
    by_reason: defaultdict[str, list[FailureRow]] = defaultdict(list)
    for row in rows:
        by_reason[row.reason].append(row)
    return [
        {
            "reason": without_secrets(reason),
            "count": len(found),
            "sources": len({row.source_id for row in found}),
            "quarantined": sum(row.quarantined for row in found),
            "example": _as_json(found[0]),
            "retry": retry_command(last_run, ledger, reason),
        }
        for reason, found in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
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
