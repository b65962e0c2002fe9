"""Join the chunks of columns, as far as 32-bit offsets of texts and lists allow."""

from __future__ import annotations

import pyarrow as pa

from ledgerbeam.errors import RecordError

MOST_BYTES = 2**31 - 1
"""Bytes of a column that certainly fit in one chunk; 32-bit offsets cannot count more."""


def joined_chunks(table: pa.Table) -> pa.Table:
    """Return a table whose columns have one chunk each; a column that is too large for one keeps its chunks."""
    if all(column.num_chunks == 1 for column in table.columns):
        return table
    return pa.Table.from_arrays([_joined(column) for column in table.columns], schema=table.schema)


def _joined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        whole = column.combine_chunks()
    except pa.ArrowInvalid:  # of texts inside of lists and structs
        return column
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole], column.type)


def unified(table: pa.Table) -> pa.Table:
    """Return a table with one dictionary for each column that has dictionaries.

    Raises:
        RecordError: The indices of a column cannot count the values of all its dictionaries.
    """
    try:
        return table.unify_dictionaries()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RecordError(
            f"column {_not_unified(table)!r}: its dictionaries cannot be joined ({error}); give a --schema with "
            "wider indices, or use a smaller --task-bytes"
        ) from error


def _not_unified(table: pa.Table) -> str:
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.unify_dictionaries()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return str(name)
    return str(table.column_names[0])


def fits_one_batch(table: pa.Table, start: int, stop: int) -> bool:
    """Return whether the rows `[start, stop)` certainly fit in one record batch."""
    columns = (column.slice(start, stop - start) for column in table.columns)
    return all(column.num_chunks <= 1 or column.nbytes <= MOST_BYTES for column in columns)


def record_batch(table: pa.Table, start: int, stop: int) -> pa.RecordBatch:
    """Return the rows `[start, stop)` of a table, at least one, as one batch; without a copy if they are in one chunk.

    Raises:
        RecordError: They have too many bytes for one batch; the message names the column.
    """
    rows = joined_chunks(table.slice(start, stop - start))
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.num_chunks > 1:
            raise RecordError(
                f"column {name!r}: the {stop - start} rows of a batch have more bytes than one record batch can hold; "
                "use a smaller --batch, or read the other columns (--columns)"
            )
    return rows.to_batches()[0]
