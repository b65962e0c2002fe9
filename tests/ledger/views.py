"""Everything that a ledger says, as one value that can be compared."""

from __future__ import annotations

from typing import Any

from ledgerbeam.ledger.model.store import LedgerStore


def picture(store: LedgerStore) -> dict[str, Any]:
    """Everything that a ledger says of its sources and tasks."""
    ids = [source for page in store.source_ids() for source in page]
    job = store.job()
    status = store.status()
    return {
        "job": None if job is None else job.as_dict(),
        "sources": {name: status["sources"][name] for name in ("complete", "open", "failed")},
        "tasks": status["tasks"],
        "gone": status["gone"],
        "rows": [row._replace(completed=0) for row in store.sources()],
        "totals": store.totals(),
        "records": status["records"],
        "statistics": sorted(store.statistics()),
        "rejected": list(store.rejected_tasks()),
        "progress": store.progress(ids),
        "pending": [store.pending(source) for source in ids],
        "outputs": list(store.outputs()),
        "failures": [(row.source_id, row.node, row.reason, row.quarantined) for row in store.failures()],
        "stale": store.stale_outputs(),
        "runs": [(run["id"], run["outcome"], run["listed"]) for run in store.runs()],
    }
