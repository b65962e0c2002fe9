"""A table in groups of rows of about the same size in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa

__all__ = ["PAGE_BYTES", "ROW_GROUP_BYTES", "row_groups"]

ROW_GROUP_BYTES = 128 * 2**20
"""Bytes of a row group in memory, by default."""

PAGE_BYTES = 2**20
"""Bytes of a page before it is compressed, by default."""


def row_groups(table: pa.Table, size: int) -> Iterator[pa.Table]:
    """Cut a table into groups of rows: by its mean row, all of one number of rows but the last.

    Args:
        table: The table.
        size: Bytes of a group in memory, about.

    Yields:
        The groups; a table without rows is one group.
    """
    rows = max(1, len(table) * size // max(1, table.nbytes))
    for start in range(0, max(1, len(table)), rows):
        yield table.slice(start, rows)
