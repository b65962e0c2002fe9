"""Which sources a run is to do again, of those that failed."""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase
from glob import escape

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore

__all__ = ["sources_that_failed"]


def sources_that_failed(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Return the ids of the sources with a failure whose reason matches; their quarantined tasks are freed.

    Args:
        store: The job's ledger.
        pattern: A shell pattern.

    Raises:
        UsageError: If no failure has such a reason.
    """
    sources: set[bytes] = set()
    quarantined: set[str] = set()
    for row in store.failures():
        if fnmatchcase(row.reason, pattern):
            sources.add(row.source_id)
            if row.quarantined:
                quarantined.add(row.url)
    if not sources:
        raise UsageError(
            f"--only-failed {pattern}: no failure has such a reason; to see all: "
            f"ledgerbeam ledger failures {shlex.quote(store.url)}"
        )
    for url in sorted(quarantined):
        store.forget(escape(url), failures_only=True)
    return frozenset(sources)
