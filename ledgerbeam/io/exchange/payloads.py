"""Records as bytes in run files, and back.

    JSON text           a JSON value; of a JSONL source the line as it lies there
    00 size list data   a sample: the number of bytes of a JSON list `[key, [extension, size], ...]` (4 bytes), that
                        list, and the contents of the members one behind the other
    01 JSON text        a value with NaN or infinities, which JSON does not have: as Python writes them

JSON text begins with neither of these bytes.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
from numpy.typing import NDArray

from ledgerbeam._base.late_numpy import np
from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.json_values import dumps, json_form, loads
from ledgerbeam.io.tar.sample import Sample

_SAMPLE, _NOT_FINITE = 0, 1
_SIZE_BYTES = 4  # of the size of a list


def payload_of(record: Any) -> bytes:
    """Return a record as bytes.

    Raises:
        RecordError: JSON cannot hold it.
    """
    if isinstance(record, Sample):
        return _of_sample(record)
    value = json_value(record)
    try:
        return dumps(value)
    except RecordError:
        return _not_finite(value)
    except TypeError as error:
        raise RecordError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def is_json_text(payload: bytes) -> bool:
    """Return whether the bytes of a record are JSON text, a line of JSONL."""
    return payload[0] > _NOT_FINITE


def are_json_text(firsts: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether records are JSON text, by their first bytes."""
    return firsts > _NOT_FINITE


def record_of(payload: bytes) -> Any:
    """Return the record that `payload_of` was given: a sample, or a JSON value.

    Raises:
        RecordError: The bytes are no record.
    """
    try:
        if payload[0] == _SAMPLE:
            return _sample_of(payload)
        return json.loads(payload[1:]) if payload[0] == _NOT_FINITE else loads(payload)
    except (ValueError, IndexError, TypeError) as error:
        raise RecordError(f"expected a record, found {payload[:120]!r} ({error})") from error


def _of_sample(sample: Sample) -> bytes:
    head = orjson.dumps([_named(sample.key), *((_named(name), len(data)) for name, data in sample.items())])
    return b"".join([bytes([_SAMPLE]), len(head).to_bytes(_SIZE_BYTES, "little"), head, *sample.values()])


def _sample_of(payload: bytes) -> Sample:
    begin = 1 + _SIZE_BYTES
    start = begin + int.from_bytes(payload[1:begin], "little")
    if start > len(payload):
        raise ValueError("a sample that is cut off")
    key, *members = orjson.loads(payload[begin:start])
    sample = Sample(_unnamed(key))
    for name, length in members:
        sample[_unnamed(name)] = payload[start : start + length]
        start += length
    if start != len(payload):
        raise ValueError(f"a sample of {start:,} bytes in {len(payload):,}")
    return sample


def _named(name: str) -> Any:
    """Return a key or an extension as JSON holds it; one that is not UTF-8 as a list of its bytes in hexadecimal."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return [name.encode("utf-8", "surrogateescape").hex()]
    return name


def _unnamed(name: Any) -> str:
    return bytes.fromhex(name[0]).decode("utf-8", "surrogateescape") if isinstance(name, list) else str(name)


def _not_finite(value: Any) -> bytes:
    """Return a value that orjson can write but for the numbers that JSON does not have."""
    text = json.dumps(value, default=json_form, ensure_ascii=True, separators=(",", ":"))
    return bytes([_NOT_FINITE]) + text.encode()
