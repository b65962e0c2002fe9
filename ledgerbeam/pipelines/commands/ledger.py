"""``ledgerbeam ledger ...``: look at a ledger while its job runs or after it, or make it forget."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore, OutputRow, RemoteStore
from ledgerbeam.ledger import compact as compact_store
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.console import count, print_json, print_json_stream
from ledgerbeam.redaction import plain_value, without_secrets

__all__ = ["compact", "forget", "main", "outputs"]

# Imported on use: looking at a ledger is to answer at once, and most actions need little.
_ACTIONS = {
    "status": "ledgerbeam.pipelines.commands.ledger_status:status",
    "failures": "ledgerbeam.pipelines.commands.ledger_failures:failures",
    "outputs": "ledgerbeam.pipelines.commands.ledger:outputs",
    "verify": "ledgerbeam.pipelines.commands.ledger_verify:verify",
    "export": "ledgerbeam.pipelines.commands.ledger_export:export",
    "report": "ledgerbeam.pipelines.commands.ledger_report:report",
    "forget": "ledgerbeam.pipelines.commands.ledger:forget",
    "compact": "ledgerbeam.pipelines.commands.ledger:compact",
}


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Runs one action on a ledger and returns its exit status."""
    read_only = args.action not in ("forget", "compact")
    store = open_ledger(args.url, args.storage_options, create=False, read_only=read_only)
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


def compact(store: LedgerStore, args: argparse.Namespace) -> int:
    """Puts one snapshot in the place of the objects of a remote ledger.

    Raises:
        UsageError: If the ledger is local.
    """
    if not isinstance(store, RemoteStore):
        raise UsageError(f"ledger {args.url}: only a remote ledger is compacted; a local one needs none")
    done = compact_store(store)
    if args.json:
        print_json(dataclasses.asdict(done))
    else:
        print(f"{count(done.replaced, 'object')} replaced by a snapshot of {done.parts:,}, {done.bytes:,} bytes")
    return 0


def outputs(store: LedgerStore, args: argparse.Namespace) -> int:
    """Prints one line for each output, or one JSON object; memory does not grow with their number. Returns 0."""
    rows = store.outputs()
    if args.json:
        job = store.job()
        root = job.parameters.get("output") if job else None
        head = {"complete": store.status()["complete"], "output": root if isinstance(root, str) else None}
        print_json_stream(head, "outputs", map(_as_json, rows))
        return 0
    for row in rows:
        output = row.output
        print(
            without_secrets(output.name),
            output.records,
            output.size,
            output.checksum,
            without_secrets(row.url),
            sep="\t",
        )
    return 0


def _as_json(row: OutputRow) -> dict[str, Any]:
    shown: dict[str, Any] = plain_value({**dataclasses.asdict(row.output), "source": row.url, "complete": row.complete})
    return shown
