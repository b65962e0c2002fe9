"""Exact conversion of records to tables with a schema, by columns of any type; records that do not fit are reported."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.encode import joined_chunks, unified
from ledgerbeam.io.columns.infer import infer_schema, plain_value
from ledgerbeam.io.columns.leaves import ABSENT, ARROW_ERRORS, NONE, MisfitError, TypedColumn, describe, leaf_column
from ledgerbeam.io.columns.values import has_exact_keys, is_json, null_is_absent, record_is_value
from ledgerbeam.io.json_values import dumps


def to_table(records: Any, schema: pa.Schema, *, url: str = "", first: int = 0) -> pa.Table:
    """Return records as a table of a schema.

    A value is written exactly or refused; only a floating-point column narrower than 64 bits rounds to the nearest
    number. As in JSON, strings are accepted for times, dates and decimals, and `{"__base64__": ...}` for bytes.

    Args:
        records: Objects; or a `pyarrow.Table` or `RecordBatch`, whose columns are cast if no value changes.
        url: Source of the records, for messages. `first`, also for messages, is the number of the first record in it.

    Raises:
        RecordError: A record does not fit; the message names the record, the field, and what was expected and found.
        UsageError: Records cannot be converted to this schema.
    """
    return TableMaker(schema).table(records, url=url, first=first)


def table_of(records: Any, maker: TableMaker | None) -> pa.Table:
    """Return records as a table of the schema of `maker`; without a maker, infer the schema from the records."""
    if maker is not None:
        return maker.table(records)
    if isinstance(records, pa.Table):
        return records
    if isinstance(records, pa.RecordBatch):
        return pa.Table.from_batches([records])
    records = list(records)
    return to_table(records, infer_schema(records))


class TableMaker:
    """Makes tables of one schema. With `exact`, a missing key is an error even if the schema is not marked as exact.

    UsageError: records cannot be converted to this schema.
    """

    def __init__(self, schema: pa.Schema, *, exact: bool = False) -> None:
        self.schema = schema
        exact = exact or has_exact_keys(schema)
        if record_is_value(schema):
            self._value = _column_of(schema.field(0), exact=exact)
            self._row: _StructColumn | None = None
        else:
            self._row = _StructColumn(list(schema), exact=exact)
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
            found = _first_misfit(self._arrays, rows)
        if found is None:
            raise RecordError(
                f"{place}the records from {first} fit the schema one by one, but not together: for example, a "
                "dictionary has too many values for its indices. Use a smaller --task-bytes or wider types in --schema"
            )
        number, misfit = found
        raise RecordError(f"{place}record {first + number}: {misfit}; {REMEDY}")

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return tables of this schema as one table. A column has one dictionary, and one chunk unless it is too large.

        RecordError: the dictionaries of a column cannot be joined.
        """
        if len(tables) == 1:
            return tables[0]
        return joined_chunks(unified(pa.concat_tables(tables))) if tables else self.table([])

    def copied(self, record: Any) -> Any:
        """Return a copy of a record, so that a later change of the record does not change the row."""
        return self._copied(record)

    def require(self, record: Any) -> None:
        """Raise RecordError unless a record fits."""
        try:
            self._arrays([plain_value(record)])
        except MisfitError as error:
            raise RecordError(f"{error}; {REMEDY}") from None

    def _arrays(self, rows: Sequence[Any]) -> list[pa.Array | pa.ChunkedArray]:
        return self._row.arrays(rows) if self._row is not None else [self._value.array(rows)]


REMEDY = "give a --schema that holds it, or put such records aside with --on-error reject"

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
        return lambda value: value.copy() if type(value) is list else copied(value)
    if isinstance(kind, pa.StructType):
        return _dict_copier([kind.field(place) for place in range(kind.num_fields)])
    is_fixed = not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType | pa.DictionaryType)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return None if is_fixed and not is_bytes and not pa.types.is_binary_view(kind) else copied


def _dict_copier(fields: Sequence[pa.Field]) -> Callable[[Any], Any]:
    deep = [(field.name, copy_of) for field in fields if (copy_of := _copier(field.type)) is not None]

    def copy_dict(value: Any) -> Any:
        if type(value) is not dict:
            return copied(value)
        row = value.copy()
        for name, copy_of in deep:
            if (part := row.get(name)) is not None:
                row[name] = copy_of(part)
        return row

    return copy_dict


