"""Partial reruns: the sources whose tasks failed, or rejected records, for a reason.

What a run withdraws is gone from the failures and the rejects of the ledger. So the ledger notes it as withdrawn, and
the run records what it was asked for. If the run is killed, the same command finds both and continues.
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
    """Return what a partial run records of itself, as ``only`` of the run.

    Args:
        store: The ledger, taken for the job.
        kind: What is to be done again.
        pattern: A shell pattern of reasons.
    """
    job = store.job()
    return {kind: pattern, "job": "" if job is None else job.fingerprint}


def require_failed(stores: Sequence[LedgerStore], pattern: str) -> None:
    """Refuse to try again what has failed for a reason, if nothing has and the last run did not try it either.

    Args:
        stores: The ledgers of all stages of a job, the last one last.
        pattern: A shell pattern of reasons.

    Raises:
        UsageError: If no failure has such a reason.
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
    """Return the ids of the sources with a failure whose reason matches; their quarantined tasks are freed.

    Sources that an earlier run was to do again for such a reason are among them until they are complete.

    Args:
        store: The ledger of a job, or of one of its stages.
        pattern: A shell pattern.
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

    What they have written stays in place until it is written again. If the last run was the same one and did not do all
    of it, only what it has left is done.

    Args:
        store: The job's ledger. No run is at work on it.
        pattern: A shell pattern, or the very text, of the reasons.

    Raises:
        UsageError: If no record was rejected for such a reason, and the last run did not do such tasks again either.
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
    """Yield the sources of which tasks were withdrawn for a reason and have not all run since."""
    for source, why in store.withdrawn():
        if any(_matches(reason, pattern) for reason in getattr(why, kind)):
            yield source


def _matches(reason: str, pattern: str) -> bool:
    return reason == pattern or fnmatchcase(reason, pattern)


def _last_only(store: LedgerStore) -> dict[str, Any]:
    """Return what the last run was to do again; nothing if it was to do all that is open."""
    last = store.status()["last_run"]
    only = {} if last is None else last["info"].get("only")
    return only if isinstance(only, dict) else {}


def _has_ended(store: LedgerStore) -> bool:
    last = store.status()["last_run"]
    return last is not None and last["outcome"] in (DONE, TASKS_FAILED)
