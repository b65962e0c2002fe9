"""Superseded outputs that a host still knows, and that were deleted as it learns from a snapshot.

A snapshot says what there is, so a deletion that the objects that it stands for told of is in none of its rows. A host
that has folded some of these objects, and not the one that told of the deletion, knows a superseded output which no
object names any more: not the snapshot, and none of the objects beside it. Such an output goes.

Two compactions at once may stand for different objects, and the snapshot of one of them still name what the other knows
to be deleted. So a snapshot repeats the deletions of the segments that it stands for, until the next one stands for
both: they do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ledgerbeam.ledger.lmdb.superseded import drop_stale
from ledgerbeam.ledger.lmdb.tables import SUPERSEDED, Transaction
from ledgerbeam.ledger.model.identity import ID_BYTES, name_key
from ledgerbeam.ledger.model.rows import read_output
from ledgerbeam.ledger.model.values import identity, output_name, row, rows
from ledgerbeam.ledger.remote.segment import Segment


class Doubts:
    """The superseded outputs of a sidecar that no object has named yet, while a snapshot is folded."""

    def __init__(self, txn: Transaction) -> None:
        """Doubt all that the sidecar knows."""
        self._rows = dict(txn.scan(SUPERSEDED, b""))
        self._sources = {key[:ID_BYTES] for key in self._rows}
        self._dropped: list[tuple[int, Sequence[str]]] = []

    def see(self, segment: Segment) -> None:
        """Take in what an object names, and what it says was deleted. Raises ValueError for rows that cannot be."""
        if segment.dropped:
            self._dropped.append((segment.number, segment.dropped))
        for source, name in _named(segment) if self._rows else ():
            if source in self._sources:
                self._rows.pop(source + name_key(name), None)

    def settle(self, txn: Transaction) -> None:
        """Drop what no object has named, and what was deleted."""
        for key, known in self._rows.items():
            if txn.get(SUPERSEDED, key) == known:  # else another process has folded more
                txn.delete(SUPERSEDED, key)
        for number, names in self._dropped:
            drop_stale(txn, names, number)


def _named(segment: Segment) -> Iterator[tuple[bytes, str]]:
    """Yield the source and the name of each output in the rows of a segment."""
    for leaf in segment.leaves:
        for output in leaf.outputs:
            yield leaf.source_id, output.name
    state = segment.state or {}
    for value in rows(state.get("complete", [])):
        source, _, _, outputs, *_ = row(value, 4, 5)
        for output in rows(outputs):
            yield identity(source), read_output(output).name
    for value in rows(state.get("superseded", [])):
        source, name, _ = row(value, 3)
        yield identity(source), output_name(name)
