"""Tables as Arrow IPC files: the same bytes for the same table, by one version of pyarrow."""

from __future__ import annotations

import io

import pyarrow as pa

from ledgerbeam.io.columns.groups import row_groups

__all__ = ["encode_arrow"]


def encode_arrow(table: pa.Table, *, row_group_bytes: int) -> bytes:
    """Return a table as an Arrow IPC file, its buffers in Zstandard.

    Args:
        table: The table.
        row_group_bytes: Bytes of a record batch in memory, about; one row may have more.
    """
    data = io.BytesIO()
    with pa.ipc.new_file(data, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        # A file has one dictionary for each column.
        for part in row_groups(table.unify_dictionaries(), row_group_bytes):
            writer.write_table(part.combine_chunks())
    return data.getvalue()
