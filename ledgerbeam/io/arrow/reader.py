"""Random access to the rows of an Arrow IPC file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import SourceError
from ledgerbeam.io.arrow.footer import FOOTER_END, Batch, Block, buffers_of, parse_batch, parse_footer
from ledgerbeam.io.columns.content import PlacedFile, first_read
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa

__all__ = ["ArrowReader"]

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_STREAM = b"\xff\xff\xff\xff"
_ALIGNED = 64  # largest alignment of buffers


class ArrowReader(GroupedRows):
    """Random access to the rows of an Arrow IPC file, whose row groups are its record batches.

    See `GroupedRows` for the arguments and methods.
    """

    _known: list[tuple[int, bytes]]
    _blocks: list[Block]
    _batches: list[Batch]
    _spans: list[list[tuple[int, int]]]
    _fields: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_known": [],
            "_blocks": [],
            "_batches": [],
            "_spans": [],
            "_fields": None,
        }

    def _facts(self) -> dict[str, Any]:
        return {"record_batches": len(self.groups)}

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        start, end = self._end_bytes()
        size = self._content.size
        self._blocks = parse_footer(end[:-FOOTER_END])
        for block in self._blocks:
            if min(block) < 0 or sum(block) > size:
                raise SourceError(f"{self.url}: a record batch lies outside of the file; it is damaged, write it again")
        heads = self._content.read_many(
            [block.start for block in self._blocks], [block.start + block.head for block in self._blocks]
        )
        self._batches = [parse_batch(head) for head in heads]
        self._known = [(start, end), *((block.start, head) for block, head in zip(self._blocks, heads, strict=True))]
        schema = self._opened().schema
        names = schema.names
        self._fields = [place for place, name in enumerate(names) if name in self.columns] if self.columns else None
        self._spans = [self._span_of(schema, batch) for batch in self._batches]
        return schema, [
            RowGroup(batch.rows, min(block.body, sum(stop - start for start, stop in spans)))
            for block, batch, spans in zip(self._blocks, self._batches, self._spans, strict=True)
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

    def _span_of(self, schema: pa.Schema, batch: Batch) -> list[tuple[int, int]]:
        """Return the ranges of the chosen columns in the body of a batch."""
        variadic = list(batch.variadic)
        counts = [buffers_of(field.type, variadic) for field in schema]
        if sum(counts) != len(batch.buffers):
            raise SourceError(
                f"{self.url}: expected {sum(counts)} buffers in a record batch, found {len(batch.buffers)}; it is "
                "damaged, write it again"
            )
        chosen = range(len(counts)) if self._fields is None else self._fields
        ends = list(accumulate(counts))
        spans = [
            batch.buffers[number] for field in chosen for number in range(ends[field] - counts[field], ends[field])
        ]
        return [(start, start + size) for start, size in spans if size > 0]

    def _opened(self, wanted: Sequence[tuple[int, int]] = ()) -> Any:
        """Open the file after fetching the wanted ranges; the footer and the metadata are known already."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it
        from pyarrow import ipc  # noqa: PLC0415

        file = PlacedFile(self._content)
        file.fetch(wanted)
        for start, data in self._known:
            file.hold(start, data)
        options = ipc.IpcReadOptions(use_threads=False, included_fields=self._fields)
        return ipc.open_file(pa.PythonFile(file, mode="r"), options=options)

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        import pyarrow as pa  # noqa: PLC0415

        names = self.schema.names
        wanted: list[tuple[int, int]] = []
        for number in numbers:
            block = self._blocks[number]
            body = block.start + block.head
            wanted += [
                (body + start, min(body + stop + -stop % _ALIGNED, body + block.body))
                for start, stop in self._spans[number]
                if 0 <= start < stop <= block.body
            ]
        opened = self._opened(wanted)
        for number in numbers:
            batch = opened.get_batch(number)
            batch.validate(full=True)
            yield pa.Table.from_batches([batch]).select(names)
