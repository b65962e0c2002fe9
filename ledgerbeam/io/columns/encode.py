"""Encode tables as Parquet and Arrow IPC files, in row groups of about the same size in bytes.

With one version of pyarrow the bytes depend only on the table.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ledgerbeam.io.columns.chunks import joined_chunks, unified


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


def encode_arrow(table: pa.Table, *, row_group_bytes: int) -> bytes:
    """Return a table as an Arrow IPC file, with buffers compressed by Zstandard.

    Args:
        table: The table.
        row_group_bytes: Approximate size of a record batch in memory; one row may be larger.
    """
    data = io.BytesIO()
    with pa.ipc.new_file(data, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        # A file can have only one dictionary for each column.
        for part in row_groups(unified(table), row_group_bytes):
            writer.write_table(joined_chunks(part))
    return data.getvalue()


def encode_parquet(table: pa.Table, *, row_group_bytes: int, page_bytes: int) -> bytes:
    """Return a table as a Parquet file, compressed with Zstandard, with statistics and a page index.

    Nothing in it depends on the time, the machine or randomness. The footer names the version of pyarrow.

    Args:
        table: The table.
        row_group_bytes: Approximate size of a row group in memory; one row may be larger.
        page_bytes: Approximate size of a page before compression.
    """
    data = io.BytesIO()
    writer = pq.ParquetWriter(
        data,
        table.schema,
        compression="zstd",
        compression_level=3,
        data_page_size=page_bytes,
        dictionary_pagesize_limit=page_bytes,  # the dictionary is read with each page
        write_batch_size=_batch_rows(table, page_bytes),
        write_page_index=True,
        use_compliant_nested_type=False,  # keeps the names of the items of lists
        store_schema=True,
    )
    with writer:
        for part in row_groups(table, row_group_bytes):
            writer.write_table(part, row_group_size=max(1, len(part)))
    return data.getvalue()


def _batch_rows(table: pa.Table, page_bytes: int) -> int:
    """Return the number of rows after which the writer checks the size of a page: a few times for each page."""
    widest = max((column.nbytes for column in table.columns), default=0) / max(1, len(table))
    return max(1, min(_ROWS_AT_ONCE, int(page_bytes / (4 * max(widest, 1)))))


_ROWS_AT_ONCE = 1024
