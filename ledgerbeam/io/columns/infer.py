"""Infer the common schema of records: a type that holds all values of a field, or else JSON text.

========================================  =====================================================================
values of a field                         its type
========================================  =====================================================================
bool, str, bytes                          bool, string, binary (str and bytes mixed: binary, text as UTF-8)
int                                       int64, uint64 where needed, JSON text beyond 64 bits
float, int and float                      double while every int is exact as one, else JSON text
object                                    struct; JSON text if it is always empty, or has very many different keys
list                                      list; JSON text if it is always empty
Decimal, date, datetime, time, timedelta  decimal128 or decimal256, date32, timestamp[us], time64[us], duration[us]
only null, mixed types, null and absent   JSON text
========================================  =====================================================================

A field that is missing in some records is marked: its nulls stand for absent keys.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.values import ELEMENT, absent_field, exact_schema, value_schema
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.json_values import is_of_dataclass

MOST_FIELDS = 256
"""Largest number of different keys for which objects always become a struct. With more keys, they become a struct only
if an object has, on average, at least half of the keys."""

MOST_DEPTH = 24  # levels of objects and lists that become types of columns; deeper values are JSON text
EXACT_INT = 2**53  # integers up to this value are exact as doubles
_TEXT = "text"
_VALUE = "value"

_KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    list: "list",
    tuple: "list",
    dict: "object",
    decimal.Decimal: "Decimal",
    dt.date: "date",
    dt.datetime: "datetime",
    dt.time: "time",
    dt.timedelta: "timedelta",
}

_OF_JSON = frozenset({"bool", "int", "float", "str", "list", "object"})

_SIMPLE = {
    "bool": pa.bool_(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "datetime with a zone": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "timedelta": pa.duration("us"),
}


def infer_schema(records: Iterable[Any], *, exact: bool = True) -> pa.Schema:
    """Return the schema of records (objects or any JSON values), or of tables.

    If not all records are objects, the schema has one column: `text` if all are strings, else `value`. With `exact` the
    schema distinguishes a null from an absent key, so that the records can be restored exactly. Without it, both are
    nulls, and the schema has no marks.

    Raises:
        RecordError: There are no records, or their values have no common type.
    """
    found = list(records)
    if found and all(isinstance(record, pa.Table | pa.RecordBatch) for record in found):
        try:
            return pa.unify_schemas([table.schema for table in found], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            problem = f"the batches have different schemas: {error}; cast them, or give --schema FILE"
            raise RecordError(problem) from error
    if not found:
        raise RecordError("expected at least one record to infer a schema from, found none; give --schema FILE")
    seen = _Seen(exact=exact)
    for record in found:
        seen.add(plain_value(record), 0)
    if set(seen.kinds) == {"object"} and not seen.nulls and not seen.is_scattered:
        fields = [_field(name, part, seen.count, (name,)) for name, part in seen.fields.items()]
        if fields:
            return exact_schema(fields) if exact else pa.schema(fields)
    if set(seen.kinds) == {"str"} and not seen.nulls:
        return value_schema(pa.field(_TEXT, pa.string()))
    _require_json(seen, (_VALUE,))
    return value_schema(pa.field(_VALUE, pa.json_()))


def plain_value(record: Any) -> Any:
    """Return a record as a plain value: the result of its `as_json`, or the fields of a dataclass as a dict."""
    value = json_value(record)
    if type(value) is dict:
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if is_of_dataclass(value):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if not field.name.startswith("_")
        }
    return value


class _Seen:
    """The values of one field that were seen so far."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact  # as in `infer_schema`
        self.count = self.nulls = 0  # values, nulls included
        self.kinds: Counter[str] = Counter()  # values of each kind
        self.low = self.high = 0  # of the integers
        self.digits = self.scale = 0  # most digits of a decimal before and after the point
        self.fields: dict[str, _Seen] = {}  # the values of each key of the objects
        self.items: _Seen | None = None  # of the lists
        self.is_deep = False

    def add(self, value: Any, depth: int) -> None:
        self.count += 1
        if value is None:
            self.nulls += 1
            return
        if isinstance(value, np.generic):
            value = value.item()
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        kind = _kind(value)
        self.kinds[kind] += 1
        if kind == "int":
            self.low, self.high = min(self.low, value), max(self.high, value)
        elif kind == "Decimal":
            _, digits, exponent = value.as_tuple()
            if not isinstance(exponent, int):
                raise RecordError(f"a column cannot have the decimal {value}; return a finite decimal or None")
            self.scale = max(self.scale, -exponent)
            self.digits = max(self.digits, len(digits) + exponent)
        elif kind in ("object", "list"):
            if depth >= MOST_DEPTH:
                self.is_deep = True
            elif kind == "object":
                for name, part in value.items():
                    if not isinstance(name, str):
                        found = f"{type(name).__name__} {name!r:.60}"
                        raise RecordError(f"expected strings as keys of objects, found {found}")
                    if name not in self.fields:
                        self.fields[name] = _Seen(exact=self.exact)
                    self.fields[name].add(part, depth + 1)
            else:
                self.items = self.items or _Seen(exact=self.exact)
                for item in value:
                    self.items.add(item, depth + 1)

    @property
    def is_scattered(self) -> bool:
        """Whether there are very many different keys, but only a few in each object."""
        if len(self.fields) <= MOST_FIELDS:
            return False
        return 2 * sum(part.count for part in self.fields.values()) < len(self.fields) * self.kinds["object"]


