"""Which sources a run is to do again: of those that failed, or of tasks that rejected records."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import escape

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.redaction import printable

__all__ = ["require_failed", "sources_that_failed", "withdraw_rejected"]

_SHOWN_REASONS = 10


def require_failed(stores: Sequence[LedgerStore], pattern: str) -> None:
    """Refuse to try again what has failed for a reason, if nothing has.

    Args:
        stores: The ledgers of all stages of a job, the last one last.
        pattern: A shell pattern of reasons.

    Raises:
        UsageError: If no failure has such a reason.
    """
    if not any(fnmatchcase(row.reason, pattern) for store in stores for row in store.failures()):
        raise UsageError(
            f"--only-failed {pattern}: no failure has such a reason; to see all: "
            f"ledgerbeam ledger failures {shlex.quote(stores[-1].url)}"
        )


def sources_that_failed(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Return the ids of the sources with a failure whose reason matches; their quarantined tasks are freed.

    Args:
        store: The ledger of a job, or of one of its stages.
        pattern: A shell pattern.
    """
    sources: set[bytes] = set()
    quarantined: set[str] = set()
    for row in store.failures():
        if fnmatchcase(row.reason, pattern):
            sources.add(row.source_id)
            if row.quarantined:
                quarantined.add(row.url)
    for url in sorted(quarantined):
        store.forget(escape(url), failures_only=True)
    return frozenset(sources)


def withdraw_rejected(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Make the tasks that rejected records run again, and return the ids of their sources.

    What they have written stays in place until it is written again.

    Args:
        store: The job's ledger. No run is at work on it.
        pattern: A shell pattern, or the very text, of the reasons.

    Raises:
        UsageError: If no record was rejected for such a reason.
    """
    known = store.status()["records"]["rejected"]
    reasons = [reason for reason in known if reason == pattern or fnmatchcase(reason, pattern)]
    if not reasons:
        named = ", ".join(map(printable, sorted(known)[:_SHOWN_REASONS])) or "none"
        raise UsageError(
            f"--only-rejected {pattern}: no record was rejected for such a reason; the reasons are: {named}; to see "
            f"all: ledgerbeam ledger rejects {shlex.quote(store.url)}"
        )
    tasks: dict[bytes, set[bytes]] = {}
    for reason in reasons:
        for source, nodes in store.rejected_tasks(reason):
            tasks.setdefault(source, set()).update(nodes)
    store.withdraw(tasks.items())
    return frozenset(tasks)
