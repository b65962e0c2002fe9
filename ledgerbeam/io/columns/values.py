"""Lossless conversion of columns to records, and marks in schemas for facts that Arrow types do not express.

    null, bool, integers, floats   None, bool, int, float
    strings; binary                str; bytes
    decimals                       decimal.Decimal
    dates and times                datetime.date, time, datetime, timedelta
    list; struct                   list; dict
    map                            list of [key, value]
    dictionary                     the value
    JSON (`pa.json_()`)            the parsed value
    other extension types          the value of their storage

Times with digits below a microsecond, which `datetime` cannot hold, are strings in ISO 8601.

Marks are metadata of a field or a schema. With them JSON values can be converted to columns and back exactly. Other
programs ignore them.

====================  =======  =============================================================================
key                   value    meaning
====================  =======  =============================================================================
of a field:
``ledgerbeam:null``   absent   a null stands for a key that the record or the object does not have
of the schema:
``ledgerbeam:keys``   exact    a key that is missing in a record is not a null
``ledgerbeam:record`` value    the record is the value of the only column, not an object
====================  =======  =============================================================================
"""

from __future__ import annotations

import datetime as dt
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from ledgerbeam.io.json_values import dumps, loads, period_text

ELEMENT = "element"  # name of the items of a list, from the specification of Parquet
_NULL, _KEYS, _RECORD = (f"ledgerbeam:{name}".encode() for name in ("null", "keys", "record"))
_ABSENT, _VALUE, _EXACT = b"absent", b"value", b"exact"

FIELD_WORDS = {"null": (_NULL, _ABSENT)}
SCHEMA_WORDS = {"keys": (_KEYS, _EXACT), "record": (_RECORD, _VALUE)}  # names of the marks in the JSON form of schemas


def to_records(table: pa.Table) -> list[Any]:
    """Return the rows of a table as records: dicts; the values of the only column if `ledgerbeam:record` is set.

    ValueError: a value cannot be a Python object: text that is not UTF-8, a date beyond the year 9999.
    """
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    if record_is_value(table.schema):
        return _values(table.column(0))
    fields = list(table.schema)
    if not any(null_is_absent(field) or _is_special(field.type) for field in fields):
        return table.to_pylist()
    return _rows(fields, table.columns)


def rows_at(rows: Any, numbers: NDArray[np.int64]) -> Any:
    """Return some rows of a table or of a column."""
    # `take` with an array of NumPy imports pandas, which takes longer than many tasks.
    return rows.take(pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)]))


def record_json(record: Any) -> bytes:
    """Return a record as JSON text for reports, with NaN and infinities as strings."""
    return dumps(_finite(record))


def is_json(kind: pa.DataType) -> bool:
    """Return whether the values of a type are JSON text; records contain the parsed values."""
    return getattr(kind, "extension_name", "") == "arrow.json"


def absent_field(field: pa.Field) -> pa.Field:
    """Return a field whose nulls stand for absent keys."""
    return field.with_metadata({**(field.metadata or {}), _NULL: _ABSENT})


def exact_schema(fields: list[pa.Field]) -> pa.Schema:
    """Return a schema whose records must have all of its keys, except those whose nulls stand for absent keys."""
    return pa.schema(fields, {_KEYS: _EXACT})


def value_schema(field: pa.Field) -> pa.Schema:
    """Return a schema of records that are the values of one column."""
    return pa.schema([field], {_KEYS: _EXACT, _RECORD: _VALUE})


def null_is_absent(field: pa.Field) -> bool:
    """Return whether the nulls of a field stand for absent keys."""
    return _is(field, _NULL, _ABSENT)


def has_exact_keys(schema: pa.Schema) -> bool:
    """Return whether a record must have the keys of a schema."""
    return _is(schema, _KEYS, _EXACT)


def record_is_value(schema: pa.Schema) -> bool:
    """Return whether records are the values of the only column of a schema."""
    return _is(schema, _RECORD, _VALUE) and len(schema) == 1


def _is(marked: pa.Field | pa.Schema, key: bytes, value: bytes) -> bool:
    return (marked.metadata or {}).get(key) == value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list) else value


def _rows(fields: list[pa.Field], columns: list[pa.Array | pa.ChunkedArray]) -> list[dict[str, Any]]:
    names = [field.name for field in fields]
    values = zip(*map(_values, columns), strict=True)
    rows = list(map(dict, map(zip, repeat(names), values)))  # without Python code for each row
    for field, column in zip(fields, columns, strict=True):
        if column.null_count and null_is_absent(field):  # in JSON text, `null` is a value
            for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True):
                if not valid:
                    del row[field.name]
    return rows


