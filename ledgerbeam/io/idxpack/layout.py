"""The layout of `.idxpack` files, versions 2 and 3, as in `lhotse.index_pack` 2.0.0a7.

All integers are little-endian. A header of 256 bytes is followed by rows of collections, sequences and segments,
strings, and the payload: the bytes of each `.idx`. A collection is a sequence of segments; a segment is a source and
its index, in version 3 also a vector of numbers without a source.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import np

MAGIC = b"IDXPACK2"
"""Magic number of both versions."""

HEADER = struct.Struct("<8sII10Q32s")
"""Magic, version, size of the header, offset and length of each section, hash of the layout."""

HEADER_BYTES = 256
ENTRY = 8
"""Size of an offset in bytes."""

ITEM = "<u4"
"""NumPy type of a number in a vector."""

ITEM_BYTES = 4

PATHS_ONLY = 1
"""Flag of a collection or segment that only names sources, without offsets."""

ARRAY = 2
"""Flag of a collection or segment of numbers."""

Row: TypeAlias = list[tuple[str, str]]
"""Names and types of the fields of a row, in the form of a NumPy dtype."""

COLLECTION: Row = [
    ("key", "V32"),
    ("first", "<u8"),
    ("rows", "<u8"),
    ("records", "<u8"),
    ("kind", "<u8"),
    ("size", "<u4"),
    ("flags", "<u4"),
]
SEQUENCE: Row = [("segment", "<u8"), ("end", "<u8")]
SEGMENT: Row = [
    ("path", "<u8"),
    ("payload", "<u8"),
    ("path_size", "<u4"),
    ("flags", "<u4"),
    ("items", "<u8"),
    ("source_size", "<u8"),
    ("payload_size", "<u8"),
    ("crc", "<u4"),
    ("reserved", "<u4"),
]


def row_bytes(row: Row) -> int:
    """Return the size of a row in bytes."""
    return np.dtype(row).itemsize


def collection_key(role: str, kind: str, source_spec: Any) -> bytes:
    """Compute the key of a collection from the declaration of its writer.

    Args:
        role: Purpose, such as `"manifest"`.
        kind: Storage, such as `"json-lines"`.
        source_spec: Declaration of the sources, a JSON value.

    Returns:
        32 bytes: SHA-256 of compact JSON with sorted keys.
    """
    declared = {"kind": kind, "role": role, "source_spec": _plain(source_spec)}
    text = json.dumps(declared, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