def _cast(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a table cast to a schema, with the columns in the order of the schema."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table.schema.equals(schema):
        return table.replace_schema_metadata(schema.metadata) if table.schema.metadata != schema.metadata else table
    names = table.column_names
    for name in names:
        if name not in schema.names:
            raise MisfitError("a column of the schema", f"another one of {table.schema.field(name).type}", f".{name}")
    arrays = []
    for field in schema:
        if names.count(field.name) != 1:
            found = "no such column" if field.name not in names else "several columns of this name"
            raise MisfitError(f"a column of {field.type}", found, f".{field.name}")
        column, path, expected = table.column(field.name), f".{field.name}", f"a column of {field.type}"
        if column.null_count and not field.nullable:
            raise MisfitError(f"{field.type} without nulls", "nulls", path)
        if not _is_kin(column.type, field.type):
            raise MisfitError(expected, f"one of {column.type}", path)
        try:
            arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise MisfitError(expected, f"one of {column.type} with values that do not fit ({error})", path) from None
    return pa.Table.from_arrays(arrays, schema=schema)


def _is_kin(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a cast between two types keeps the meaning of values, and raises if a value would change."""
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


_FAMILIES = (  # a cast within a family of types refuses values that do not fit
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_time,
    pa.types.is_date,
    pa.types.is_duration,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
)


def _first_misfit(make: Callable[[Sequence[Any]], Any], values: Sequence[Any]) -> tuple[int, MisfitError] | None:
    """Return the position of the first value for which `make` raises, and the error; None if there is none."""
    start, stop = 0, len(values)
    while stop - start > 1:  # the misfit is before `middle`, or after it
        middle = (start + stop) // 2
        try:
            make(values[start:middle])
            start = middle
        except MisfitError:
            stop = middle
    try:
        make(values[start:stop])
    except MisfitError as error:
        return start, error
    return None


class _Json(TypedColumn):
    """A column of JSON text. None becomes the text `null` if a null in the column stands for an absent key."""

    def __init__(self, kind: pa.DataType, *, writes_null: bool) -> None:
        super().__init__(kind, "a JSON value")
        self._writes_null = writes_null

    def array(self, values: Sequence[Any]) -> pa.Array:
        try:
            texts = [self._text(value) for value in values]
        except _UNWRITABLE as error:
            raise MisfitError(self.expected, str(error) if len(values) == 1 else "others") from None
        return _as_extension(self.type, pa.array(texts, self.type.storage_type))

    def _text(self, value: Any) -> str | None:
        if value is ABSENT or (value is None and not self._writes_null):
            return None
        _require_plain(value)
        return dumps(value).decode()


def _require_plain(value: Any) -> None:
    """Raise TypeError for values that JSON would change."""
    kind = type(value)
    if kind is dict:
        for part in value.values():
            _require_plain(part)
    elif kind is list:
        for part in value:
            _require_plain(part)
    elif kind not in _OF_JSON:
        raise TypeError(describe(value))


_UNWRITABLE: tuple[type[Exception], ...] = (RecordError, *ARROW_ERRORS)
_OF_JSON = frozenset({NONE, bool, int, float, str})


class _Wrapped(TypedColumn):
    """A column of an extension type. `read` converts a value; the column of the storage type makes the array."""

    def __init__(self, kind: pa.DataType, storage: TypedColumn, read: Callable[[Any], Any]) -> None:
        super().__init__(kind, storage.expected)
        self._storage = storage
        self._read = read

    def array(self, values: Sequence[Any]) -> pa.Array:
        try:
            read = [None if value is None else self._read(value) for value in values]
        except ARROW_ERRORS:
            raise self.misfit(values) from None
        return _as_extension(self.type, _whole(self._storage.array(read)))


class _Encoded(TypedColumn):
    """A dictionary column: each distinct value once, in order of first appearance."""

    def __init__(self, kind: pa.DictionaryType, values: TypedColumn) -> None:
        super().__init__(kind, values.expected)
        self._values = values

    def array(self, values: Sequence[Any]) -> pa.Array:
        encoded = _whole(self._values.array(values)).dictionary_encode()
        try:
            indices = encoded.indices.cast(self.type.index_type)
            return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=self.type.ordered)
        except ARROW_ERRORS:
            found = f"{len(encoded.dictionary):,} different values"
            raise MisfitError(f"no more values than indices of type {self.type.index_type} can count", found) from None


class _List(TypedColumn):
    def __init__(self, kind: pa.DataType, item: TypedColumn) -> None:
        super().__init__(
            kind, "a list" if not isinstance(kind, pa.FixedSizeListType) else f"a list of {kind.list_size}"
        )
        self._items = item

    def array(self, values: Sequence[Any]) -> pa.Array:
        if not _LISTS.issuperset(map(type, values)):
            values = [_as_list(self, value) for value in values]
        flat = list(chain.from_iterable(value for value in values if value is not None))
        items = _part_array(self._items, flat, len(values))
        lengths = [0 if value is None else len(value) for value in values]
        valid = [value is not None for value in values]
        if isinstance(self.type, pa.FixedSizeListType):
            return self._of_one_size(items, lengths, valid)
        return _listed(self.type, items, lengths, None if all(valid) else _mask(valid))

    def _of_one_size(self, items: pa.Array, lengths: list[int], valid: list[bool]) -> pa.Array:
        size = self.type.list_size
        wrong = [length for length, is_there in zip(lengths, valid, strict=True) if is_there and length != size]
        if wrong:
            raise MisfitError(self.expected, f"a list of {wrong[0]}")
        if not all(valid):  # a null list has items too
            places = iter(range(len(items)))
            spread = [next(places) if is_there else None for is_there in valid for _ in range(size)]
            items = items.take(pa.array(spread, pa.int64()))
        return pa.FixedSizeListArray.from_arrays(items, type=self.type, mask=_mask(valid))


def _listed(kind: pa.DataType, items: pa.Array, lengths: list[int], mask: pa.Array | None) -> pa.Array:
    made, whole = _LISTS_OF[type(kind)]
    ends = np.cumsum([0, *lengths])
    if isinstance(kind, pa.ListViewType | pa.LargeListViewType):
        starts, sizes = pa.array(ends[:-1], whole), pa.array(lengths, whole)
        return made.from_arrays(starts, sizes, items, type=kind, mask=mask)
    return made.from_arrays(pa.array(ends, whole), items, type=kind, mask=mask)


_LISTS_OF = {  # the class of arrays of a type of lists, and the type of its offsets
    pa.ListType: (pa.ListArray, pa.int32()),
    pa.LargeListType: (pa.LargeListArray, pa.int64()),
    pa.ListViewType: (pa.ListViewArray, pa.int32()),
    pa.LargeListViewType: (pa.LargeListViewArray, pa.int64()),
}


class _Map(TypedColumn):
    def __init__(self, kind: pa.MapType, keys: TypedColumn, items: TypedColumn) -> None:
        super().__init__(kind, "an object, or a list of pairs")
        self._keys, self._items = keys, items

    def array(self, values: Sequence[Any]) -> pa.Array:
        try:
            pairs = [None if value is None else _pairs(value) for value in values]
        except ARROW_ERRORS:
            raise self.misfit(values) from None
        flat = [pair for value in pairs if value is not None for pair in value]
        keys = _part_array(self._keys, [name for name, _ in flat], len(values), ".keys")
        items = _part_array(self._items, [part for _, part in flat], len(values), ".values")
        ends = np.cumsum([0, *(0 if value is None else len(value) for value in pairs)])
        mask = _mask([value is not None for value in pairs])
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items, type=self.type, mask=mask)


def _part_array(column: TypedColumn, values: list[Any], of: int, path: str = "") -> pa.Array:
    """Return the array of the parts of `of` values. The error of a single value names the part that does not fit."""
    try:
        return _whole(column.array(values))
    except MisfitError as error:
        found = _first_misfit(column.array, values) if of == 1 else None
        raise (error if found is None else found[1].below(f"{path}[{found[0]}]")) from None


class _StructColumn(TypedColumn):
    """Objects whose keys are the names of fields.

    With `exact`, a missing key is an error, not a null, unless nulls of the field stand for absent keys.
    """

    def __init__(self, fields: Sequence[pa.Field], *, exact: bool, kind: pa.StructType | None = None) -> None:
        super().__init__(kind, "an object")
        self.fields = list(fields)
        self._exact = exact
        self._parts = [(field.name, _path(field.name), field, _column_of(field, exact=exact)) for field in fields]

    def array(self, values: Sequence[Any]) -> pa.Array:
        there = [value for value in values if value is not None]
        arrays = [_whole(part) for part in self.arrays(there)]
        made = pa.StructArray.from_arrays(arrays, fields=self.fields) if arrays else pa.array(there, self.type)
        if len(there) == len(values):
            return made
        places = iter(range(len(there)))
        return made.take(pa.array([None if value is None else next(places) for value in values], pa.int64()))

    def arrays(self, rows: Sequence[Any]) -> list[pa.Array | pa.ChunkedArray]:
        if not _DICTS.issuperset(map(type, rows)):
            rows = [_as_dict(self, row) for row in rows]
        arrays, found = [], 0
        for name, path, field, column in self._parts:
            try:
                values = list(map(itemgetter(name), rows))
                found += len(values)
                is_whole = field.nullable and not null_is_absent(field)
            except KeyError:
                values = [row.get(name, ABSENT) for row in rows]
                found += sum(value is not ABSENT for value in values)
                is_whole = False
            try:
                arrays.append(column.array(values if is_whole else self._present(field, column, values)))
            except MisfitError as error:
                raise error.below(path) from None
        if found != sum(map(len, rows)):
            known = {field.name for field in self.fields}
            name, value = next((name, value) for row in rows for name, value in row.items() if name not in known)
            raise MisfitError("a key of the schema", f"another key with {describe(value)}", _path(name))
        return arrays

    def _present(self, field: pa.Field, column: TypedColumn, values: list[Any]) -> list[Any]:
        """Return the values of a field, with None for a missing key. MisfitError: null or missing is not allowed."""
        kinds = set(map(type, values))
        is_text = isinstance(column, _Json) and null_is_absent(field)
        if NONE in kinds and not is_text and (null_is_absent(field) or not field.nullable):
            what = f"{column.expected}, or no such key" if null_is_absent(field) else column.expected
            raise MisfitError(what, "null")
        if type(ABSENT) in kinds:
            if (self._exact and not null_is_absent(field)) or not field.nullable:
                raise MisfitError(column.expected, "no such key")
            return values if is_text else [None if value is ABSENT else value for value in values]
        return values


class _Required(TypedColumn):
    """Values that must not be null."""

    def __init__(self, column: TypedColumn) -> None:
        super().__init__(column.type, column.expected)
        self._column = column

    def array(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        if NONE in set(map(type, values)):
            raise MisfitError(self.expected, "null" if len(values) == 1 else "others")
        return self._column.array(values)


def _column_of(field: pa.Field, *, exact: bool = False) -> TypedColumn:
    """Return the column that makes arrays of a field. UsageError: Python values cannot be converted to its type."""
    kind = field.type
    if is_json(kind):
        return _Json(kind, writes_null=null_is_absent(field))
    if isinstance(kind, pa.BaseExtensionType):
        storage = _column_of(pa.field(field.name, kind.storage_type), exact=exact)
        return _Wrapped(kind, storage, _READ_EXTENSION.get(kind.extension_name, lambda value: value))
    if isinstance(kind, pa.DictionaryType):
        return _Encoded(kind, _column_of(pa.field(field.name, kind.value_type), exact=exact))
    if isinstance(kind, pa.StructType):
        return _StructColumn([kind.field(place) for place in range(kind.num_fields)], exact=exact, kind=kind)
    if isinstance(kind, pa.MapType):
        return _Map(kind, _item_column(kind.key_field, exact), _item_column(kind.item_field, exact))
    if isinstance(kind, _LIST_TYPES):
        return _List(kind, _item_column(kind.value_field, exact))
    return leaf_column(kind, field.name)


def _item_column(field: pa.Field, exact: bool) -> TypedColumn:
    column = _column_of(field, exact=exact)
    return column if field.nullable else _Required(column)


_LISTS = frozenset({list, tuple, NONE})
_DICTS = frozenset({dict})
_LIST_TYPES = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


def _uuid_bytes(value: Any) -> Any:
    return (UUID(value) if isinstance(value, str) else value).bytes if isinstance(value, str | UUID) else value


_READ_EXTENSION: dict[str, Callable[[Any], Any]] = {"arrow.uuid": _uuid_bytes}
"""Converters from values of an extension type to values of its storage, where they differ."""


def _as_list(column: TypedColumn, value: Any) -> Any:
    if value is None or isinstance(value, list | tuple):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise column.misfit([value])


def _as_dict(column: TypedColumn, value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise column.misfit([value])


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
    if any(len(pair) != 2 for pair in pairs) or isinstance(value, str | bytes):
        raise ValueError("no pairs")
    return [(name, part) for name, part in pairs]


def _path(name: Any) -> str:
    """Return a key as it is written in the path of a field."""
    return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r:.60}]"


def _mask(valid: list[bool]) -> pa.Array | None:
    """Return the mask of the null values for pyarrow; None if there are none."""
    return None if all(valid) else pa.array([not is_there for is_there in valid], pa.bool_())


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return an array without chunks, so that it can be a part of another array."""
    if isinstance(array, pa.ChunkedArray):
        raise MisfitError("less than 2 GiB of text or bytes in a task", "more")
    return array


def _as_extension(kind: pa.BaseExtensionType, storage: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, _whole(storage))
