"""Files of columns for tests of graphs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.io.columns.tables import arrow_bytes, parquet_bytes


def rows_table(count: int, first: int = 0) -> pa.Table:
    """Return columns `n`, the numbers; `text`; and `length`."""
    found = range(first, first + count)
    return pa.table({"n": found, "text": [f"row {n}" for n in found], "length": [1 + n * 7 % 10 for n in found]})


def write_rows(path: Path, count: int, first: int = 0, *, group: int = 10) -> str:
    """Write a Parquet file of `rows_table`; an Arrow IPC file if the name is that of one."""
    table = rows_table(count, first)
    made = arrow_bytes(table, group) if path.suffix == ".arrow" else parquet_bytes(table, row_group_size=group)
    path.write_bytes(made)
    return str(path)
