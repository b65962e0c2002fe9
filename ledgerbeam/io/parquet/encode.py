"""Tables as Parquet files: the same bytes for the same table, by one version of pyarrow."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from ledgerbeam.io.columns.groups import row_groups

__all__ = ["encode_parquet"]


def encode_parquet(table: pa.Table, *, row_group_bytes: int, page_bytes: int) -> bytes:
    """Return a table as a Parquet file: in Zstandard, with statistics and a page index.

    Nothing in it depends on time, place or chance. The footer names the version of pyarrow.

    Args:
        table: The table.
        row_group_bytes: Bytes of a row group in memory, about; one row may have more.
        page_bytes: Bytes of a page before it is compressed, about.
    """
    data = io.BytesIO()
    writer = pq.ParquetWriter(
        data,
        table.schema,
        compression="zstd",
        compression_level=3,
        data_page_size=page_bytes,
        dictionary_pagesize_limit=page_bytes,  # which is read with each page
        write_batch_size=_looked_at(table, page_bytes),
        write_page_index=True,
        use_compliant_nested_type=False,  # keeps the names of the items of lists
        store_schema=True,
    )
    with writer:
        for part in row_groups(table, row_group_bytes):
            writer.write_table(part, row_group_size=max(1, len(part)))
    return data.getvalue()


def _looked_at(table: pa.Table, page_bytes: int) -> int:
    """Return after how many rows the writer is to look whether a page is full: a few times, also of long rows."""
    widest = max((column.nbytes for column in table.columns), default=0) / max(1, len(table))
    return max(1, min(_ROWS_AT_ONCE, int(page_bytes / (4 * max(widest, 1)))))


_ROWS_AT_ONCE = 1024