def _kind(value: Any) -> str:
    if (kind := _KINDS.get(type(value))) is None:
        kind = next((name for base, name in _KINDS.items() if isinstance(value, base)), None)
    if kind == "date" and isinstance(value, dt.datetime):  # which is a subclass of date
        kind = "datetime"
    if kind is None and isinstance(value, Mapping):
        kind = "object"
    if kind is None:
        raise RecordError(
            f"a {type(value).__name__} cannot be written to a column; return plain values, or give --schema FILE"
        )
    return "datetime with a zone" if kind == "datetime" and value.tzinfo is not None else kind


Path = tuple[str, ...]


def _field(name: str, seen: _Seen, of: int, path: Path) -> pa.Field:
    """Return the field of a key that occurs in `seen.count` of `of` objects."""
    lacks = seen.exact and seen.count < of
    kind = None if lacks and seen.nulls else _type(seen, path)
    if kind is None:
        _require_json(seen, path)
        lacks, kind = seen.exact, pa.json_()
    return absent_field(pa.field(name, kind)) if lacks else pa.field(name, kind)


def _type(seen: _Seen, path: Path) -> pa.DataType | None:
    """Return the type that holds all seen values; None if only JSON text does."""
    kinds = set(seen.kinds)
    if kinds == {"object"}:
        if not seen.fields or seen.is_scattered or seen.is_deep:
            return None
        fields = [_field(name, part, seen.kinds["object"], (*path, name)) for name, part in seen.fields.items()]
        return pa.struct(fields)
    if kinds == {"list"}:
        if seen.items is None or not seen.items.count or seen.is_deep:
            return None
        path = (*path, "[]")
        if (kind := _type(seen.items, path)) is None:
            _require_json(seen.items, path)
            kind = pa.json_()
        return pa.list_(pa.field(ELEMENT, kind))
    if kinds == {"int"}:
        if seen.low >= -(2**63) and seen.high < 2**63:
            return pa.int64()
        return pa.uint64() if seen.low >= 0 and seen.high < 2**64 else None
    if kinds in ({"float"}, {"int", "float"}):
        return pa.float64() if max(-seen.low, seen.high) <= EXACT_INT else None
    if kinds == {"str", "bytes"}:
        return pa.binary()
    if "Decimal" in kinds and kinds <= {"Decimal", "int"}:
        return _decimal(seen, path)
    return _SIMPLE[next(iter(kinds))] if len(kinds) == 1 else None


def _decimal(seen: _Seen, path: Path) -> pa.DataType:
    if (digits := max(seen.digits, len(str(max(-seen.low, seen.high)))) + seen.scale) > 76:
        raise RecordError(f"{_shown(path)}: expected decimals of at most 76 digits, found {digits}; return strings")
    digits = max(digits, 1)
    return pa.decimal128(digits, seen.scale) if digits <= 38 else pa.decimal256(digits, seen.scale)


def _require_json(seen: _Seen, path: Path) -> None:
    """Raise RecordError if a field must be JSON text but has values that JSON does not have."""
    if not set(seen.kinds) <= _OF_JSON:
        raise RecordError(
            f"{_shown(path)}: expected values of one type, found {' and '.join(sorted(seen.kinds))}; return one type, "
            "or give --schema FILE"
        )
    for name, part in seen.fields.items():
        _require_json(part, (*path, name))
    if seen.items is not None:
        _require_json(seen.items, (*path, "[]"))


def _shown(path: Path) -> str:
    return ".".join(path).replace(".[]", "[]")
