"""Divide a table into row groups of about the same size in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa


ROW_GROUP_BYTES = 128 * 2**20
"""Default size of a row group in memory."""

PAGE_BYTES = 2**20
"""Default size of a page before compression."""


def row_groups(table: pa.Table, size: int) -> Iterator[pa.Table]:
    """Divide a table into row groups of equal numbers of rows, except the last, from the mean size of a row.

    Args:
        table: The table.
        size: Approximate size of a group in memory.

    Yields:
        The groups; a table without rows is one group.
    """
    rows = max(1, len(table) * size // max(1, table.nbytes))
    for start in range(0, max(1, len(table)), rows):
        yield table.slice(start, rows)
