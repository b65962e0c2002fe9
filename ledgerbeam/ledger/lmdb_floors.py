"""What keeps leaves from counting: floors under a source's numbers, and contradictions between its tasks.

Only the sidecar of a remote ledger needs either; see `sidecar`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import lmdb_sources
from ledgerbeam.ledger.identity import node_id
from ledgerbeam.ledger.json_rows import decode, encode
from ledgerbeam.ledger.lmdb_failures import FOR_GOOD, Stamp, failure_row
from ledgerbeam.ledger.lmdb_rows import (
    APPLIED,
    COMPLETED,
    DELTA,
    FAILED,
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
        replaced: the greatest number at which the source was replaced; 0 if it never was.
        forgotten: the greatest number at which it was forgotten; 0 if it never was.
        backs: its registrations after it was replaced, ascending. All that are known: a replacement that comes in late
            may rule out the first of them.
    """

    replaced: int = 0
    forgotten: int = 0
    backs: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Floor:
        """The floor that a row keeps as `numbers`."""
        replaced, forgotten, *backs = numbers
        return cls(replaced, forgotten, tuple(backs))

    @property
    def numbers(self) -> list[int]:
        """What a row keeps."""
        return [self.replaced, self.forgotten, *self.backs]

    @property
    def least(self) -> int:
        """The least number that counts."""
        return max(self.backs[0] if self.backs else self.replaced, self.forgotten)

    def merged(self, other: Floor) -> Floor:
        """The floor of all that both are made of."""
        replaced = max(self.replaced, other.replaced)
        backs = {back for back in self.backs + other.backs if back > replaced}
        return Floor(replaced, max(self.forgotten, other.forgotten), tuple(sorted(backs)))

    def registered(self, number: int) -> Floor:
        """The floor once a registration is known: the first may come in after a later one."""
        return self.merged(Floor(backs=(number,))) if self.backs else self

    def may_sink_to(self, number: int) -> bool:
        """Tell whether a number counts if a registration comes in that has it, and does not until then."""
        return max(self.replaced + 1, self.forgotten) <= number < min(self.backs, default=0)


def read_floors(txn: Transaction, source: bytes) -> tuple[Floor, Floor]:
    """The floors of the leaves and of the failures of a source."""
    row = txn.get(FLOORS, source) if txn.count(FLOORS) else None
    if row is None:
        return Floor(), Floor()
    leaves, failures = decode(row)
    return Floor.of(leaves), Floor.of(failures)


def floors(txn: Transaction, source: bytes) -> tuple[int, int]:
    """The least numbers that leaves, and failures, of a source must have."""
    leaves, failures = read_floors(txn, source)
    return leaves.least, failures.least


def merge_floors(txn: Transaction, source: bytes, leaves: Floor, failures: Floor) -> None:
    """Take in what else is known of the floors of a source."""
    before = read_floors(txn, source)
    _put_floors(txn, source, before[0].merged(leaves), before[1].merged(failures))


def note_registration(txn: Transaction, source: bytes, number: int) -> None:
    """Take in a registration of a source that is registered."""
    before = read_floors(txn, source)
    after = tuple(floor.registered(number) for floor in before)
    if after != before:
        _put_floors(txn, source, *after)


def may_be_early(txn: Transaction, source: bytes, number: int) -> bool:
    """Tell whether a leaf would count if a registration that has not come in yet had its number."""
    return read_floors(txn, source)[0].may_sink_to(number)


def _put_floors(txn: Transaction, source: bytes, leaves: Floor, failures: Floor) -> None:
    txn.put(FLOORS, source, encode([leaves.numbers, failures.numbers]))


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
    row = encode(failure_row(failure, Stamp(FOR_GOOD, now)))
    txn.put(FAILED, leaf.source_id + node_id(leaf.source_id, leaf.lineage), row)
