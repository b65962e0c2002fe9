"""Conversion of data frames to tables, of chunks to one chunk, and of tables to Parquet and Arrow IPC files.

With one version of pyarrow, which the footers of Parquet files name, the bytes of a file depend only on the table.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ledgerbeam.errors import RecordError

MOST_BYTES = 2**31 - 1  # bytes of a column that certainly fit in one chunk; 32-bit offsets cannot count more
_ROWS_AT_ONCE = 1024
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
_OF_PANDAS = b"pandas"
_LISTS = {pa.ListType: pa.list_, pa.LargeListType: pa.large_list}


def row_groups(table: pa.Table, size: int) -> Iterator[pa.Table]:
    """Divide a table into row groups of equal numbers of rows, except the last, of about `size` bytes in memory.

    A table without rows is one group.
    """
    rows = max(1, len(table) * size // max(1, table.nbytes))
    for start in range(0, max(1, len(table)), rows):
        yield table.slice(start, rows)


def encode_arrow(table: pa.Table, *, row_group_bytes: int) -> bytes:
    """Return a table as an Arrow IPC file, with buffers compressed by Zstandard."""
    data = io.BytesIO()
    with pa.ipc.new_file(data, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        # A file can have only one dictionary for each column.
        for part in row_groups(unified(table), row_group_bytes):
            writer.write_table(joined_chunks(part))
    return data.getvalue()


def stream_bytes(table: pa.Table) -> pa.Buffer:
    """Return a table as an uncompressed Arrow stream. Tables with equal bytes have equal types and values."""
    data = pa.BufferOutputStream()
    with pa.ipc.new_stream(data, table.schema) as writer:
        writer.write_table(joined_chunks(table))
    return data.getvalue()


def encode_parquet(table: pa.Table, *, row_group_bytes: int, page_bytes: int) -> bytes:
    """Return a table as a Parquet file, compressed with Zstandard, with statistics and a page index."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    data = io.BytesIO()
    widest = max((column.nbytes for column in table.columns), default=0) / max(1, len(table))
    writer = pq.ParquetWriter(
        data,
        table.schema,
        compression="zstd",
        compression_level=3,
        data_page_size=page_bytes,
        dictionary_pagesize_limit=page_bytes,  # the dictionary is read with each page
        write_batch_size=max(1, min(_ROWS_AT_ONCE, int(page_bytes / (4 * max(widest, 1))))),
        write_page_index=True,
        use_compliant_nested_type=False,  # keeps the names of the items of lists
        store_schema=True,
    )
    with writer:
        for part in row_groups(table, row_group_bytes):
            writer.write_table(part, row_group_size=max(1, len(part)))
    return data.getvalue()


def joined_chunks(table: pa.Table) -> pa.Table:
    """Return a table with one chunk for each column, except columns that are too large for 32-bit offsets."""
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

    RecordError: the index type of a column is too narrow for the values of all its dictionaries.
    """
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns.append(column.unify_dictionaries())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RecordError(
                f"column {name!r}: its dictionaries cannot be joined ({error}); give a --schema with wider indices, or "
                "use a smaller --task-bytes"
            ) from error
    return pa.Table.from_arrays(columns, schema=table.schema) if columns else table


def fits_one_batch(table: pa.Table, start: int, stop: int) -> bool:
    """Return whether the rows `[start, stop)` fit in one record batch; False also if this is not certain."""
    columns = (column.slice(start, stop - start) for column in table.columns)
    return all(column.num_chunks <= 1 or column.nbytes <= MOST_BYTES for column in columns)


def record_batch(table: pa.Table, start: int, stop: int) -> pa.RecordBatch:
    """Return the rows `[start, stop)` of a table, at least one, as one batch; without a copy if they are in one chunk.

    RecordError: the rows have too many bytes for one batch; the message names the column.
    """
    rows = joined_chunks(table.slice(start, stop - start))
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.num_chunks > 1:
            raise RecordError(
                f"column {name!r}: the {stop - start} rows of one batch have more bytes than an Arrow batch can hold; "
                "use a smaller --batch, or leave this column out with --columns"
            )
    return rows.to_batches()[0]


def as_table(frame: Any) -> pa.Table | None:
    """Return a data frame as a table, without a copy if its library needs none; None if it has no Arrow interface.

    The frame may be of pyarrow, Polars, pandas or DuckDB. An unnamed index of a pandas frame and the metadata of pandas
    are left out: they belong to the frame, not to its rows.
    """
    if isinstance(frame, pa.Table):
        return _without_views(frame)
    if isinstance(frame, pa.RecordBatch):
        return _without_views(pa.Table.from_batches([frame]))
    kind = type(frame)
    if hasattr(kind, "__arrow_c_stream__") and not isinstance(frame, pa.ChunkedArray):
        return _without_views(_without_index(pa.table(frame)))
    if hasattr(kind, "__arrow_c_array__") and not isinstance(frame, pa.Array):
        return _without_views(pa.Table.from_batches([pa.record_batch(frame)]))
    return None


def _without_index(table: pa.Table) -> pa.Table:
    metadata = table.schema.metadata
    if not metadata or _OF_PANDAS not in metadata:
        return table
    named = [name for name in table.column_names if not _UNNAMED_INDEX.fullmatch(name)]
    kept = {key: value for key, value in metadata.items() if key != _OF_PANDAS}
    return table.select(named).replace_schema_metadata(kept or None)


def _without_views(table: pa.Table) -> pa.Table:
    """Return a table with strings instead of string views (as in Polars). pyarrow cannot take rows from views."""
    for place, field in enumerate(table.schema):
        if (kind := _plain_type(field.type)) != field.type:
            column = pa.chunked_array([_plain(chunk) for chunk in table.column(place).chunks], kind)
            table = table.set_column(place, field.with_type(kind), column)
    return table


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):  # pyarrow cannot cast the values of a dictionary
        return pa.DictionaryArray.from_arrays(array.indices, _plain(array.dictionary), ordered=array.type.ordered)
    return array.cast(_plain_type(array.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with strings and bytes instead of views."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.DictionaryType):
        return pa.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    if isinstance(kind, pa.StructType):
        parts = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([part.with_type(_plain_type(part.type)) for part in parts])
    if type(kind) in _LISTS:
        return _LISTS[type(kind)](kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def as_array(values: Any) -> pa.Array:
    """Return a column of any library, or a list, as one array.

    pa.ArrowException, TypeError, ValueError: the values cannot be converted, or have too many bytes for one array.
    """
    if isinstance(values, pa.Array):
        return values
    if not isinstance(values, pa.ChunkedArray):
        if not hasattr(type(values), "__arrow_c_stream__"):
            return pa.array(values)
        values = pa.chunked_array(values)
    whole = values.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
