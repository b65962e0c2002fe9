"""Folding in a sidecar: the folded objects, deleted outputs in snapshots, and the pause of garbage collection.

A snapshot has no rows of deleted outputs. So a host that has folded some of the replaced objects, but not the segment
that lists a deletion, knows a superseded output that no object names any more: neither the snapshot, nor any other
object. Such an output is dropped.

Two concurrent compactions may replace different objects, and the snapshot of one may still name an output that the
other knows to be deleted. So a snapshot repeats the deletions listed in the segments that it replaces. The next
snapshot, which replaces both, leaves them out, so they do not accumulate.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator, Sequence

from ledgerbeam.ledger.lmdb.superseded import drop_stale
from ledgerbeam.ledger.lmdb.tables import FOLDED, META, SUPERSEDED, Transaction
from ledgerbeam.ledger.model.identity import ID_BYTES, name_key
from ledgerbeam.ledger.model.rows import read_output
from ledgerbeam.ledger.model.values import identity, output_name, row, rows
from ledgerbeam.ledger.remote.segment import Segment

KEY_NUMBER = b"number"

_WHOLE, _LEAVES_AGAIN = b"", b"leaves"


def highest_number(txn: Transaction) -> int:
    """Return the greatest number of a folded control object."""
    return int(txn.get(META, KEY_NUMBER) or b"0")


def is_folded(txn: Transaction, name: str) -> bool:
    """Return whether an object was folded, and no part of it is due again."""
    return txn.get(FOLDED, name.encode()) == _WHOLE


def are_leaves_due(txn: Transaction, name: str) -> bool:
    """Return whether an object was folded, and its leaves are due again."""
    return txn.get(FOLDED, name.encode()) == _LEAVES_AGAIN


def mark_folded(txn: Transaction, name: str) -> None:
    """Record that an object was folded."""
    txn.put(FOLDED, name.encode(), _WHOLE)


def fold_leaves_again(txn: Transaction, number: int) -> None:
    """Mark the leaves of all objects with a number, or a greater one, to be folded again.

    Some of these leaves left no trace, or were withdrawn with others, and count by now.
    """
    for later in range(number, highest_number(txn) + 1):
        for prefix in (f"segments/{later:06d}/t-", f"snapshots/{later:06d}-"):
            found = [(key, _LEAVES_AGAIN) for key, _ in txn.scan(FOLDED, prefix.encode())]
            txn.put_many(FOLDED, found)


class UnnamedOutputs:
    """The superseded outputs of a sidecar that no object has named yet, while a snapshot is folded; see the module."""

    def __init__(self, txn: Transaction) -> None:
        """Start with all superseded outputs of the sidecar."""
        self._rows = dict(txn.scan(SUPERSEDED, b""))
        self._sources = {key[:ID_BYTES] for key in self._rows}
        self._dropped: list[tuple[int, Sequence[str]]] = []

    def observe(self, segment: Segment) -> None:
        """Remove the outputs that an object names, and collect its deletions. Raises ValueError for invalid rows."""
        if segment.dropped:
            self._dropped.append((segment.number, segment.dropped))
        for source, name in _named(segment) if self._rows else ():
            if source in self._sources:
                self._rows.pop(source + name_key(name), None)

    def drop_unnamed(self, txn: Transaction) -> None:
        """Drop the outputs that no object has named, and the deleted ones."""
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


class _Pauses:
    """The number of active pauses in all threads, and whether the collector was enabled before the first.

    Folding creates millions of rows without cycles. The search for cycles would take a third of its time.
    """

    def __init__(self) -> None:
        self._was_on = False
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_on:
                gc.enable()

    def forget_parent(self) -> None:
        """Reset the state in a forked process, which has no other threads."""
        if self._count and self._was_on:
            gc.enable()
        self._reset()


_pauses = _Pauses()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector of this process. Use it for one batch of rows, not longer."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


os.register_at_fork(after_in_child=_pauses.forget_parent)
