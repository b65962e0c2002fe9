"""Records of each format as records of the others, without loss.

    sample   {"__key__": key, extension: value, ...}      a JSON value
    document {"tokens": [...], "lengths": [...], "modes": [...]}

In columns a sample is the same with each member as it lies there: as text if that is what its extension says, else as
bytes. What a member of a sample becomes, `io/tar/members.py` says. A JSON value without `__key__` becomes a sample with
the one member `json`. Records of other formats are JSON values, or have a method `as_json()` that makes one. `lengths`
are left out of a document of one sequence, `modes` where there are none.

Each function takes one record of any format and returns a list of one, the shape that a function of `map` may return
for every record, also for a `null` or a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.datasets.megatron.documents import Document
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.json_values import loads
from ledgerbeam.io.tar.members import json_bytes, member_bytes, text_or_bytes
from ledgerbeam.io.tar.sample import KEY, Sample, require_text

VERSION = 1
"""Version of the mapping; a job that used another version cannot be continued."""


def to_json(record: Any) -> list[Any]:
    """Return a record as a JSON value.

    Raises:
        RecordError: A sample has a member called ``__key__``, or one whose name is not UTF-8.
    """
    return [json_value(record)]


def to_sample(record: Any) -> list[Any]:
    """Return a record as a sample, or as a mapping of extension to bytes that its place gives a key.

    Raises:
        RecordError: A JSON value with a ``__key__`` has under an extension what cannot be its content.
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
    """Return a record as a row of columns: of a sample its key, and each member as text or bytes.

    Raises:
        RecordError: A sample has a member called ``__key__``, or one whose name is not UTF-8.
    """
    if not isinstance(record, Sample):
        return [json_value(record)]
    if KEY in record:
        raise RecordError(f"a sample with a member called {KEY!r} cannot be a row, in which that is the column of keys")
    require_text(record)
    return [{KEY: record.key, **{name: text_or_bytes(name, data) for name, data in record.items()}}]


def to_cut(record: Any) -> list[Any]:
    """Return a record as a cut, or as a sample to make a cut of.

    Raises:
        RecordError: It is neither a sample nor an object with an `id`.
    """
    if isinstance(record, Mapping) and not isinstance(record, Sample) and KEY not in record:
        if isinstance(record.get("id"), str):
            return [record]
    elif not isinstance(record, Document):
        found = to_sample(record)[0]
        if isinstance(found, Sample):
            return [found]
    raise RecordError(f"expected a cut, an object with an 'id', or a sample with a key, found {record!r:.80}")


def to_document(record: Any) -> list[Document]:
    """Return a record as a document: of a JSON value its `tokens`, of a sample those of its member `json`.

    Raises:
        RecordError: It has no tokens, or they are no list.
    """
    if isinstance(record, Document):
        return [record]
    value = loads(record["json"]) if isinstance(record, Sample) and "json" in record else record
    if isinstance(value, Mapping) and KEY in value and "json" in value:
        value = value["json"]
    tokens = value.get("tokens") if isinstance(value, Mapping) else None
    if not isinstance(tokens, list):
        raise RecordError(
            'expected {"tokens": [...]}, with "lengths" if they are several sequences, found no list under "tokens"; '
            "ledgerbeam tokenize makes tokens of text"
        )
    lengths, modes = value.get("lengths", [len(tokens)]), value.get("modes")
    for name, part in (("lengths", lengths), ("modes", modes)):
        if part is not None and not isinstance(part, list):
            raise RecordError(f"expected a list under {name!r}, found {type(part).__name__}")
    return [Document(tokens, lengths, modes)]


CONVERSIONS: dict[str, Callable[[Any], list[Any]]] = {
    "cut": to_cut,
    "document": to_document,
    "json": to_json,
    "row": to_row,
    "sample": to_sample,
}
"""What a record can become. Jobs are known by these names, wherever the functions lie."""

_OF_FORMATS = {
    "jsonl": "json",
    "tar": "sample",
    "shar": "cut",
    "megatron": "document",
    "parquet": "row",
    "arrow": "row",
}
"""What a record becomes for each format; a JSON value for all others."""


def conversion_of(to: str) -> str:
    """Return what a record becomes for a format: a name of `CONVERSIONS`."""
    return _OF_FORMATS.get(to, "json")
