"""Records of each format as records of the others, without loss.

    sample   {"__key__": key, extension: value, ...}      a JSON value
    document {"tokens": [...], "lengths": [...], "modes": [...]}

A member of a sample is a JSON value if its extension ends with `json`, a string if it is text in UTF-8 under one of
`TEXT_EXTENSIONS`, and `{"__base64__": "..."}` otherwise. A JSON value without `__key__` becomes a sample with the one
member `json`. Records of other formats are JSON values, or have a method `as_json()` that makes one. `lengths` are left
out of a document of one sequence, `modes` where there are none.

Each function takes one record of any format and returns a list of one, the shape that a function of `map` may return
for every record, also for a `null` or a list.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.jsonl.values import dumps, loads
from ledgerbeam.io.megatron.documents import Document
from ledgerbeam.io.tar.sample import Sample

__all__ = ["CONVERSIONS", "TEXT_EXTENSIONS", "VERSION", "text_or_json", "to_cut", "to_document", "to_json", "to_sample"]

VERSION = 1
"""Of the mapping; a job that used another one is not gone on with."""

TEXT_EXTENSIONS = frozenset({"cls", "csv", "html", "md", "srt", "text", "transcript", "tsv", "txt", "vtt", "xml"})
"""Last parts of extensions whose members become strings."""

_KEY = "__key__"
_BASE64 = "__base64__"


def to_json(record: Any) -> list[Any]:
    """Return a record as a JSON value.

    Raises:
        RecordError: A sample has a member called ``__key__``.
    """
    if not isinstance(record, Sample):
        return [_plain(record)]
    if _KEY in record:
        raise RecordError(f"sample {record.key!r} has a member with the extension {_KEY!r}; rename it")
    return [{_KEY: record.key, **{extension: text_or_json(extension, data) for extension, data in record.items()}}]


def to_sample(record: Any) -> list[Any]:
    """Return a record as a sample, or as a mapping of extension to bytes that its place gives a key.

    Raises:
        RecordError: A JSON value with a ``__key__`` has under an extension what cannot be its content.
    """
    if isinstance(record, Sample):
        return [record]
    value = _plain(record)
    if not isinstance(value, Mapping) or _KEY not in value:
        return [{"json": _dumps(value)}]
    if not isinstance(value[_KEY], str):
        raise RecordError(f"expected a string under {_KEY!r}, found {type(value[_KEY]).__name__}")
    return [Sample(value[_KEY], {name: _content(name, part) for name, part in value.items() if name != _KEY})]


def to_cut(record: Any) -> list[Any]:
    """Return a record as a cut, or as a sample to make a cut of.

    Raises:
        RecordError: It is neither a sample nor an object with an `id`.
    """
    if isinstance(record, Mapping) and not isinstance(record, Sample) and _KEY not in record:
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
    if isinstance(value, Mapping) and _KEY in value and "json" in value:
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


def text_or_json(extension: str, data: bytes) -> Any:
    """Return the content of a member as a JSON value: parsed, as text, or as `{"__base64__": ...}`; see above."""
    kind = extension.rpartition(".")[2].lower()
    try:
        if kind == "json":
            value = loads(data)
            if not (isinstance(value, dict) and _BASE64 in value):  # which would be read back as bytes
                return value
        elif kind in TEXT_EXTENSIONS:
            return data.decode()
    except ValueError:
        pass  # not what its name says: kept as bytes
    return {_BASE64: base64.b64encode(data).decode()}


def _plain(record: Any) -> Any:
    """Return a record that is not a sample as a JSON value, as its `as_json` makes it, if it has one."""
    as_json = getattr(type(record), "as_json", None)
    return record if as_json is None else as_json(record)


def _dumps(value: Any) -> bytes:
    try:
        return dumps(value)
    except TypeError as error:
        raise RecordError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def _content(extension: str, value: Any) -> bytes:
    if isinstance(value, dict) and value.keys() == {_BASE64}:
        try:
            return base64.b64decode(value[_BASE64], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise RecordError(f"expected base64 under {extension!r}: {error}") from error
    if extension.rpartition(".")[2].lower() == "json":
        return _dumps(value)
    if isinstance(value, str):
        return value.encode()
    raise RecordError(
        f"expected text or {{{_BASE64!r}: ...}} under {extension!r} of a record with a {_KEY!r}, found "
        f"{type(value).__name__}; only members whose extension ends with json hold other values"
    )


CONVERSIONS: dict[str, Callable[[Any], list[Any]]] = {
    "cut": to_cut,
    "document": to_document,
    "json": to_json,
    "sample": to_sample,
}
"""What a record can become. Jobs are known by these names, wherever the functions lie."""
