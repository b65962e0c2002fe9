"""``ledgerbeam ledger failures``: the tasks that failed, by reason, and the commands that try them again."""

from __future__ import annotations

import argparse
from itertools import islice

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console import count, print_json_stream, print_table, timestamp
from ledgerbeam.pipelines.report.failures import _as_json, grouped_failures
from ledgerbeam.redaction import HIDDEN, printable, without_secrets

__all__ = ["failures"]

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