def _values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return an array as values of records. `to_pylist` of pyarrow returns others for some types (`_is_special`)."""
    kind = array.type
    if not _is_special(kind):
        return array.to_pylist()
    if hasattr(array, "chunks"):
        return [*chain.from_iterable(map(_values, array.chunks))]
    if isinstance(kind, pa.BaseExtensionType):
        values = _values(array.storage)
        return [None if text is None else loads(text.encode()) for text in values] if is_json(kind) else values
    if types.is_dictionary(kind):
        words, places = _values(array.dictionary), array.indices.to_pylist()
        return [None if place is None else words[place] for place in places]
    if types.is_run_end_encoded(kind):
        return _values(pc.run_end_decode(array))
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        rows: list[Any] = _rows(fields, array.flatten()) if fields else [{} for _ in array]
        if array.null_count:
            rows = [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
        return rows
    if types.is_nested(kind) and not types.is_union(kind):
        found, starts, stops = items_of_lists(array)
        pairs = map(list, zip(*map(_values, found.flatten()), strict=True)) if types.is_map(kind) else None
        items = _values(found) if pairs is None else list(pairs)
        spans = zip(starts.tolist(), stops.tolist(), array.is_valid().to_pylist(), strict=True)
        return [items[start:stop] if valid else None for start, stop, valid in spans]
    return _times(array) if types.is_temporal(kind) else array.to_pylist()


def _is_special(kind: pa.DataType) -> bool:
    """Return whether pyarrow converts values of a type, or of a type inside it, to other values than records have."""
    if isinstance(kind, pa.BaseExtensionType) or types.is_map(kind) or types.is_interval(kind):
        return True
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _is_special(kind.value_type)
    fields = [kind.field(number) for number in range(kind.num_fields)] if types.is_nested(kind) else []
    return getattr(kind, "unit", "") == "ns" or any(
        null_is_absent(field) or _is_special(field.type) for field in fields
    )


def items_of_lists(array: Any) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.int64]]:
    """Return the items of an array of lists or maps, and the start and stop of each list among them.

    Items of maps are structs. Null lists may have items. `flatten` of pyarrow can fail for items of extension types.
    """
    kind = array.type
    if types.is_fixed_size_list(kind):
        starts = (array.offset + np.arange(len(array))) * kind.list_size
        stops = starts + kind.list_size
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts = array.offsets.to_numpy()
        stops = starts + array.sizes.to_numpy()
    else:
        starts, stops = array.offsets.to_numpy()[:-1], array.offsets.to_numpy()[1:]
    is_map = types.is_map(kind)
    items = pa.StructArray.from_arrays([array.keys, array.items], ["key", "item"]) if is_map else array.values
    first, last = (int(starts.min()), int(stops.max())) if len(array) else (0, 0)
    return items.slice(first, last - first), starts - first, stops - first


def _times(array: pa.Array) -> list[Any]:
    """Return dates and times; those with digits below a microsecond as text."""
    kind = array.type
    if types.is_interval(kind):
        return [None if value is None else list(value) for value in array.to_pylist()]
    if getattr(kind, "unit", "") != "ns":
        return array.to_pylist()
    ticks = array.cast(pa.int64()).to_pylist()
    whole = pa.array([None if tick is None else tick // 1000 for tick in ticks], pa.int64())
    if types.is_timestamp(kind):
        near, word = whole.cast(pa.timestamp("us", kind.tz)), _instant
    elif types.is_duration(kind):
        near, word = whole.cast(pa.duration("us")), _period
    else:
        near, word = whole.cast(pa.time64("us")), _instant
    return [
        value if value is None or tick % 1000 == 0 else word(value, tick % 1000)
        for value, tick in zip(near.to_pylist(), ticks, strict=True)
    ]


def _instant(value: Any, nanoseconds: int) -> str:
    """Return a time as text in ISO 8601 with nine digits of a second; the last three are `nanoseconds`."""
    text = value.isoformat(timespec="microseconds")
    place = text.index(".") + 7
    return f"{text[:place]}{nanoseconds:03d}{text[place:]}"


def _period(value: dt.timedelta, nanoseconds: int) -> str:
    return period_text((value.days * 86_400 + value.seconds) * 10**9 + value.microseconds * 1000 + nanoseconds)
