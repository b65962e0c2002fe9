"""Audit results of a run, as a ledger holds them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ledgerbeam.ledger.model.values import integer, mapping, text


class Audit(NamedTuple):
    """The audits of a run.

    Attributes:
        tasks: Number of tasks that were computed again.
        differ: Number of them whose results were not the published ones.
        found: The first difference, for people; empty without a difference.
        job: Fingerprint of the job that was audited.
    """

    tasks: int = 0
    differ: int = 0
    found: str = ""
    job: str = ""


def read_audit(value: Any) -> dict[str, Any]:
    """Check the audits of a run in a ledger. Raises ValueError."""
    found = mapping(value)
    if found.keys() != set(Audit._fields):
        raise ValueError(f"expected the audits of a run as {Audit._fields}, found {sorted(found)!r:.80}")
    numbers = {name: integer(found[name]) for name in ("tasks", "differ")}
    return {**numbers, "found": text(found["found"]), "job": text(found["job"])}


def audit_of(runs: list[dict[str, Any]], fingerprint: str) -> Audit:
    """Return the audits of all runs of a job together. The last audit tells whether results differ.

    Args:
        runs: Rows of `LedgerStore.runs`.
        fingerprint: Of the job; audits of other jobs that used the ledger do not count.
    """
    rows = [Audit(**run["audit"]) for run in runs if run.get("audit") and run["audit"]["job"] == fingerprint]
    last = rows[-1] if rows else Audit()
    return Audit(sum(row.tasks for row in rows), last.differ, last.found, fingerprint)
