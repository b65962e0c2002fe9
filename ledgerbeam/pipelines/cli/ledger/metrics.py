"""``ledgerbeam ledger metrics``: metrics of a job for a monitoring system."""

from __future__ import annotations

import argparse

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.reporter import print_json, print_table
from ledgerbeam.pipelines.report.hosts import hosts_of
from ledgerbeam.pipelines.report.metrics import Metric, exposition, job_metrics
from ledgerbeam.pipelines.report.state import ledger_state


def metrics(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the metrics of a ledger. Returns 0."""
    state = ledger_state(store)
    found = job_metrics(state, hosts_of(store, state.runs))
    if args.prometheus:
        job = state.found["job"]
        labels = {"ledger": without_secrets(store.url), "job": "" if job is None else job["pipeline"]}
        print(exposition(found, labels), end="")
    elif args.json:
        print_json([metric._asdict() for metric in found])
    else:
        print_table(["metric", "labels", "value"], [[metric.name, _labels(metric), _value(metric)] for metric in found])
    return 0


def _labels(metric: Metric) -> str:
    return ", ".join(f"{name}={without_secrets(value)}" for name, value in metric.labels.items() if value)


def _value(metric: Metric) -> str:
    return f"{metric.value:,.2f}".removesuffix(".00")
