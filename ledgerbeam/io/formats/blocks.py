"""Records of a span that are decoded block by block from bytes in memory.

Decoded lines of JSON take up to ten times the memory of their bytes. Records decoded long before their use have
left the processor's cache. So a reader that supports it returns a `Blocks` in place of a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.format import OffsetFormat, StreamSpan, fits
from ledgerbeam.io.formats.streamed import decode_each
from ledgerbeam.io.index.newlines import count_lines

BLOCK_BYTES = 128 * 1024
"""Size of a decoded block of lines in bytes. The block and its records fit in the cache of a core."""

_NEWLINE = b"\n"


class Blocks(Protocol):
    """Consecutive records whose bytes are in memory. Each pass decodes them again. Picklable."""

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records in order, in lists.

        Args:
            each: Whether a `RecordError` replaces each record that cannot be decoded. Default: it is raised.

        Raises:
            SourceError: A record cannot be decoded. The message names the record.
            IndexMismatchError: The records have other boundaries than in the index.
        """


@runtime_checkable
class BlockedReader(Protocol):
    """A reader that can return its records in blocks."""

    def read_blocks(self, start: int, stop: int) -> Blocks:
        """Read the records `[start, stop)` with one ranged read of the index and one of the source."""


@runtime_checkable
class DataReader(Protocol):
    """A reader that can return the bytes of its records."""

    def read_data(self, start: int, stop: int) -> tuple[StreamSpan, bytes]:
        """Return the checked bytes of the records `[start, stop)`, and their span."""


def gives_blocks(reader: object) -> TypeGuard[BlockedReader]:
    """Return whether a reader is a `BlockedReader`."""
    return fits(reader, BlockedReader)


@dataclass(frozen=True)
class HeldBlock:
    """Decoded records as one block."""

    records: list[Any]

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records; see `Blocks`."""
        del each
        yield self.records


@dataclass(frozen=True)
class LineBlocks:
    """Consecutive whole records of a format with `ends_at_newlines`.

    Attributes:
        format: The format.
        data: The bytes of the records.
        url: The source, for messages.
        span: Their span in the source. Default: all records.
    """

    format: OffsetFormat
    data: bytes
    url: str
    span: StreamSpan | None = None

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records; see `Blocks`."""
        kind, url, records = self.format, self.url, 0
        for block, span in self._cut():
            records += span.records
            try:
                yield kind.split(block, url, span)
            except RecordError:
                if not each:
                    raise
                yield decode_each(kind, kind.split_raw(block, url, span))
        if self.span is not None and records != self.span.records:
            raise base.changed_span(url, self.span)

    def _cut(self) -> Iterator[tuple[bytes, StreamSpan]]:
        data, stop = self.data, len(self.data)
        record, first = (0, 0) if self.span is None else (self.span.record, self.span.start)
        begin = 0
        while begin < stop:
            end = data.find(_NEWLINE, begin + BLOCK_BYTES) + 1 or stop
            block = data[begin:end]
            records = count_lines(block)
            yield block, StreamSpan(record, records, first + begin, first + end)
            record, begin = record + records, end
