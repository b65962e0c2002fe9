"""Convert data frames of any library with an Arrow interface to tables: pyarrow, Polars, pandas, DuckDB."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
_OF_PANDAS = b"pandas"
_LISTS = {pa.ListType: pa.list_, pa.LargeListType: pa.large_list}


def as_table(frame: Any) -> pa.Table | None:
    """Return a data frame as a table, without a copy if its library needs none.

    An unnamed index of a pandas frame and the metadata of pandas are left out: they belong to the frame, not to its
    rows.

    Returns:
        The table; None if the object has no Arrow interface.
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
        if _has_views(field.type):
            column = pa.chunked_array([_plain(chunk) for chunk in table.column(place).chunks], _plain_type(field.type))
            table = table.set_column(place, field.with_type(column.type), column)
    return table


def _has_views(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.DictionaryType):
        return _has_views(kind.value_type)
    nested = any(_has_views(kind.field(place).type) for place in range(kind.num_fields))
    return nested or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):  # pyarrow cannot cast the values of a dictionary
        words = _plain(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, words, ordered=array.type.ordered)
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

    Raises:
        pa.ArrowException, TypeError, ValueError: It cannot be converted, or has too many bytes for one array.
    """
    if isinstance(values, pa.Array):
        return values
    if not isinstance(values, pa.ChunkedArray):
        if not hasattr(type(values), "__arrow_c_stream__"):
            return pa.array(values)
        values = pa.chunked_array(values)
    whole = values.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
