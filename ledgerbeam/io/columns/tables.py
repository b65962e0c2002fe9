"""Convert records exactly to tables with a schema, and report those that do not fit."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.columns import StructColumn, column_of, first_misfit
from ledgerbeam.io.columns.encode import joined_chunks, record_batch, unified
from ledgerbeam.io.columns.infer import infer_schema, plain_value
from ledgerbeam.io.columns.leaves import MisfitError
from ledgerbeam.io.columns.values import has_exact_keys, record_is_value

REMEDY = "give a --schema that holds it, or put such records aside with --on-error reject"


def to_table(records: Any, schema: pa.Schema, *, url: str = "", first: int = 0) -> pa.Table:
    """Return records as a table of a schema.

    A value is written exactly or refused; only a floating-point column narrower than 64 bits rounds to the nearest
    number. As in JSON, strings are accepted for times, dates and decimals, and `{"__base64__": ...}` for bytes.

    Args:
        records: Objects; or a `pyarrow.Table` or `RecordBatch`, whose columns are cast if no value changes.
        schema: The schema.
        url: Source of the records, for messages.
        first: Number of the first record in it.

    Raises:
        RecordError: A record does not fit; the message names the record, the field, and what was expected and found.
        UsageError: Records cannot be converted to this schema.
    """
    return TableMaker(schema).table(records, url=url, first=first)


def table_of(records: Any, maker: TableMaker | None) -> pa.Table:
    """Return records as a table, with their inferred schema if there is no maker."""
    if maker is not None:
        return maker.table(records)
    if isinstance(records, pa.Table):
        return records
    if isinstance(records, pa.RecordBatch):
        return pa.Table.from_batches([records])
    records = list(records)
    return to_table(records, infer_schema(records))


class TableMaker:
    """Makes tables of one schema. With `exact` a missing key is an error, also if the schema does not say so.

    Raises:
        UsageError: Records cannot be converted to it.
    """

    def __init__(self, schema: pa.Schema, *, exact: bool = False) -> None:
        self.schema = schema
        exact = exact or has_exact_keys(schema)
        if record_is_value(schema):
            field = schema.field(0)
            self._value = column_of(field, exact=exact)
            self._row: StructColumn | None = None
        else:
            self._row = StructColumn(list(schema), exact=exact)
        self._copied = copied if self._row is None else _dict_copier(list(schema))

    def table(self, records: Any, *, url: str = "", first: int = 0) -> pa.Table:
        """Return records as a table; see `to_table`."""
        place = f"{url}: " if url else ""
        if isinstance(records, pa.Table | pa.RecordBatch):
            try:
                return _cast(records, self.schema)
            except MisfitError as error:
                raise RecordError(f"{place}rows from {first}: {error}; {REMEDY}") from None
        rows = list(records)
        if set(map(type, rows)) - {dict}:
            rows = list(map(plain_value, rows))
        try:
            return pa.Table.from_arrays(self._arrays(rows), schema=self.schema)
        except MisfitError:
            found = first_misfit(self._arrays, rows)
        if found is None:
            raise RecordError(
                f"{place}the records from {first} fit one by one, but not together, as where a dictionary has no "
                "number for so many values; give a --schema with a wider type, or smaller tasks"
            )
        number, misfit = found
        raise RecordError(f"{place}record {first + number}: {misfit}; {REMEDY}")

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return tables of this schema as one table; each column has one chunk, if it fits, and one dictionary.

        Raises:
            RecordError: The dictionaries of a column cannot be joined.
        """
        if len(tables) == 1:
            return tables[0]
        return joined_chunks(unified(pa.concat_tables(tables))) if tables else self.table([])

    def copied(self, record: Any) -> Any:
        """Return a copy of a record, so that a later change of the record does not change the row."""
        return self._copied(record)

    def require(self, record: Any) -> None:
        """Check that a record fits; raises RecordError if not."""
        try:
            self._arrays([plain_value(record)])
        except MisfitError as error:
            raise RecordError(f"{error}; {REMEDY}") from None

    def encoded(self, record: Any) -> bytes:
        """Return the columns of a record as bytes, to compare it with others; it must fit."""
        return bytes(record_batch(self.table([record]), 0, 1).serialize())

    def _arrays(self, rows: Sequence[Any]) -> list[pa.Array | pa.ChunkedArray]:
        return self._row.arrays(rows) if self._row is not None else [self._value.array(rows)]


