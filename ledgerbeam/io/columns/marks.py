"""Marks in the metadata of a schema, for properties of the values that Arrow types do not express.

====================  =======  =============================================================================
key                   value    meaning
====================  =======  =============================================================================
of a field:
``ledgerbeam:null``   absent   a null stands for a key that the record or the object does not have
of the schema:
``ledgerbeam:keys``   exact    a key that is missing in a record is not a null
``ledgerbeam:record`` value    the record is the value of the only column, not an object
====================  =======  =============================================================================

With them JSON values can be converted to columns and back exactly. Other programs ignore them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa


ELEMENT = "element"
"""The name of the items of a list, from the specification of Parquet."""

_NULL, _KEYS, _RECORD = (f"ledgerbeam:{name}".encode() for name in ("null", "keys", "record"))
_ABSENT, _VALUE, _EXACT = b"absent", b"value", b"exact"

FIELD_WORDS = {"null": (_NULL, _ABSENT)}
SCHEMA_WORDS = {"keys": (_KEYS, _EXACT), "record": (_RECORD, _VALUE)}
"""Names of these marks in the JSON form of schemas."""


def json_field(name: str) -> pa.Field:
    """Return the field of a column of JSON text."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

    return pa.field(name, pa.json_())


def is_json(kind: pa.DataType) -> bool:
    """Return whether the values of a type are JSON text; records contain the parsed values."""
    return getattr(kind, "extension_name", "") == "arrow.json"


def absent_field(field: pa.Field) -> pa.Field:
    """Return a field whose nulls stand for absent keys."""
    return field.with_metadata({**(field.metadata or {}), _NULL: _ABSENT})


def exact_schema(fields: list[pa.Field]) -> pa.Schema:
    """Return a schema of records that have all its keys, except keys whose nulls stand for absent ones."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema(fields, {_KEYS: _EXACT})


def value_schema(field: pa.Field) -> pa.Schema:
    """Return a schema of records that are the values of one column."""
    import pyarrow as pa  # noqa: PLC0415

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
