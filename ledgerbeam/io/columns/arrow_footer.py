"""Parse the metadata of the record batches of an Arrow IPC file: their positions, rows, and buffers of columns.

pyarrow has no access to it before it reads the batches. Sources: `File.fbs`, `Message.fbs` and the columnar format of
Arrow; the FlatBuffers internals.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


FOOTER_END = 10
"""Bytes after the footer: its length and the magic."""

_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_LENGTH = struct.Struct("<q")
_DEEPEST = 64


class Block(NamedTuple):
    """The position of a message.

    Attributes:
        start: Its first byte.
        head: Bytes of its metadata.
        body: Bytes of its buffers, which follow the metadata.
    """

    start: int
    head: int
    body: int


class ArrowFooter(NamedTuple):
    """The positions of the messages of a file.

    Attributes:
        dictionaries: Of the dictionaries.
        batches: Of the record batches.
    """

    dictionaries: list[Block]
    batches: list[Block]


class Batch(NamedTuple):
    """A record batch, or the values of a dictionary.

    Attributes:
        rows: Number of rows.
        buffers: Offset and length of each buffer in the body.
        variadic: Number of data buffers of each column of views.
        is_compressed: Whether the buffers are compressed.
    """

    rows: int
    buffers: list[tuple[int, int]]
    variadic: list[int]
    is_compressed: bool


def parse_footer(data: bytes) -> ArrowFooter:
    """Return the positions of the dictionaries and the record batches.

    Args:
        data: The footer, without the bytes after it.

    Raises:
        ValueError: It is not valid.
    """
    try:
        root = _Table.root(data)
        dictionaries, batches = ([Block(*block) for block in root.structs(field, _BLOCK)] for field in (2, 3))
        return ArrowFooter(dictionaries, batches)
    except struct.error as error:
        raise ValueError("the footer points outside of itself") from error


def parse_batch(data: bytes) -> Batch:
    """Parse the metadata of a record batch, or of a dictionary.

    Args:
        data: The metadata, with its length before it.

    Raises:
        ValueError: It is not valid.
    """
    try:
        at = 8 if data[:4] == b"\xff\xff\xff\xff" else 4
        message = _Table.root(data[at:])
        kind = message.number(1, "B")
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            raise ValueError(f"expected a record batch, found a message of type {kind}")
        batch = message.table(2) if kind == _RECORD_BATCH else message.table(2).table(1)
        variadic = [count for (count,) in batch.structs(4, struct.Struct("<q"))]
        buffers = [(at, size) for at, size in batch.structs(2, _BUFFER)]
        return Batch(batch.number(0, "q"), buffers, variadic, batch.has(3))
    except struct.error as error:
        raise ValueError("the head of a record batch points outside of itself") from error


def plain_sizes(batch: Batch, starts: list[bytes]) -> list[int]:
    """Return the decompressed size of each buffer.

    Args:
        batch: The record batch.
        starts: The first bytes of each buffer, at least 8; fewer of a shorter one.
    """
    if not batch.is_compressed:
        return [size for _, size in batch.buffers]
    found = []
    for (_, size), start in zip(batch.buffers, starts, strict=True):
        length = _LENGTH.unpack_from(start)[0] if len(start) >= _LENGTH.size and size >= _LENGTH.size else -1
        found.append(size if length < 0 else length)  # -1: it is stored as it is
    return found


def buffers_of(kind: pa.DataType, variadic: list[int], depth: int = 0) -> int:
    """Return the number of buffers of a column in a record batch.

    Args:
        kind: The type of the column.
        variadic: Numbers of data buffers of the next columns of views; those of this column are removed.
        depth: Depth of the type inside other types.

    Raises:
        ValueError: The type is nested too deeply, or a number for a column of views is missing.
    """
    import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it
    from pyarrow import types  # noqa: PLC0415

    if depth > _DEEPEST:
        raise ValueError(f"a column is nested more than {_DEEPEST} times")
    if isinstance(kind, pa.BaseExtensionType):
        return buffers_of(kind.storage_type, variadic, depth)
    if types.is_dictionary(kind):
        return 2
    if types.is_null(kind):
        return 0
    if types.is_string_view(kind) or types.is_binary_view(kind):
        if not variadic:
            raise ValueError("a column of views has no number of buffers")
        return 2 + variadic.pop(0)
    if types.is_run_end_encoded(kind):
        return buffers_of(kind.run_end_type, variadic, depth + 1) + buffers_of(kind.value_type, variadic, depth + 1)
    if not types.is_nested(kind):
        return 3 if any(is_of(kind) for is_of in (types.is_binary, types.is_string, *_large(types))) else 2
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    if types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    own = 1  # validity; for a sparse union the types
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_map(kind):
        own = 3  # for a map with the validity of its pairs
    elif types.is_list(kind) or types.is_large_list(kind) or (types.is_union(kind) and kind.mode == "dense"):
        own = 2
    return own + sum(buffers_of(part, variadic, depth + 1) for part in parts)


def _large(types: Any) -> tuple[Any, Any]:
    return types.is_large_binary, types.is_large_string


class _Table:
    """A table of a FlatBuffer. Reads outside the buffer raise struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._read("<i", at)
        self._size = self._read("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """Return the first table."""
        (at,) = struct.unpack_from("<I", data, 0)
        return cls(data, at)

    def number(self, field: int, kind: str) -> int:
        """Return a number; 0 if it is missing."""
        at = self._place(field)
        return self._read(f"<{kind}", at) if at else 0

    def has(self, field: int) -> bool:
        """Return whether there is a value."""
        return self._place(field) > 0

    def table(self, field: int) -> _Table:
        """Return a table."""
        at = self._place(field)
        if not at:
            raise ValueError(f"expected a table in field {field}, found none")
        return _Table(self._data, at + self._read("<I", at))

    def structs(self, field: int, kind: struct.Struct) -> list[tuple[int, ...]]:
        """Return a vector of structs; an empty one if it is missing."""
        at = self._place(field)
        if not at:
            return []
        at += self._read("<I", at)
        count = self._read("<I", at)
        if count * kind.size > len(self._data):
            raise ValueError(f"a list claims {count:,} values, more than it has bytes")
        return [kind.unpack_from(self._data, at + 4 + number * kind.size) for number in range(count)]

    def _place(self, field: int) -> int:
        inside = 4 + 2 * field
        offset = self._read("<H", self._fields + inside) if inside + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def _read(self, kind: str, at: int) -> int:
        if at < 0:  # would count from the end
            raise struct.error(at)
        number: int = struct.unpack_from(kind, self._data, at)[0]
        return number
