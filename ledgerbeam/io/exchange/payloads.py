"""Records as bytes in run files.

    JSON text           a JSON value; from a JSONL source, the line unchanged
    00 size list data   a sample: the number of bytes of a JSON list `[key, [extension, size], ...]` (4 bytes), this
                        list, and the contents of the members
    01 JSON text        a value with NaN or infinities, in the notation of Python's json module

JSON text begins with neither of these bytes.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.json_values import dumps, json_form, loads
from ledgerbeam.io.tar.sample import Sample

_SAMPLE, _NOT_FINITE = 0, 1
_SIZE_BYTES = 4  # bytes that store the size of the list of a sample's members


def payload_of(record: Any) -> bytes:
    """Return a record as bytes. Raises RecordError for a value without a form in JSON."""
    if isinstance(record, Sample):
        sizes = [(_json_name(name), len(data)) for name, data in record.items()]
        head = orjson.dumps([_json_name(record.key), *sizes])
        return b"".join([bytes([_SAMPLE]), len(head).to_bytes(_SIZE_BYTES, "little"), head, *record.values()])
    value = json_value(record)
    try:
        return dumps(value)
    except RecordError:
        text = json.dumps(value, default=json_form, ensure_ascii=True, separators=(",", ":"))
        return bytes([_NOT_FINITE]) + text.encode()  # NaN or infinities: JSON does not have these numbers
    except TypeError as error:
        raise RecordError(f"a value of type {type(value).__name__} cannot be written as JSON: {error}") from error


def is_json_text(payload: bytes) -> bool:
    """Return whether the bytes of a record are JSON text, so that they can be a line of JSONL."""
    return payload[0] > _NOT_FINITE


def are_json_text(firsts: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return for each record whether it is JSON text, given the first byte of each record."""
    return firsts > _NOT_FINITE


def record_of(payload: bytes) -> Any:
    """Return the record of `payload_of`: a sample, or a JSON value. Raises RecordError if it is damaged."""
    try:
        if payload[0] == _SAMPLE:
            return _decode_sample(payload)
        return json.loads(payload[1:]) if payload[0] == _NOT_FINITE else loads(payload)
    except (ValueError, IndexError, TypeError) as error:
        raise RecordError(f"expected a record, found {payload[:120]!r} ({error})") from error


def _decode_sample(payload: bytes) -> Sample:
    begin = 1 + _SIZE_BYTES
    start = begin + int.from_bytes(payload[1:begin], "little")
    if start > len(payload):
        raise ValueError("the sample is cut off")
    key, *members = orjson.loads(payload[begin:start])
    sample = Sample(_text_name(key))
    for name, length in members:
        sample[_text_name(name)] = payload[start : start + length]
        start += length
    if start != len(payload):
        raise ValueError(f"expected a sample of {start:,} bytes, found {len(payload):,}")
    return sample


def _json_name(name: str) -> Any:
    """Return a key or an extension as a JSON value; a list of hexadecimal bytes if the name is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return [name.encode("utf-8", "surrogateescape").hex()]
    return name


def _text_name(name: Any) -> str:
    return bytes.fromhex(name[0]).decode("utf-8", "surrogateescape") if isinstance(name, list) else str(name)