_FIXED = frozenset(
    {type(None), bool, int, float, str, bytes, decimal.Decimal, dt.date, dt.datetime, dt.time, dt.timedelta}
)


def copied(value: Any) -> Any:
    """Return a copy of a value, so that a later change does not affect it; immutable values are not copied."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        if _FIXED.issuperset(map(type, value.values())):
            return value.copy()
        return {name: part if type(part) in _FIXED else copied(part) for name, part in value.items()}
    if kind is list or kind is tuple:
        return [part if type(part) in _FIXED else copied(part) for part in value]
    if isinstance(value, pa.Table | pa.RecordBatch):
        return value
    return value.tolist() if isinstance(value, np.ndarray) else copy.deepcopy(value)


def _copier(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that copies values of a type; None if they are immutable."""
    if isinstance(kind, pa.ListType | pa.LargeListType) and _copier(kind.value_type) is None:
        return _list_copied
    if isinstance(kind, pa.StructType):
        return _dict_copier([kind.field(place) for place in range(kind.num_fields)])
    is_fixed = not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType | pa.DictionaryType)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return None if is_fixed and not is_bytes and not pa.types.is_binary_view(kind) else copied


def _list_copied(value: Any) -> Any:
    return value.copy() if type(value) is list else copied(value)


def _dict_copier(fields: Sequence[pa.Field]) -> Callable[[Any], Any]:
    """Return the function that copies objects with the given fields."""
    deep = [(field.name, copy_of) for field in fields if (copy_of := _copier(field.type)) is not None]

    def copy_dict(value: Any) -> Any:
        if type(value) is not dict:
            return copied(value)
        row = value.copy()
        for name, copy_of in deep:
            part = row.get(name)
            if part is not None:
                row[name] = copy_of(part)
        return row

    return copy_dict


def _cast(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a table cast to a schema, with its order of columns."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table.schema.equals(schema):
        return table.replace_schema_metadata(schema.metadata) if table.schema.metadata != schema.metadata else table
    names = table.column_names
    for name in names:
        if name not in schema.names:
            raise MisfitError("no such column in the schema", str(table.schema.field(name).type), f".{name}")
    arrays = []
    for field in schema:
        if names.count(field.name) != 1:
            found = "no such column" if field.name not in names else "several columns of this name"
            raise MisfitError(f"a column of {field.type}", found, f".{field.name}")
        arrays.append(_cast_column(table.column(field.name), field))
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    path = f".{field.name}"
    if column.null_count and not field.nullable:
        raise MisfitError(f"{field.type} without nulls", "nulls", path)
    if column.type.equals(field.type):
        return column
    expected = f"a column of {field.type}"
    if not _is_kin(column.type, field.type):
        raise MisfitError(expected, f"one of {column.type}", path)
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisfitError(expected, f"one of {column.type} with other values ({error})", path) from None


def _is_kin(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a cast between two types keeps the meaning of values, and fails if a value would change."""
    if isinstance(found, pa.DictionaryType):
        return _is_kin(found.value_type, expected)
    if isinstance(expected, pa.DictionaryType):
        return _is_kin(found, expected.value_type)
    if found.equals(expected) or pa.types.is_null(found):
        return True
    if isinstance(found, pa.StructType) and isinstance(expected, pa.StructType):
        fields = [found.field(place) for place in range(found.num_fields)]
        others = [expected.field(place) for place in range(expected.num_fields)]
        return [one.name for one in fields] == [one.name for one in others] and all(
            _is_kin(one.type, other.type) for one, other in zip(fields, others, strict=True)
        )
    if hasattr(found, "value_field") and hasattr(expected, "value_field"):
        return _is_kin(found.value_type, expected.value_type)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(expected):
        return (found.tz is None) == (expected.tz is None)
    return any(of(found) and of(expected) for of in _FAMILIES) or (
        pa.types.is_integer(found) and pa.types.is_floating(expected)
    )


_FAMILIES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_time,
    pa.types.is_date,
    pa.types.is_duration,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
)
"""Families of types: a cast within a family refuses values that do not fit."""
