"""Convert columns to records: Arrow values to Python values, without loss.

    null, bool, integers, floats   None, bool, int, float
    strings; binary                str; bytes
    decimals                       decimal.Decimal
    dates and times                datetime.date, time, datetime, timedelta
    list; struct                   list; dict
    map                            list of [key, value]
    dictionary                     the value
    JSON (`pa.json_()`)            the parsed value
    other extension types          the value of their storage

Times with digits below a microsecond, which `datetime` cannot hold, are strings in ISO 8601. `io.columns.marks` lists
the marks in metadata: a null may stand for a key that a record does not have.
"""

from __future__ import annotations

import datetime as dt
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

from ledgerbeam.io.columns.marks import is_json, null_is_absent, record_is_value
from ledgerbeam.io.json_values import dumps, loads, period_text

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


def to_records(table: pa.Table) -> list[Any]:
    """Return the rows of a table as records: dicts, or the values of a column if the schema says so.

    Raises:
        ValueError: A value cannot be a Python object: text that is not UTF-8, a date beyond the year 9999.
    """
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    if record_is_value(table.schema):
        return _of_chunks(table.column(0))
    fields = list(table.schema)
    if not any(null_is_absent(field) or _is_special(field.type) for field in fields):
        rows: list[Any] = table.to_pylist()
        return rows
    return _rows(fields, table.columns)


def record_json(record: Any) -> bytes:
    """Return a record as JSON text for reports, with NaN and infinities as strings."""
    return dumps(_finite(record))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value


def _rows(fields: list[pa.Field], columns: list[pa.Array | pa.ChunkedArray]) -> list[dict[str, Any]]:
    names = [field.name for field in fields]
    values = zip(*map(_values_of, columns), strict=True)
    rows = list(map(dict, map(zip, repeat(names), values)))  # without Python code for each row
    for field, column in zip(fields, columns, strict=True):
        if column.null_count and null_is_absent(field):  # in JSON text, `null` is a value
            for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True):
                if not valid:
                    del row[field.name]
    return rows


def _values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    return _of_chunks(column) if hasattr(column, "chunks") else _values(column)


def _of_chunks(column: pa.ChunkedArray) -> list[Any]:
    if not _is_special(column.type):
        plain: list[Any] = column.to_pylist()
        return plain
    values: list[Any] = []
    for chunk in column.chunks:
        values += _values(chunk)
    return values


def _values(array: pa.Array) -> list[Any]:
    """Return an array as Python values, from pyarrow unless it would return other values for the type."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it
    from pyarrow import types  # noqa: PLC0415

    kind = array.type
    if not _is_special(kind):
        values: list[Any] = array.to_pylist()
        return values
    if isinstance(kind, pa.BaseExtensionType):
        values = _values(array.storage)
        return [None if text is None else loads(text.encode()) for text in values] if is_json(kind) else values
    if types.is_dictionary(kind):
        words, places = _values(array.dictionary), array.indices.to_pylist()
        return [None if place is None else words[place] for place in places]
    if types.is_run_end_encoded(kind):
        import pyarrow.compute as pc  # noqa: PLC0415

        return _values(pc.run_end_decode(array))
    if types.is_map(kind):
        as_lists = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        keys, items = (_values(part) for part in as_lists.flatten().flatten())
        return _lists(as_lists, [list(pair) for pair in zip(keys, items, strict=True)])
    if types.is_list(kind) or types.is_large_list(kind):
        return _spans(array)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        flat = _values(array.values)
        spans = zip(array.offsets.to_pylist(), array.sizes.to_pylist(), array.is_valid().to_pylist(), strict=True)
        return [flat[start : start + size] if valid else None for start, size, valid in spans]
    if types.is_struct(kind):
        return _structs(array)
    if types.is_nested(kind) and not types.is_union(kind):
        return _lists(array, _values(array.flatten()))
    return _times(array) if types.is_temporal(kind) else array.to_pylist()


def _is_special(kind: pa.DataType) -> bool:
    """Return whether pyarrow converts values of a type, or of a type inside it, differently than records need."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types  # noqa: PLC0415

    if isinstance(kind, pa.BaseExtensionType) or types.is_map(kind) or types.is_interval(kind):
        return True
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _is_special(kind.value_type)
    fields = [kind.field(number) for number in range(kind.num_fields)] if types.is_nested(kind) else []
    return getattr(kind, "unit", "") == "ns" or any(
        null_is_absent(field) or _is_special(field.type) for field in fields
    )


def _spans(array: pa.Array) -> list[Any]:
    """Return lists by their offsets in the items; `flatten` can fail for items of extension types."""
    ends = array.offsets.to_pylist()
    first = ends[0] if ends else 0
    flat = _values(array.values.slice(first, ends[-1] - first if ends else 0))
    spans = zip(pairwise(ends), array.is_valid().to_pylist(), strict=True)
    return [flat[start - first : stop - first] if valid else None for (start, stop), valid in spans]


def _lists(array: pa.Array, flat: list[Any]) -> list[Any]:
    """Divide the values of all non-null lists by the lengths of the lists."""
    import pyarrow.compute as pc  # noqa: PLC0415

    from_lists: list[Any] = []
    start = 0
    lengths = (
        [array.type.list_size if valid else None for valid in array.is_valid().to_pylist()]
        if hasattr(array.type, "list_size")
        else pc.list_value_length(array).to_pylist()
    )
    for length in lengths:
        if length is None:
            from_lists.append(None)
        else:
            from_lists.append(flat[start : start + length])
            start += length
    return from_lists


def _structs(array: pa.Array) -> list[Any]:
    kind = array.type
    fields = [kind.field(i) for i in range(kind.num_fields)]
    rows: list[Any] = _rows(fields, array.flatten()) if fields else [{} for _ in array]
    if array.null_count:
        rows = [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows


def _times(array: pa.Array) -> list[Any]:
    """Return dates and times; those with digits below a microsecond as text."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types  # noqa: PLC0415

    kind = array.type
    if types.is_interval(kind):
        return [None if value is None else list(value) for value in array.to_pylist()]
    if getattr(kind, "unit", "") != "ns":
        found: list[Any] = array.to_pylist()
        return found
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
    """Return a time as text with three more digits."""
    text = value.isoformat(timespec="microseconds")
    place = text.index(".") + 7
    return f"{text[:place]}{nanoseconds:03d}{text[place:]}"


def _period(value: dt.timedelta, nanoseconds: int) -> str:
    return period_text((value.days * 86_400 + value.seconds) * 10**9 + value.microseconds * 1000 + nanoseconds)
