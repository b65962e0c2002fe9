"""Look-ups of the completion of millions of sources, in bounded memory.

A look-up of a random id in LMDB reads a random page, and pages that were read count as memory of the process. A rerun
of a large job asks for nearly all ids. So once enough ids were found one by one, all completed ids are read in key
order into two columns, 16 bytes an id. Later look-ups search the columns.

An id in the columns is complete until a completion is withdrawn, which the ledger counts. Other ids need a look-up in
LMDB, since they may have been completed later.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.ledger.lmdb.environment import Environment, key_pages
from ledgerbeam.ledger.lmdb.tables import COMPLETED, KEY_WITHDRAWN, META

_LOOKUPS = 250  # look-ups between two calls of `trim`
_LOADED_ROWS = 100_000
_PATIENCE = 64  # read all ids once 1/64 of them were found one by one

Column: TypeAlias = "NDArray[np.uint64]"


class CompletedIds:
    """The completed sources of one ledger, as cached by this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment: Environment | None = None
        self._clear(b"")

    def _clear(self, withdrawals: bytes) -> None:
        self._columns: tuple[Column, Column] | None = None  # the halves of all ids, in order
        self._withdrawals = withdrawals
        self._found_singly = 0

    def mask(self, environment: Environment, ids: Sequence[bytes]) -> list[bool]:
        """Return for each id whether the source is complete; see `store.LedgerStore.completed_mask`."""
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
        """Read all completed ids. The next call of `mask` detects a withdrawal that happens meanwhile."""
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
        # Of two ids with the same first half only the first is found here; the other needs a look-up in LMDB.
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
    """Convert ids to rows of two numbers that sort in the order of the ids."""
    return np.frombuffer(b"".join(ids), ">u8").reshape(-1, 2).astype(np.uint64)
