"""Encode tables as Arrow IPC files; with one version of pyarrow the bytes depend only on the table."""

from __future__ import annotations

import io

import pyarrow as pa

from ledgerbeam.io.columns.chunks import joined_chunks, unified
from ledgerbeam.io.columns.groups import row_groups


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
