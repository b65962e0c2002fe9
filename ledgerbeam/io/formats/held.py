"""Cache of decoded row groups: the most recently used ones, up to a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


CACHE_BYTES = 64 * 2**20
"""Default size of a cache in bytes."""

GroupKey = tuple[str, int]
"""The URL of a file, and the number of a row group in it."""


class HeldGroups:
    """Cache of decoded row groups of one file, or of several files whose readers share it.

    It has no lock, since a fork could copy it locked. Each step is atomic, and a lost row group is read again. A
    pickled cache is empty.

    Args:
        most_bytes: Greatest size of the cache in bytes.
        least: Number of most recently used row groups that are kept at any size. With 0, only the last one is kept,
            and a row group that is too large for the cache is read in parts.
    """

    def __init__(self, most_bytes: int = CACHE_BYTES, least: int = 0) -> None:
        self.most_bytes = most_bytes
        self.least = least
        # Each table with its size in bytes, which a table would recompute column by column at each access.
        self._tables: OrderedDict[GroupKey, tuple[pa.Table, int]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.most_bytes, self.least)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def size(self) -> int:
        """Size of the cache in bytes."""
        return sum(size for _, size in list(self._tables.values()))

    def get(self, key: GroupKey) -> pa.Table | None:
        """Return a row group; None if it is not in the cache."""
        found = self._tables.get(key)
        return None if found is None else found[0]

    def put(self, key: GroupKey, table: pa.Table) -> None:
        """Add a row group as the most recently used one, and remove the least recently used ones over the limit."""
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
        """Mark row groups in the cache as the most recently used ones, in this order."""
        for key in keys:
            found = self._tables.pop(key, None)
            if found is not None:
                self._tables[key] = found

    def clear(self) -> None:
        """Remove all row groups."""
        self._tables.clear()
