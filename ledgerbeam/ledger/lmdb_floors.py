"""What keeps leaves from counting: floors under a source's numbers, and contradictions between its tasks.

Only the sidecar of a remote ledger needs either; see `sidecar`.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Floor(NamedTuple):
    """From which number on leaves, or failures, of a source count.

    Floors merge as sets do, in whatever order what they are made of comes in.

    Attributes:
        back: the first registration after the source was last replaced; 0 if it never was, or was forgotten since.
        after: the greatest number at which it was replaced or forgotten.
    """

    back: int = 0
    after: int = 0

    @property
    def least(self) -> int:
        """The least number that counts."""
        return self.back or self.after

    def merged(self, other: Floor) -> Floor:
        """The floor of all that both are made of."""
        after = max(self.after, other.after)
        return Floor(min((back for back in (self.back, other.back) if back > after), default=0), after)

    def lowered(self, number: int) -> Floor:
        """The floor once a registration is known: the first may come in after a later one."""
        return Floor(number, self.after) if self.after < number < self.back else self


def read_floors(txn: Transaction, source: bytes) -> tuple[Floor, Floor]:
    """The floors of the leaves and of the failures of a source."""
    row = txn.get(FLOORS, source) if txn.count(FLOORS) else None
    back, after, failures_back, failures_after = (0, 0, 0, 0) if row is None else FLOOR_ROW.unpack(row)
    return Floor(back, after), Floor(failures_back, failures_after)


def floors(txn: Transaction, source: bytes) -> tuple[int, int]:
    """The least numbers that leaves, and failures, of a source must have."""
    leaves, failures = read_floors(txn, source)
    return leaves.least, failures.least


def merge_floors(txn: Transaction, source: bytes, leaves: Floor, failures: Floor) -> None:
    """Take in what else is known of the floors of a source."""
    before = read_floors(txn, source)
    _put_floors(txn, source, before[0].merged(leaves), before[1].merged(failures))


def lower_floors(txn: Transaction, source: bytes, number: int) -> None:
    """Note a registration of a source that is registered."""
    before = read_floors(txn, source)
    after = tuple(floor.lowered(number) for floor in before)
    if after != before:
        _put_floors(txn, source, *after)


def may_be_early(txn: Transaction, source: bytes, number: int) -> bool:
    """Tell whether a leaf would count if a registration that has not come in yet had its number."""
    floor, _ = read_floors(txn, source)
    return floor.after < number < floor.back


def _put_floors(txn: Transaction, source: bytes, leaves: Floor, failures: Floor) -> None:
    txn.put(FLOORS, source, FLOOR_ROW.pack(*leaves, *failures))


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
