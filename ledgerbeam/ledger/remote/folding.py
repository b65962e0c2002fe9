"""Which objects of a ledger a sidecar has taken in, and of which it must look at the leaves once more."""

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
    """Return the greatest number of a control object that was folded."""
    return int(txn.get(META, KEY_NUMBER) or b"0")


def is_folded(txn: Transaction, name: str) -> bool:
    """Return whether an object was taken in, and nothing of it is due once more."""
    return txn.get(FOLDED, name.encode()) == _WHOLE


def are_leaves_due(txn: Transaction, name: str) -> bool:
    """Return whether an object was taken in, and its leaves are due once more."""
    return txn.get(FOLDED, name.encode()) == _LEAVES_AGAIN


def mark_folded(txn: Transaction, name: str) -> None:
    """Note that an object was taken in."""
    txn.put(FOLDED, name.encode(), _WHOLE)


def fold_leaves_again(txn: Transaction, number: int) -> None:
    """Have the leaves of all objects that carry a number, or a greater one, folded once more.

    Some of them have left no trace, or were withdrawn with others, and count as is known by now.
    """
    for later in range(number, highest_number(txn) + 1):
        for prefix in (f"segments/{later:06d}/t-", f"snapshots/{later:06d}-"):
            found = [(key, _LEAVES_AGAIN) for key, _ in txn.scan(FOLDED, prefix.encode())]
            txn.put_many(FOLDED, found)


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


class _Pauses:
    """Those that are at work now, in any thread, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self._was_on = False
        self._begin_anew()

    def _begin_anew(self) -> None:
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
        """Begin anew in a forked process, in which no other thread lives."""
        if self._count and self._was_on:
            gc.enable()
        self._begin_anew()


_pauses = _Pauses()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of cycles in this process; for as long as a batch of rows takes, not longer."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


os.register_at_fork(after_in_child=_pauses.forget_parent)
