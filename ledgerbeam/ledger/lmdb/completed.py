"""Looking up completion for millions of sources, in bounded memory.

A lookup of a random id in LMDB reads a random page, and pages that were read count as memory of the process. A rerun
of a large job asks for nearly all ids, so once enough were found one by one, all completed ids are read in key order
into two columns (16 bytes an id), and pages of ids are looked up there by binary search.

The columns are trusted for what is complete until a completion is withdrawn, which the ledger counts. What they do not
have is looked up in LMDB: it may have been completed since.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.ledger.lmdb.environment import Environment, key_pages
from ledgerbeam.ledger.lmdb.tables import COMPLETED, KEY_WITHDRAWN, META

_LOOKUPS = 250  # between two chances to give memory back
_LOADED_ROWS = 100_000
_PATIENCE = 64  # found one by one, times this, are as many as there are: read all

Column: TypeAlias = "NDArray[np.uint64]"


class CompletedIds:
    """The completed sources of one ledger as this process knows them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment: Environment | None = None
        self._clear(b"")

    def _clear(self, withdrawals: bytes) -> None:
        self._columns: tuple[Column, Column] | None = None  # the halves of all ids, in order
        self._withdrawals = withdrawals
        self._found_singly = 0

    def mask(self, environment: Environment, ids: Sequence[bytes]) -> list[bool]:
        """Return which of some ids are complete; see `store.LedgerStore.completed_mask`."""
        if not ids:
            return []
        with self._lock:
            with environment.read() as txn:
                withdrawals = txn.get(META, KEY_WITHDRAWN) or b""
                count = txn.count(COMPLETED)
            if withdrawals != self._withdrawals or environment is not self._environment:
                self._environment = environment
                self._clear(withdrawals)
            if self._found_singly * _PATIENCE > count:
                self._load(environment, count)
            mask = self._search(ids)
            missing = [source for source, is_complete in zip(ids, mask, strict=True) if not is_complete]
            if count and missing:
                found = iter(self._look_up(environment, missing))
                mask = [is_complete or next(found) for is_complete in mask]
            return mask

    def _load(self, environment: Environment, count: int) -> None:
        """Read all completed ids. A withdrawal that comes meanwhile is seen by the next call of `mask`."""
        self._clear(self._withdrawals)
        high, low = np.empty(count, np.uint64), np.empty(count, np.uint64)
        filled = 0
        for keys in key_pages(environment, COMPLETED, _LOADED_ROWS):
            columns = _columns(keys[: count - filled])
            high[filled : filled + len(columns)] = columns[:, 0]
            low[filled : filled + len(columns)] = columns[:, 1]
            filled += len(columns)
            if filled == count:
                break
        self._columns = high[:filled], low[:filled]

    def _search(self, ids: Sequence[bytes]) -> list[bool]:
        if self._columns is None or not len(self._columns[0]):
            return [False] * len(ids)
        high, low = self._columns
        columns = _columns(ids)
        order = np.argsort(columns[:, 0])
        asked = columns[order]
        places = np.searchsorted(high, asked[:, 0])
        np.minimum(places, len(high) - 1, out=places)
        # Of two ids with the same first half only the first is found here, the other by its own lookup.
        found = (high[places] == asked[:, 0]) & (low[places] == asked[:, 1])
        mask = np.empty(len(ids), np.bool_)
        mask[order] = found
        return mask.tolist()

    def _look_up(self, environment: Environment, ids: list[bytes]) -> list[bool]:
        ordered = sorted(ids)
        present: set[bytes] = set()
        for start in range(0, len(ordered), _LOOKUPS):
            with environment.read() as txn:
                present.update(txn.get_many(COMPLETED, ordered[start : start + _LOOKUPS]))
            environment.trim()
        self._found_singly += len(present)
        return [source in present for source in ids]


def _columns(ids: Sequence[bytes]) -> NDArray[np.uint64]:
    """Turn ids into rows of two numbers that sort as the ids do."""
    return np.frombuffer(b"".join(ids), ">u8").reshape(-1, 2).astype(np.uint64)
