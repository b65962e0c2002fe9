"""What keeps leaves from counting: floors under a source's numbers, and contradictions between its tasks.

Only the sidecar of a remote ledger needs either; see `sidecar`.
"""

from __future__ import annotations

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import lmdb_sources
from ledgerbeam.ledger.identity import node_id
from ledgerbeam.ledger.json_rows import encode
from ledgerbeam.ledger.lmdb_failures import failure_row
from ledgerbeam.ledger.lmdb_rows import (
    APPLIED,
    COMPLETED,
    DELTA,
    FAILED,
    FLOOR_ROW,
    FLOORS,
    PENDING,
    PENDING_ROW,
    SOURCES,
    Transaction,
    unpack_completion,
)
from ledgerbeam.ledger.store import Failure, Leaf, Totals

CONTRADICTION = b"\xff" * 16
"""The node of the entry that keeps a source open whose tasks contradict each other."""

_MORE_THAN_ANY_TASKS = 2**48


def floors(txn: Transaction, source: bytes) -> tuple[int, int]:
    """The least numbers that leaves, and failures, of a source must have."""
    row = txn.get(FLOORS, source) if txn.count(FLOORS) else None
    leaves, failures = (0, 0) if row is None else FLOOR_ROW.unpack(row)
    return leaves, failures


def raise_floors(txn: Transaction, source: bytes, leaves: int, failures: int) -> None:
    """Raise the floors of a source; they never fall."""
    before = floors(txn, source)
    txn.put(FLOORS, source, FLOOR_ROW.pack(max(before[0], leaves), max(before[1], failures)))


def is_contradicted(txn: Transaction, source: bytes) -> bool:
    """Tell whether a source is held open by `contradict`."""
    return txn.get(APPLIED, source + CONTRADICTION) is not None


def contradict(txn: Transaction, source: bytes) -> None:
    """Hold a registered source open whose leaves contradict each other, until it is forgotten."""
    if txn.get(SOURCES, source) is None or is_contradicted(txn, source):
        return
    known = txn.get(PENDING, source)
    pending, *tally = (1, *Totals()) if known is None else PENDING_ROW.unpack(known)
    completed = txn.pop(COMPLETED, source)
    if completed is not None:
        pending, tally = 0, list(unpack_completion(completed)[1])
        lmdb_sources.count_withdrawal(txn)
    txn.put(PENDING, source, PENDING_ROW.pack(pending + _MORE_THAN_ANY_TASKS, *tally))
    txn.put(APPLIED, source + CONTRADICTION, DELTA.pack(_MORE_THAN_ANY_TASKS))


def note_contradiction(txn: Transaction, leaf: Leaf, error: LedgerError, now: float) -> None:
    """Hold the source of a leaf open that cannot be true beside those recorded, and keep the error as its failure.

    A leaf of a source that nobody registered is dropped: no run asks for it.
    """
    if txn.get(SOURCES, leaf.source_id) is None:
        return
    contradict(txn, leaf.source_id)
    failure = Failure(leaf.source_id, leaf.lineage, f"task at {leaf.lineage}", type(error).__name__, str(error))
    row = encode(failure_row(failure, now))
    txn.put(FAILED, leaf.source_id + node_id(leaf.source_id, leaf.lineage), row)
