"""Random access to the rows of an Arrow IPC file, and its metadata: positions, rows and buffers of record batches.

pyarrow has no access to the metadata before it reads the batches. Sources: `File.fbs`, `Message.fbs` and the columnar
format of Arrow; the FlatBuffers internals.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import ipc, types

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import PlacedFile, first_read, most_decoded, too_large
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.storage.content_kind import HEAD, require_columns

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_STREAM = b"\xff\xff\xff\xff"
_ALIGNED = 64  # largest alignment of buffers
_PREFIX = 8  # bytes before a compressed buffer: its decompressed size
_FOOTER_END = 10  # bytes after the footer: its length and the magic
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_LENGTH = struct.Struct("<q")
_DEEPEST = 64


class ArrowReader(GroupedRows):
    """Random access to the rows of an Arrow IPC file, whose row groups are its record batches; see `GroupedRows`."""

    _known: list[tuple[int, bytes]]
    _blocks: list[Block]
    _dictionaries: list[tuple[Block, _BatchHead]]
    _batches: list[_BatchHead]
    _buffers: list[list[tuple[str, int]]]
    _fields: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        lists = ("_known", "_blocks", "_batches", "_dictionaries", "_buffers")
        return super().__getstate__() | {name: [] for name in lists} | {"_fields": None}

    def _facts(self) -> dict[str, Any]:
        return {"record_batches": len(self.groups)}

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        start, end = self._end_bytes()
        size = self._content.size
        dictionaries, self._blocks = parse_footer(end[:-_FOOTER_END])
        blocks = dictionaries + self._blocks
        for block in blocks:
            if min(block) < 0 or sum(block) > size:
                raise SourceError(f"{self.url}: a record batch is outside of the file; write the file again")
        heads = self._content.read_many(
            [block.start for block in blocks], [block.start + block.head for block in blocks]
        )
        parsed = list(map(_parse_batch, heads))
        count = len(dictionaries)
        self._batches = parsed[count:]
        self._dictionaries = list(zip(dictionaries, parsed[:count], strict=True))
        self._known = [(start, end), *((block.start, head) for block, head in zip(blocks, heads, strict=True))]
        schema = self._opened(PlacedFile(self._content)).schema
        names = schema.names
        self._fields = [place for place, name in enumerate(names) if name in self.columns] if self.columns else None
        self._buffers = [self._buffers_of(schema, batch) for batch in self._batches]
        return schema, [
            RowGroup(batch.rows, min(block.body, sum(max(0, batch.buffers[number][1]) for _, number in buffers)))
            for block, batch, buffers in zip(self._blocks, self._batches, self._buffers, strict=True)
        ]

    def _end_bytes(self) -> tuple[int, bytes]:
        """Return the offset of the footer, and the bytes from there to the end of the file."""
        size = self._content.size
        first = size - first_read(size)
        data = self._content.read(first, size)
        if data[-len(_MAGIC) :] != _MAGIC or size < 2 * _FOOTER_END:
            begin = self._content.read(0, min(4, size))
            if begin == _FEATHER_1:
                raise SourceError(f"{self.url}: Feather version 1 is not read; write the file as version 2")
            require_columns(self._content.read(0, min(HEAD, size)), self.url, _MAGIC)
            found = "an Arrow stream, which has no footer" if begin == _STREAM else f"{data[-len(_MAGIC) :]!r}"
            raise SourceError(
                f"{self.url}: expected {_MAGIC!r} at the end of an Arrow IPC file, found {found}; write it as a file, "
                "with pyarrow.ipc.new_file"
            )
        length = int.from_bytes(data[-_FOOTER_END : -len(_MAGIC)], "little", signed=True)
        if not 0 < length <= size - _FOOTER_END:
            raise SourceError(f"{self.url}: by its last bytes, the footer has {length:,} bytes; write the file again")
        start = size - _FOOTER_END - length
        return start, data[start - first :] if start >= first else self._content.read(start, size)

    def _buffers_of(self, schema: pa.Schema, batch: _BatchHead) -> list[tuple[str, int]]:
        """Return the column name and the number of each buffer of the chosen columns in a record batch."""
        variadic = list(batch.variadic)
        counts = [buffers_of(field.type, variadic) for field in schema]
        if sum(counts) != len(batch.buffers):
            raise SourceError(
                f"{self.url}: expected {sum(counts)} buffers in a record batch, found {len(batch.buffers)}; the "
                "file is damaged, write it again"
            )
        chosen = range(len(counts)) if self._fields is None else self._fields
        ends = list(accumulate(counts))
        names = schema.names
        return [
            (names[field], number) for field in chosen for number in range(ends[field] - counts[field], ends[field])
        ]

    def _opened(self, file: PlacedFile) -> Any:
        """Open the file without another read of its footer and metadata."""
        for start, data in self._known:
            file.hold(start, data)
        options = ipc.IpcReadOptions(use_threads=False, included_fields=self._fields)
        return ipc.open_file(pa.PythonFile(file, mode="r"), options=options)

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        names = self.schema.names
        wanted: list[tuple[int, int]] = []
        for number in numbers:
            block, batch = self._blocks[number], self._batches[number]
            body = block.start + block.head
            spans = (batch.buffers[buffer] for _, buffer in self._buffers[number])
            wanted += [
                (body + start, min(body + start + size + -(start + size) % _ALIGNED, body + block.body))
                for start, size in spans
                if 0 <= start < start + size <= block.body
            ]
        file = PlacedFile(self._content)
        file.fetch(wanted)
        opened = self._opened(file)
        self._require_dictionaries()
        for number in numbers:
            self._require_size(file, number)
            batch = opened.get_batch(number)
            batch.validate(full=True)
            yield pa.Table.from_batches([batch]).select(names)

    def _require_size(self, file: PlacedFile, number: int) -> None:
        """Check the decompressed sizes of the chosen columns of a record batch; raises SourceError."""
        block, batch = self._blocks[number], self._batches[number]
        if not batch.is_compressed:
            return
        body, sizes, stored = block.start + block.head, dict.fromkeys(self.schema.names, 0), self._groups[number].size
        buffers = [batch.buffers[buffer] for _, buffer in self._buffers[number]]
        starts = [bytes(file.at(body + start, body + min(start + _PREFIX, block.body))) for start, _ in buffers]
        found = _plain_sizes(batch._replace(buffers=buffers), starts)
        for (name, _), size in zip(self._buffers[number], found, strict=True):
            sizes[name] += size
        if sum(found) > most_decoded(stored):
            place = f"{self.url}: record batch {number}: column {max(sizes, key=lambda name: sizes[name])!r}"
            raise SourceError(too_large(place, sum(found), stored))

    def _require_dictionaries(self) -> None:
        """Check the decompressed sizes of the dictionaries; raises SourceError."""
        stored = found = 0
        for block, batch in self._dictionaries:
            body, stored = block.start + block.head, stored + block.body
            starts = [body + min(max(0, start), block.body) for start, _ in batch.buffers]
            stops = [min(start + _PREFIX, body + block.body) for start in starts]
            found += sum(_plain_sizes(batch, self._content.read_many(starts, stops) if batch.is_compressed else []))
        if found > most_decoded(stored):
            names = (repr(field.name) for field in self.schema if "dictionary<" in str(field.type))
            raise SourceError(
                too_large(f"{self.url}: the dictionaries of the columns {', '.join(names)}", found, stored)
            )


class Block(NamedTuple):
    """The position of a message."""

    start: int  # its first byte
    head: int  # bytes of its metadata
    body: int  # bytes of its buffers, which follow the metadata


class _BatchHead(NamedTuple):
    """The metadata of a record batch, or of the values of a dictionary."""

    rows: int
    buffers: list[tuple[int, int]]  # offset and length of each buffer in the body
    variadic: list[int]  # number of data buffers of each column of views
    is_compressed: bool  # whether the buffers are compressed


def parse_footer(data: bytes) -> tuple[list[Block], list[Block]]:
    """Return the positions of dictionaries and of record batches that a footer lists. Raises ValueError."""
    try:
        root = _Table.root(data)
        dictionaries, batches = ([Block(*block) for block in root.structs(field, _BLOCK)] for field in (2, 3))
        return dictionaries, batches
    except struct.error as error:
        raise ValueError("the footer refers to bytes outside of it") from error


def _parse_batch(data: bytes) -> _BatchHead:
    """Parse the metadata of a record batch or a dictionary; `data` starts with its length. Raises ValueError."""
    try:
        at = 8 if data[:4] == b"\xff\xff\xff\xff" else 4
        message = _Table.root(data[at:])
        kind = message.number(1, "B")
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            raise ValueError(f"expected a record batch, found a message of type {kind}")
        batch = message.table(2) if kind == _RECORD_BATCH else message.table(2).table(1)
        variadic = [count for (count,) in batch.structs(4, struct.Struct("<q"))]
        buffers = [(at, size) for at, size in batch.structs(2, _BUFFER)]
        return _BatchHead(batch.number(0, "q"), buffers, variadic, batch.has(3))
    except struct.error as error:
        raise ValueError("the head of a record batch refers to bytes outside of it") from error


def _plain_sizes(batch: _BatchHead, starts: list[bytes]) -> list[int]:
    """Return the decompressed size of each buffer, from its first 8 bytes in `starts`; a shorter buffer is plain."""
    if not batch.is_compressed:
        return [size for _, size in batch.buffers]
    found = []
    for (_, size), start in zip(batch.buffers, starts, strict=True):
        length = _LENGTH.unpack_from(start)[0] if len(start) >= _LENGTH.size and size >= _LENGTH.size else -1
        found.append(size if length < 0 else length)  # -1: it is stored as it is
    return found


def buffers_of(kind: pa.DataType, variadic: list[int], depth: int = 0) -> int:
    """Return the number of buffers of a column in a record batch.

    `variadic` has the number of data buffers of each string or binary view from this column on; its own are removed.
    ValueError: the type is nested too deeply, or a number is missing.
    """
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
            raise ValueError("the number of buffers of a column of views is missing")
        return 2 + variadic.pop(0)
    if types.is_run_end_encoded(kind):
        return buffers_of(kind.run_end_type, variadic, depth + 1) + buffers_of(kind.value_type, variadic, depth + 1)
    if not types.is_nested(kind):
        texts = (types.is_binary, types.is_string, types.is_large_binary, types.is_large_string)
        return 3 if any(is_of(kind) for is_of in texts) else 2
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    if types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    own = 1  # validity; for a sparse union the types
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_map(kind):
        own = 3  # for a map with the validity of its pairs
    elif types.is_list(kind) or types.is_large_list(kind) or (types.is_union(kind) and kind.mode == "dense"):
        own = 2
    return own + sum(buffers_of(part, variadic, depth + 1) for part in parts)


class _Table:
    """A table of a FlatBuffer. Reads outside the buffer raise struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._read("<i", at)
        self._size = self._read("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        (at,) = struct.unpack_from("<I", data, 0)
        return cls(data, at)

    def number(self, field: int, kind: str) -> int:
        """Return the number in a field; 0 if the field is missing."""
        at = self._place(field)
        return self._read(f"<{kind}", at) if at else 0

    def has(self, field: int) -> bool:
        return self._place(field) > 0

    def table(self, field: int) -> _Table:
        if not (at := self._place(field)):
            raise ValueError(f"expected a FlatBuffers table in field {field}, found none")
        return _Table(self._data, at + self._read("<I", at))

    def structs(self, field: int, kind: struct.Struct) -> list[tuple[int, ...]]:
        """Return the structs in a field; an empty list if the field is missing."""
        if not (at := self._place(field)):
            return []
        at += self._read("<I", at)
        count = self._read("<I", at)
        if count * kind.size > len(self._data):
            raise ValueError(f"a list of {count:,} entries has too few bytes")
        return [kind.unpack_from(self._data, at + 4 + number * kind.size) for number in range(count)]

    def _place(self, field: int) -> int:
        inside = 4 + 2 * field
        offset = self._read("<H", self._fields + inside) if inside + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def _read(self, kind: str, at: int) -> int:
        if at < 0:  # would count from the end
            raise struct.error(at)
        return struct.unpack_from(kind, self._data, at)[0]
