"""``ledgerbeam ledger rejects``: rejected records by reason, read from the files that store them."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from ledgerbeam._base.redaction import plain_value, printable, without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.report.failures import rejected_rows

_SHOWN_CHARACTERS = 300
"""Maximum number of characters printed of an error."""


def rejects(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the rejected records of a ledger by reason, largest groups first. Returns 0.

    Memory depends on the number of reasons, sources and shown examples, not on the number of records.
    """
    numbers: Counter[str] = Counter()
    sources: defaultdict[str, set[int]] = defaultdict(set)
    examples: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rejected_rows(store, args.storage_options, reason=args.reason, source=args.source):
        reason = str(row["reason"])
        numbers[reason] += 1
        sources[reason].add(hash(row["source"]))
        if len(examples[reason]) < args.limit:
            examples[reason].append(row)
    reasons = sorted(numbers, key=lambda reason: (-numbers[reason], reason))
    if args.json:
        print_json(
            plain_value(
                {
                    "rejected": {reason: numbers[reason] for reason in reasons},
                    "examples": [row for reason in reasons for row in examples[reason]],
                }
            )
        )
        return 0
    if not reasons:
        print("no rejected records")
        return 0
    for reason in reasons:
        shown = printable(without_secrets(reason))
        print(f"{count(numbers[reason], 'record')} of {count(len(sources[reason]), 'source')}: {shown}")
        for row in examples[reason]:
            print(f"  {_described(row)}")
        more = numbers[reason] - len(examples[reason])
        if more > 0:
            print(f"  and {more:,} more; --limit {numbers[reason]} shows all")
        print(f"  to do them again: --only-rejected {shlex.quote(shown)}")
    print(
        "\nAdd that to the command of the job: only the tasks of these records are done again. After an edit of the "
        "function, add --on-job-change=accept, too."
    )
    return 0


def _described(row: Mapping[str, Any]) -> str:
    """Return a rejected record as a line: its place, then its error without a repeated place."""
    place = f"{row['source']}: record {row['record']}"
    if row["bytes"] is not None:  # None for a row of a column file
        place += ", bytes [{}, {})".format(*row["bytes"])
    error = " ".join(str(row["error"]).split())
    error = error.removeprefix(f"{place}: ")
    at = f" (at {row['at']})" if row["at"] else ""
    cut = error if len(error) <= _SHOWN_CHARACTERS else f"{error[:_SHOWN_CHARACTERS]} ..."
    return printable(without_secrets(f"{place}{': ' if cut else ''}{cut}{at}"))
