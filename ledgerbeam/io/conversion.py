"""Conversions of records between formats, without loss.

    sample   {"__key__": key, extension: value, ...}      a JSON value
    document {"tokens": [...], "lengths": [...], "modes": [...]}

As a row of columns, a sample has the same keys, and each member is unchanged: text if its extension is one for text,
else bytes. `io/tar/sample.py` defines the JSON value of a member. A JSON value without `__key__` becomes a sample with
the only member `json`. Records of other formats are JSON values, or have a method `as_json()`. A document of one
sequence has no `lengths`, and a document without modes has no `modes`.

Each function takes one record of any format, and returns a list with the converted record, as `map` needs: outside of
a list, `map` would drop a converted `null`, and would take a converted list for several records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.tar.sample import KEY, Sample, json_bytes, member_bytes, require_text, text_or_bytes

VERSION = 1  # of these conversions. A job that used another version cannot be resumed.


def to_json(record: Any) -> list[Any]:
    """Return a record as a JSON value. RecordError: a sample has a member ``__key__``, or a name that is not UTF-8."""
    return [json_value(record)]


def to_sample(record: Any) -> list[Any]:
    """Return a record as a `Sample`; without a ``__key__`` as `{"json": bytes}`, whose key comes from its position.

    RecordError: a JSON value with a ``__key__`` has a value that its extension cannot have.
    """
    if isinstance(record, Sample):
        return [record]
    value = json_value(record)
    if not isinstance(value, Mapping) or KEY not in value:
        return [{"json": json_bytes(value)}]
    if not isinstance(value[KEY], str):
        raise RecordError(f"expected a string under {KEY!r}, found {type(value[KEY]).__name__}")
    return [Sample(value[KEY], {name: member_bytes(name, part) for name, part in value.items() if name != KEY})]


def to_row(record: Any) -> list[Any]:
    """Return a record as a row of columns. A sample becomes its key, and each member as text or bytes.

    RecordError: a sample has a member called ``__key__``, or one whose name is not UTF-8.
    """
    if not isinstance(record, Sample):
        return [json_value(record)]
    if KEY in record:
        raise RecordError(f"a sample with a member {KEY!r} cannot be a row: this column has the key; rename the member")
    require_text(record)
    return [{KEY: record.key, **{name: text_or_bytes(name, data) for name, data in record.items()}}]


_CONVERSIONS: dict[str, Callable[[Any], list[Any]]] = {"json": to_json, "row": to_row, "sample": to_sample}


def find_conversion(name: str) -> Callable[[Any], list[Any]]:
    """Return the function of a conversion: one of this module, or of the entry-point group `ledgerbeam.conversions`."""
    return _CONVERSIONS.get(name) or load_extension("ledgerbeam.conversions", name)


# Name of the conversion for each format; `json` for all others.
_OF_FORMATS = {
    "jsonl": "json",
    "tar": "sample",
    "shar": "cut",
    "megatron": "document",
    "parquet": "row",
    "arrow": "row",
}


def conversion_of(to: str) -> str:
    """Return the name of the conversion for a format."""
    return _OF_FORMATS.get(to, "json")
