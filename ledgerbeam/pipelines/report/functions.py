"""Counts and statistics of each of several functions of a job."""

from __future__ import annotations

from typing import Any

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.summaries import function_summaries
from ledgerbeam.pipelines.report.accounts import shown_names


def function_values(store: LedgerStore) -> list[dict[str, Any]]:
    """Return `function_summaries` without secrets; an empty list for a job of one function.

    For a job of several functions this reads the statistics of every task.
    """
    job = store.job()
    rows = [] if job is None or "functions" not in job.parameters else function_summaries(store)
    return [{**row, **{end: shown_names(row[end]) for end in ("dropped", "rejected")}} for row in rows]
