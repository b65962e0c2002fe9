"""``ledgerbeam ledger stats``: statistics that the functions of a job recorded, over all tasks."""

from __future__ import annotations

import argparse

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.reporter import print_json, print_table
from ledgerbeam.pipelines.report.stages import stage_statistics
from ledgerbeam.pipelines.report.statistics import StatisticRow, statistic_rows


def stats(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the statistics over all recorded tasks. Returns 0.

    Raises:
        UsageError: No task has a statistic of the given name.
    """
    found = stage_statistics(store, args.storage_options, args.name)
    if args.name is not None and not found:
        raise UsageError(f"{store.url}: no recorded task has a statistic {args.name!r}")
    if args.json:
        print_json({name: merged.value() for name, merged in found.items()})
    elif found:
        rows = [_cells(row) for name, merged in found.items() for row in statistic_rows(name, merged)]
        print_table(["name", "kind", "tasks", "value", "off by"], rows)
    else:
        print("no statistics: no function of a recorded task has called ledgerbeam.stats")
    return 0


def _cells(row: StatisticRow) -> list[str]:
    return [printable(without_secrets(cell)) for cell in row]
