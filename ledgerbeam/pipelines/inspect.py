"""``ledgerbeam ledger ...``: look at a ledger while its job runs or after it, or make it forget."""

from __future__ import annotations

import argparse
import importlib

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore, open_store
from ledgerbeam.pipelines.report import count, print_json

__all__ = ["forget", "main"]

# Imported on use: looking at a ledger is to answer at once, and most actions need little.
_ACTIONS = {
    "status": "ledgerbeam.pipelines.ledger_status:status",
    "failures": "ledgerbeam.pipelines.ledger_failures:failures",
    "outputs": "ledgerbeam.pipelines.ledger_outputs:outputs",
    "verify": "ledgerbeam.pipelines.ledger_verify:verify",
    "export": "ledgerbeam.pipelines.ledger_export:export",
    "report": "ledgerbeam.pipelines.ledger_report:report",
    "forget": "ledgerbeam.pipelines.inspect:forget",
}


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Runs one action on a ledger and returns its exit status."""
    store = open_store(args.url, create=False, read_only=args.action != "forget")
    module, _colon, name = _ACTIONS[args.action].partition(":")
    status: int = getattr(importlib.import_module(module), name)(store, args)
    return status


def forget(store: LedgerStore, args: argparse.Namespace) -> int:
    """Makes the job do sources again.

    Raises:
        UsageError: If a pattern matches no source.
    """
    forgotten: list[str] = []
    for pattern in args.patterns:
        found = store.forget(pattern, failures_only=args.failures_only)
        if not found:
            raise UsageError(f"{pattern}: no source of the ledger matches; its URLs are absolute, and * also matches /")
        forgotten += found
    if args.json:
        print_json({"forgotten": forgotten})
    else:
        print(f"{count(len(forgotten), 'source')} forgotten; the next run does them again")
    return 0
