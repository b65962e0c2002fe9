"""``ledgerbeam ledger failures``: failed tasks by reason, and the commands to retry them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ledgerbeam._base.redaction import HIDDEN, printable, without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import FailureRow
from ledgerbeam.pipelines.console.reporter import print_json_stream, timestamp
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.report.failures import failure_values, grouped_failures
from ledgerbeam.pipelines.report.stages import every_ledger

SHOWN_ROWS = 5
"""Maximum number of failures printed per reason."""


def failures(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the failures of a job by stage and reason, largest groups first. Returns 0."""
    ledgers = every_ledger(store, args.storage_options)
    groups = [
        (ledger, grouped_failures(ledger.failures(), store.url, ledger.status()["last_run"])) for ledger in ledgers
    ]
    every = [group for _, of_stage in groups for group in of_stage]
    if args.json:
        rows = (failure_values(row) for ledger in ledgers for row in ledger.failures())
        print_json_stream({"groups": every}, "failures", rows)
        return 0
    if not every:
        print("no failures")
        return 0
    for ledger, of_stage in groups:
        _print_groups(ledger, of_stage)
    print(
        "\nTo retry all that are not quarantined, run the same command again. After an edit of the function, add "
        "--on-job-change=accept, in Python on_job_change='accept'."
    )
    if any(HIDDEN in (group["retry"] or "") for group in every):
        print(f"Ledgers keep no secrets: put yours in place of {HIDDEN}.")
    return 0


def _print_groups(store: LedgerStore, groups: Sequence[Mapping[str, Any]]) -> None:
    first = _first_of_each_reason(store)
    for group in groups:
        quarantined = f", {group['quarantined']:,} quarantined" if group["quarantined"] else ""
        print(
            f"{count(group['count'], 'task')} of {count(group['sources'], 'source')}: "
            f"{printable(group['reason'])}{quarantined}"
        )
        for row in first[group["reason"]]:
            print(f"  {_described(row)}")
        more = group["count"] - len(first[group["reason"]])
        if more > 0:
            print(f"  and {more:,} more; --json has all")
        print(f"  to retry: {group['retry'] or 'run the job again'}")


def _first_of_each_reason(store: LedgerStore) -> dict[str, list[FailureRow]]:
    first: defaultdict[str, list[FailureRow]] = defaultdict(list)
    for row in store.failures():
        shown = first[without_secrets(row.reason)]
        if len(shown) < SHOWN_ROWS:
            shown.append(row)
    return first


def _described(row: FailureRow) -> str:
    """Return a failure as a line: its error, with the task unless the error names its source."""
    error = row.error or row.reason
    named = error if row.url in error else f"{row.task}: {error}"
    again = f" (tried {row.attempts:,} times, last at {timestamp(row.last)})" if row.attempts > 1 else ""
    return printable(without_secrets(named)) + again
