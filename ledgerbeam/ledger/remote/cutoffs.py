"""Reasons why leaves do not count: cutoffs under a source's numbers, and contradictions between its tasks.

Only the sidecar of a remote ledger needs them; see `apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledgerbeam.errors import LedgerDamagedError, LedgerError
from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb.commit import decode_output
from ledgerbeam.ledger.lmdb.failures import NEVER_CLEARED, Stamp, failure_row
from ledgerbeam.ledger.lmdb.tables import (
    APPLIED,
    COMPLETED,
    CUTOFFS,
    DELTA,
    FAILED,
    OUTPUTS,
    PENDING,
    PENDING_ROW,
    SOURCES,
    Transaction,
    unpack_completion,
)
from ledgerbeam.ledger.model.identity import ID_BYTES, Lineage, name_key, node_id
from ledgerbeam.ledger.model.rows import Failure, Leaf, Totals
from ledgerbeam.ledger.model.values import decode, encode

CONTRADICTION = b"\xff" * 16
_CLEARED = b"\xfe" * 16  # the node of an entry that stands for the deleted entries of a complete source
"""The node of the entry that keeps a source open whose tasks contradict each other."""

_MORE_THAN_ANY_TASKS = 2**48


class Cutoff(NamedTuple):
    """The least number with which leaves, or failures, of a source count.

    Cutoffs merge as sets do, independent of the order in which their parts arrive.

    Attributes:
        replaced: The greatest number with which the source was replaced; 0 if it never was.
        forgotten: The greatest number with which it was forgotten; 0 if it never was.
        comebacks: Numbers of its registrations after it was replaced, ascending. All known ones, because a late
            replacement may exclude the first of them.
    """

    replaced: int = 0
    forgotten: int = 0
    comebacks: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Cutoff:
        """Return the cutoff from the numbers of a row."""
        replaced, forgotten, *comebacks = numbers
        return cls(replaced, forgotten, tuple(comebacks))

    @property
    def numbers(self) -> list[int]:
        """The numbers of a row."""
        return [self.replaced, self.forgotten, *self.comebacks]

    @property
    def tenure(self) -> int:
        """The least number that counts, by replacements and comebacks alone."""
        return self.comebacks[0] if self.comebacks else self.replaced

    @property
    def least(self) -> int:
        """The least number that counts."""
        return max(self.tenure, self.forgotten)

    def merged(self, other: Cutoff) -> Cutoff:
        """Return the cutoff merged with another one."""
        replaced = max(self.replaced, other.replaced)
        comebacks = {back for back in self.comebacks + other.comebacks if back > replaced}
        return Cutoff(replaced, max(self.forgotten, other.forgotten), tuple(sorted(comebacks)))

    def registered(self, number: int) -> Cutoff:
        """Return the cutoff after a registration is known. Registrations may arrive in any order."""
        return self.merged(Cutoff(comebacks=(number,))) if self.comebacks else self

    def may_lower_to(self, number: int) -> bool:
        """Return whether a number counts only if a registration with this number, not known yet, arrives."""
        return max(self.replaced + 1, self.forgotten) <= number < min(self.comebacks, default=0)


def read_cutoffs(txn: Transaction, source: bytes) -> tuple[Cutoff, Cutoff]:
    """Return the cutoffs of the leaves and of the failures of a source."""
    row = txn.get(CUTOFFS, source) if txn.count(CUTOFFS) else None
    if row is None:
        return Cutoff(), Cutoff()
    leaves, failures = decode(row)
    return Cutoff.of(leaves), Cutoff.of(failures)


def cutoffs(txn: Transaction, source: bytes) -> tuple[int, int]:
    """Return the least numbers that leaves, and failures, of a source must have."""
    leaves, failures = read_cutoffs(txn, source)
    return leaves.least, failures.least


def merge_cutoffs(txn: Transaction, source: bytes, leaves: Cutoff, failures: Cutoff) -> None:
    """Merge more cutoffs of a source into the recorded ones."""
    before = read_cutoffs(txn, source)
    _put_cutoffs(txn, source, before[0].merged(leaves), before[1].merged(failures))


def note_registration(txn: Transaction, source: bytes, number: int) -> None:
    """Add a registration of a registered source to its cutoffs."""
    before = read_cutoffs(txn, source)
    after = tuple(cutoff.registered(number) for cutoff in before)
    if after != before:
        _put_cutoffs(txn, source, *after)


def may_be_early(txn: Transaction, source: bytes, number: int) -> bool:
    """Return whether a leaf with a number would count if a registration with this number arrived."""
    return read_cutoffs(txn, source)[0].may_lower_to(number)


def _put_cutoffs(txn: Transaction, source: bytes, leaves: Cutoff, failures: Cutoff) -> None:
    txn.put(CUTOFFS, source, encode([leaves.numbers, failures.numbers]))


def is_contradicted(txn: Transaction, source: bytes) -> bool:
    """Return whether a source is held open by `contradict`."""
    return txn.get(APPLIED, source + CONTRADICTION) is not None


def contradict(txn: Transaction, source: bytes) -> None:
    """Hold a registered source open until it is forgotten, because its leaves contradict each other."""
    if txn.get(SOURCES, source) is None or is_contradicted(txn, source):
        return
    known = txn.get(PENDING, source)
    pending, *tally = (1, *Totals()) if known is None else PENDING_ROW.unpack(known)
    completed = txn.pop(COMPLETED, source)
    if completed is not None:
        pending, tally = 0, list(unpack_completion(completed)[1])
        lmdb_sources.count_withdrawal(txn)
        txn.put(APPLIED, source + _CLEARED, DELTA.pack(-1))
    txn.put(PENDING, source, PENDING_ROW.pack(pending + _MORE_THAN_ANY_TASKS, *tally))
    txn.put(APPLIED, source + CONTRADICTION, DELTA.pack(_MORE_THAN_ANY_TASKS))


def note_overwritten(txn: Transaction, lost: Sequence[tuple[int, Leaf]], now: float) -> None:
    """Hold sources open whose outputs were overwritten by tasks of unregistered sources.

    The registration of such a source is lost. If it had replaced a known source, the known source would no longer
    count. The content of an output that both have written is undecidable.

    Args:
        txn: Open for writing.
        lost: Leaves of unknown sources, with the numbers of their segments.
        now: Time of the detection, seconds since 1970 UTC.
    """
    written = {name_key(output.name): (number, output) for number, leaf in lost for output in leaf.outputs}
    beside = [row for row in txn.rows(OUTPUTS, b"") if row[0][ID_BYTES:] in written] if written else []
    for key, row in beside:
        source, (number, output), (known, _) = key[:ID_BYTES], written[key[ID_BYTES:]], decode_output(row)
        is_same = (known.size, known.checksum) == (output.size, output.checksum)
        if is_same or number < cutoffs(txn, source)[0]:
            continue
        (url,) = lmdb_sources.urls_of_sources(txn, [source])
        error = LedgerDamagedError(
            f"source {url}: its output {output.name} was overwritten by a task of a source that no object of the "
            f"ledger registers (segment with number {number}): an object was deleted. Run `ledgerbeam ledger forget` "
            "on the source, and the job again"
        )
        hold_open(txn, source, (), error, now)


def hold_open(txn: Transaction, source: bytes, lineage: Lineage, error: LedgerError, now: float) -> None:
    """Hold a source open because of a contradiction, and keep the error as its failure.

    Args:
        txn: Open for writing.
        source: Id of the source.
        lineage: Lineage of the contradicting task; empty if it is a task of another source.
        error: The error.
        now: Time of the detection, seconds since 1970 UTC.
    """
    contradict(txn, source)
    failure = Failure(source, lineage, f"task at {lineage}", type(error).__name__, str(error))
    txn.put(FAILED, source + node_id(source, lineage), encode(failure_row(failure, Stamp(NEVER_CLEARED, now))))
