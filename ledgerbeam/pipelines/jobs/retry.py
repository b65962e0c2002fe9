"""Partial reruns: the sources whose tasks failed, or rejected records, for a reason.

A run that repeats tasks removes their failures and rejects from the ledger. So the ledger records them as withdrawn,
and the run records its selection. If the run is killed, the same command finds both and continues.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal

from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.report.run_info import DONE, TASKS_FAILED

Kind = Literal["failed", "rejected"]

_SHOWN_REASONS = 10
_NOTED_AT_ONCE = 10_000


def partial_run(store: LedgerStore, kind: Kind, pattern: str) -> dict[str, str]:
    """Return the selection that a partial run records as ``only``."""
    job = store.job()
    return {kind: pattern, "job": "" if job is None else job.fingerprint}


def require_failed(stores: Sequence[LedgerStore], pattern: str) -> None:
    """Raise an error for a retry by reason if no failure has the reason and the last run did not retry it either.

    Args:
        stores: The ledgers of all stages of a job, the last stage last.
    """
    for store in stores:
        if _last_only(store).get("failed") == pattern or any(_withdrawn(store, "failed", pattern)):
            return
        if any(fnmatchcase(row.reason, pattern) for row in store.failures()):
            return
    raise UsageError(
        f"--only-failed {pattern}: no failure has such a reason; to see all: "
        f"ledgerbeam ledger failures {shlex.quote(stores[-1].url)}"
    )


def sources_that_failed(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Return the IDs of the sources with a failure whose reason matches, and release their quarantined tasks.

    Incomplete sources that an earlier run selected by such a reason are included.
    """
    withdrawn = frozenset(_withdrawn(store, "failed", pattern))
    reasons = defaultdict[bytes, set[str]](set)
    quarantined: set[bytes] = set()
    for row in store.failures():
        if fnmatchcase(row.reason, pattern):
            reasons[row.source_id].add(row.reason)
            if row.quarantined:
                quarantined.add(row.source_id)
    rest = iter(reasons.items())
    while some := dict(islice(rest, _NOTED_AT_ONCE)):
        store.withdraw_failures(some, quarantined & some.keys())
    return withdrawn | reasons.keys()


def withdraw_rejected(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Make the tasks that rejected records run again, and return the ids of their sources.

    Their outputs stay in place until they are written again. If the last run had the same selection and did not finish,
    only the rest is run.

    Args:
        pattern: A shell pattern, or the exact text, of the reasons.

    Raises:
        UsageError: No record was rejected for such a reason, and the last run did not repeat such tasks either.
    """
    withdrawn = frozenset(_withdrawn(store, "rejected", pattern))
    last = _last_only(store)
    if last == partial_run(store, "rejected", pattern) and (withdrawn or not _has_ended(store)):
        return withdrawn
    known = store.status()["records"]["rejected"]
    reasons = [reason for reason in known if _matches(reason, pattern)]
    if not reasons and not withdrawn and last.get("rejected") != pattern:
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
    return withdrawn | tasks.keys()


def _withdrawn(store: LedgerStore, kind: Kind, pattern: str) -> Iterator[bytes]:
    """Yield the sources with tasks that were withdrawn for a reason and have not all run since."""
    for source, why in store.withdrawn():
        if any(_matches(reason, pattern) for reason in getattr(why, kind)):
            yield source


def _matches(reason: str, pattern: str) -> bool:
    return reason == pattern or fnmatchcase(reason, pattern)


def _last_only(store: LedgerStore) -> dict[str, Any]:
    """Return the selection of the last run; empty if it ran all open sources."""
    last = store.status()["last_run"]
    only = {} if last is None else last["info"].get("only")
    return only if isinstance(only, dict) else {}


def _has_ended(store: LedgerStore) -> bool:
    last = store.status()["last_run"]
    return last is not None and last["outcome"] in (DONE, TASKS_FAILED)
