"""``ledgerbeam ledger outputs``: what a job has written, in order."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import OutputRow
from ledgerbeam.pipelines.console import print_json_stream
from ledgerbeam.redaction import plain_value, without_secrets

__all__ = ["outputs"]


def outputs(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print one line for each output, or one JSON object; memory does not grow with their number. Returns 0."""
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
            *([without_secrets(output.route)] if output.route else []),
            sep="\t",
        )
    return 0


def _as_json(row: OutputRow) -> dict[str, Any]:
    shown: dict[str, Any] = plain_value({**dataclasses.asdict(row.output), "source": row.url, "complete": row.complete})
    return shown
