"""``ledgerbeam ledger outputs``: the outputs of a job, in order."""

from __future__ import annotations

import argparse

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.reporter import print_json_stream
from ledgerbeam.pipelines.report.ledger import output_values


def outputs(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print a line for each output, or one JSON object. Memory does not depend on their number. Returns 0."""
    rows = store.outputs()
    if args.json:
        job = store.job()
        root = job.parameters.get("output") if job else None
        head = {"complete": store.status()["complete"], "output": root if isinstance(root, str) else None}
        print_json_stream(head, "outputs", map(output_values, rows))
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
