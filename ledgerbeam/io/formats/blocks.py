"""The records of a span while their bytes are in memory: decoded a block at a time, so that never all are held.

Decoded lines of JSON take up to ten times the memory of their bytes, and what is decoded long before it is used has
left the processor's cache. So a reader that can gives a `Blocks` in place of a list.
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
"""Bytes of lines that are decoded in one go: with what they become they fit in the cache of a core."""

_NEWLINE = b"\n"


class Blocks(Protocol):
    """Consecutive records whose bytes are in memory. Every pass decodes them anew. Picklable."""

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records in order, some at a time.

        Args:
            each: Whether a `RecordError` stands in the place of each record that cannot be decoded; else it is raised.

        Raises:
            SourceError: They cannot be decoded; the message names the record.
            IndexMismatchError: They are not the records that the index says.
        """


@runtime_checkable
class BlockedReader(Protocol):
    """A reader that can give its records in blocks."""

    def read_blocks(self, start: int, stop: int) -> Blocks:
        """Return the records `[start, stop)`: one ranged read of the index, one of the source, both done now."""


@runtime_checkable
class DataReader(Protocol):
    """A reader that can give the bytes of its records."""

    def read_data(self, start: int, stop: int) -> tuple[StreamSpan, bytes]:
        """Return the bytes of the records `[start, stop)`, checked to be these, and where they lie."""


def gives_blocks(reader: object) -> TypeGuard[BlockedReader]:
    """Return whether a reader is a `BlockedReader`."""
    return fits(reader, BlockedReader)


@dataclass(frozen=True)
class HeldBlock:
    """Records that are decoded, as one block."""

    records: list[Any]

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        """Yield the records; see `Blocks`."""
        del each
        yield self.records


@dataclass(frozen=True)
class LineBlocks:
    """Consecutive whole records of a format that `ends_at_newlines`.

    Attributes:
        format: The format.
        data: Their bytes.
        url: The source, for messages.
        span: Which of its records they are. Default: all.
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
