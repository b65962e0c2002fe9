"""Decoded row groups that are held in memory, up to a limit; those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


CACHE_BYTES = 64 * 2**20
"""Of decoded row groups, so many bytes are held by default."""

GroupKey = tuple[str, int]
"""The URL of a file, and the number of a row group in it."""


class HeldGroups:
    """Decoded row groups of one file or of several, whose readers share them.

    It has no lock, which a fork could carry over locked: each step is atomic, and what is lost is read again. Pickled,
    it is empty.

    Args:
        most_bytes: How many bytes are held.
        least: So many row groups are held in any case, of whatever size: those that were used last. With 0 it is the
            very last one, and one that is too large for that is read in parts.
    """

    def __init__(self, most_bytes: int = CACHE_BYTES, least: int = 0) -> None:
        self.most_bytes = most_bytes
        self.least = least
        # With its bytes: a table counts them anew, column by column, whenever it is asked.
        self._tables: OrderedDict[GroupKey, tuple[pa.Table, int]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.most_bytes, self.least)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def size(self) -> int:
        """How many bytes are held."""
        return sum(size for _, size in list(self._tables.values()))

    def get(self, key: GroupKey) -> pa.Table | None:
        """Return a row group, if it is held."""
        found = self._tables.get(key)
        return None if found is None else found[0]

    def put(self, key: GroupKey, table: pa.Table) -> None:
        """Hold a row group as the one that was used last; others go, those that were used first."""
        before = self._tables.pop(key, None)
        if before is not None and before[0] is table:
            self._tables[key] = before
            return
        self._tables[key] = table, table.nbytes
        size = self.size
        while size > self.most_bytes and len(self._tables) > max(1, self.least):
            try:
                size -= self._tables.popitem(last=False)[1][1]
            except KeyError:
                break

    def use(self, keys: Iterable[GroupKey]) -> None:
        """Make row groups those that were used last, in this order, as far as they are held."""
        for key in keys:
            found = self._tables.pop(key, None)
            if found is not None:
                self._tables[key] = found

    def clear(self) -> None:
        """Hold nothing any more."""
        self._tables.clear()
