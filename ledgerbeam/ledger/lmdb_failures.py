"""Tasks that failed, and tasks whose worker died: what keeps a source open, for people and for the quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from ledgerbeam.ledger.identity import node_id
from ledgerbeam.ledger.json_rows import decode, encode
from ledgerbeam.ledger.lmdb_rows import (
    APPLIED,
    ATTEMPTS,
    ATTEMPTS_ROW,
    COMPLETED,
    FAILED,
    SOURCES,
    Transaction,
)
from ledgerbeam.ledger.store import MAX_ATTEMPTS, Failure, Mark

ERROR_CHARACTERS = 4000
"""Longer error messages of failures are cut."""

CLEARED = (FAILED, ATTEMPTS)
"""The tables that have no row of a finished task."""


def clear_failures(txn: Transaction, source: bytes) -> None:
    """Drop the failures and worker deaths of a source."""
    for table in CLEARED:
        if txn.count(table):
            txn.delete_prefix(table, source)


def is_open(txn: Transaction, source: bytes, node: bytes) -> bool:
    """Tell whether a task of a registered source is still to be finished."""
    return (
        txn.get(SOURCES, source) is not None
        and txn.get(COMPLETED, source) is None
        and txn.get(APPLIED, source + node) is None
    )


def record_failure(txn: Transaction, failure: Failure, now: float) -> bool:
    """Record a failure; False if its task is finished by now."""
    node = node_id(failure.source_id, failure.lineage)
    if not is_open(txn, failure.source_id, node):
        return False
    key = failure.source_id + node
    known = txn.get(FAILED, key)
    row = failure_row(failure, now)
    if known is not None:
        before = decode(known)
        newer = row if now >= before["last"] else before  # they may come in late
        row = {**newer, "attempts": before["attempts"] + 1, "quarantined": before["quarantined"]}
    txn.put(FAILED, key, encode(row))
    return True


def failure_row(failure: Failure, now: float) -> dict[str, Any]:
    """The row of a task that failed for the first time."""
    return {
        "task": failure.task,
        "reason": failure.reason,
        "error": failure.error[:ERROR_CHARACTERS],
        "attempts": 1,
        "last": now,
        "quarantined": False,
    }


def count_deaths(txn: Transaction, marks: Iterable[Mark], now: float) -> list[Mark]:
    """Count a worker's death against the open tasks it had in work; gives those that are quarantined by it."""
    quarantined = []
    for mark in sorted(marks, key=itemgetter(0, 1)):
        key = mark.source_id + mark.node
        if not is_open(txn, mark.source_id, mark.node):
            continue
        row = txn.get(ATTEMPTS, key)
        deaths = 1 + (0 if row is None else ATTEMPTS_ROW.unpack(row)[0])
        txn.put(ATTEMPTS, key, ATTEMPTS_ROW.pack(deaths))
        if deaths < MAX_ATTEMPTS:
            continue
        known = txn.get(FAILED, key)
        failure = {
            "task": mark.name,
            "reason": f"its worker died {deaths} times",
            "error": "" if known is None else decode(known)["error"],
            "attempts": deaths + (0 if known is None else decode(known)["attempts"]),
            "last": now,
            "quarantined": True,
        }
        txn.put(FAILED, key, encode(failure))
        quarantined.append(mark)
    return quarantined
