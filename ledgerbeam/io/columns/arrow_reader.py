"""Random access to the rows of an Arrow IPC file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.arrow_footer import (
    FOOTER_END,
    Batch,
    Block,
    buffers_of,
    parse_batch,
    parse_footer,
    plain_sizes,
)
from ledgerbeam.io.columns.content import PlacedFile, first_read
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.storage.content_kind import HEAD, require_columns

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_STREAM = b"\xff\xff\xff\xff"
_ALIGNED = 64  # largest alignment of buffers
_PREFIX = 8  # bytes before a compressed buffer: its decompressed size


class ArrowReader(GroupedRows):
    """Random access to the rows of an Arrow IPC file, whose row groups are its record batches.

    See `GroupedRows` for the arguments and methods.
    """

    _known: list[tuple[int, bytes]]
    _blocks: list[Block]
    _dictionaries: list[tuple[Block, Batch]]
    _batches: list[Batch]
    _buffers: list[list[tuple[str, int]]]
    _fields: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_known": [],
            "_blocks": [],
            "_batches": [],
            "_dictionaries": [],
            "_buffers": [],
            "_fields": None,
        }

    def _facts(self) -> dict[str, Any]:
        return {"record_batches": len(self.groups)}

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        start, end = self._end_bytes()
        size = self._content.size
        footer = parse_footer(end[:-FOOTER_END])
        blocks = footer.dictionaries + footer.batches
        for block in blocks:
            if min(block) < 0 or sum(block) > size:
                raise SourceError(f"{self.url}: a record batch lies outside of the file; it is damaged, write it again")
        heads = self._content.read_many(
            [block.start for block in blocks], [block.start + block.head for block in blocks]
        )
        parsed = list(map(parse_batch, heads))
        count = len(footer.dictionaries)
        self._blocks, self._batches = footer.batches, parsed[count:]
        self._dictionaries = list(zip(footer.dictionaries, parsed[:count], strict=True))
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
        if data[-len(_MAGIC) :] != _MAGIC or size < 2 * FOOTER_END:
            begin = self._content.read(0, min(4, size))
            if begin == _FEATHER_1:
                raise SourceError(f"{self.url}: Feather version 1 is not read; write it again as version 2")
            require_columns(self._content.read(0, min(HEAD, size)), self.url, _MAGIC)
            found = "an Arrow stream, which has no footer" if begin == _STREAM else f"{data[-len(_MAGIC) :]!r}"
            raise SourceError(
                f"{self.url}: expected {_MAGIC!r} at the end of an Arrow IPC file, found {found}; write it as a file, "
                "with pyarrow.ipc.new_file"
            )
        length = int.from_bytes(data[-FOOTER_END : -len(_MAGIC)], "little", signed=True)
        if not 0 < length <= size - FOOTER_END:
            raise SourceError(f"{self.url}: its end says that the footer has {length} bytes; it is damaged")
        start = size - FOOTER_END - length
        return start, data[start - first :] if start >= first else self._content.read(start, size)

    def _buffers_of(self, schema: pa.Schema, batch: Batch) -> list[tuple[str, int]]:
        """Return the buffers of the chosen columns in a batch: the column of each, and its number."""
        variadic = list(batch.variadic)
        counts = [buffers_of(field.type, variadic) for field in schema]
        if sum(counts) != len(batch.buffers):
            raise SourceError(
                f"{self.url}: expected {sum(counts)} buffers in a record batch, found {len(batch.buffers)}; it is "
                "damaged, write it again"
            )
        chosen = range(len(counts)) if self._fields is None else self._fields
        ends = list(accumulate(counts))
        names = schema.names
        return [
            (names[field], number) for field in chosen for number in range(ends[field] - counts[field], ends[field])
        ]

    def _opened(self, file: PlacedFile) -> Any:
        """Open the file without another read of its footer and metadata."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it
        from pyarrow import ipc  # noqa: PLC0415

        for start, data in self._known:
            file.hold(start, data)
        options = ipc.IpcReadOptions(use_threads=False, included_fields=self._fields)
        return ipc.open_file(pa.PythonFile(file, mode="r"), options=options)

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        import pyarrow as pa  # noqa: PLC0415

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
        from ledgerbeam.io.columns.decoded import most_decoded, too_large  # noqa: PLC0415 - imports pyarrow

        block, batch = self._blocks[number], self._batches[number]
        if not batch.is_compressed:
            return
        body, sizes, stored = block.start + block.head, dict.fromkeys(self.schema.names, 0), self._groups[number].size
        buffers = [batch.buffers[buffer] for _, buffer in self._buffers[number]]
        starts = [bytes(file.at(body + start, body + min(start + _PREFIX, block.body))) for start, _ in buffers]
        found = plain_sizes(batch._replace(buffers=buffers), starts)
        for (name, _), size in zip(self._buffers[number], found, strict=True):
            sizes[name] += size
        if sum(found) > most_decoded(stored):
            place = f"{self.url}: record batch {number}: column {max(sizes, key=lambda name: sizes[name])!r}"
            raise SourceError(too_large(place, sum(found), stored))

    def _require_dictionaries(self) -> None:
        """Check the decompressed sizes of the dictionaries; raises SourceError."""
        from ledgerbeam.io.columns.decoded import most_decoded, too_large  # noqa: PLC0415 - imports pyarrow

        stored = found = 0
        for block, batch in self._dictionaries:
            body, stored = block.start + block.head, stored + block.body
            starts = [body + min(max(0, start), block.body) for start, _ in batch.buffers]
            stops = [min(start + _PREFIX, body + block.body) for start in starts]
            found += sum(plain_sizes(batch, self._content.read_many(starts, stops) if batch.is_compressed else []))
        if found > most_decoded(stored):
            names = (repr(field.name) for field in self.schema if "dictionary<" in str(field.type))
            raise SourceError(
                too_large(f"{self.url}: the dictionaries of the columns {', '.join(names)}", found, stored)
            )
