"""JSONL: decode and encode records, read them in order, and access them through an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import orjson

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import LedgerbeamError, RecordError
from ledgerbeam.io.compression.streams import decompressed, is_pipe
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import count_lines
from ledgerbeam.io.index.reader import IndexedRecords, RawRecord
from ledgerbeam.io.json_values import exact, holds_wide, loads
from ledgerbeam.io.lines.json_lines import JsonLines, JsonLinesBuilder
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import line_fault
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_PREVIEW = 120
_PIECE = 64  # lines that are yielded together
_NEWLINE = b"\n"


def decode_line(line: bytes, url: str, record: int, start: int) -> Any:
    """Decode one line, with or without its newline; `start` is its offset.

    Raises:
        RecordError: The line is blank, not UTF-8 or not JSON; the message has record, byte range and a preview.
    """
    try:
        return loads(line)
    except orjson.JSONDecodeError as error:
        where = f"{url}: record {record}, bytes [{start}, {start + len(line.removesuffix(_NEWLINE))})"
        text = line.strip(_BLANK)
        if not text:
            raise RecordError(
                f"{where}: expected a JSON value, found a blank line; delete the line or read spans, "
                "which skip blank lines"
            ) from error
        preview = text[:_PREVIEW].decode("utf-8", "backslashreplace")
        fault = line_fault(text) if record == 0 else None
        if fault is not None:
            raise RecordError(f"{where}: expected JSON, found {preview!r} ({error}): {fault}; index again") from error
        remedy = "remove the byte order mark" if text.startswith(_BOM) else "correct the line"
        raise RecordError(f"{where}: expected JSON, found {preview!r} ({error}); {remedy} and index again") from error


def decode_lines(lines: list[bytes], url: str, record: int, start: int, *, wide: bool) -> list[Any]:
    """Decode consecutive lines without their newlines, and leave out blank ones; the errors are those of `decode_line`.

    `wide`: whether there may be integers beyond 64 bits, the result of `holds_wide` for all lines.
    """
    try:
        return _decode_all(lines, wide=wide)
    except orjson.JSONDecodeError:
        values = []
        for line in lines:
            if line.strip(_BLANK):
                values.append(decode_line(line, url, record, start))
            record += 1
            start += len(line) + 1
        return values


def raw_lines(lines: list[bytes], url: str, record: int, start: int) -> list[RawRecord]:
    """Return consecutive lines without their newlines as records with their positions, without blank lines."""
    found = []
    for number, line in enumerate(lines, record):
        stop = start + len(line)
        if line.strip(_BLANK):
            found.append(RawRecord(url, number, start, stop, line))
        start = stop + 1
    return found


def split_jsonl(data: bytes, url: str) -> list[Any]:
    """Decode a whole file in memory, without blank lines; the errors are those of `decode_line`."""
    return decode_lines(data.split(_NEWLINE), url, 0, 0, wide=holds_wide(data))


def stream_records(url: str, options: Options | None = None, listed: FileInfo | None = None) -> Iterator[Any]:
    """Read a JSONL source from start to end, plain or compressed.

    Raises:
        RecordError: A line cannot be decoded; its byte range refers to the decompressed text.
        SourceError: The compressed data is damaged or cut off.
    """
    url = url if is_pipe(url) else canonical_url(url)
    record = start = 0
    line = bytearray()
    for block in decompressed(url, options, listed):
        pieces = block.split(b"\n")
        for piece in pieces[:-1]:
            whole = bytes(line) + piece if line else piece
            line.clear()
            if whole.strip():
                yield decode_line(whole, url, record, start)
            record += 1
            start += len(whole) + 1
        line += pieces[-1]
    if line.strip():
        yield decode_line(bytes(line), url, record, start)


def encode_jsonl(records: Sequence[Any]) -> tuple[bytes, Offsets]:
    """Encode values as JSONL, one line each, with keys in the order of the mapping.

    Args:
        records: Values that orjson encodes, and integers beyond 64 bits; or `JsonLines`, which are already encoded.

    Returns:
        The bytes, and the `N + 1` offsets of the lines.

    Raises:
        RecordError: JSON cannot hold a value, such as NaN or an infinity; the message has its position and type.
    """
    if not isinstance(records, JsonLines):
        builder = JsonLinesBuilder()
        for value in records:
            builder.add(value)
        records = builder.finish()
    return records.data, records.offsets


def _in_pieces(values: Iterator[Any]) -> Iterator[list[Any]]:
    """Divide values into lists. Values before one that cannot be decoded are yielded before the error."""
    while True:
        piece: list[Any] = []
        try:
            piece.extend(islice(values, _PIECE))
        except RecordError:
            if piece:
                yield piece
            raise
        if not piece:
            return
        yield piece


def _decode_all(lines: list[bytes], *, wide: bool) -> list[Any]:
    decode = orjson.loads
    values = [decode(line) for line in lines]
    return list(map(exact, lines, values)) if wide else values


class JsonlReader(IndexedRecords[Any]):
    """Random access to the decoded lines of a JSONL source.

    Every read checks that a record starts after a newline and ends at the next one. So an index of other data can cause
    an error but never a wrong record. See `IndexedRecords` for arguments and methods.
    """

    def _read_one(self, entries: memoryview[int], record: int) -> Any:
        start = entries[record]
        return self._decode(self._reader.read(start - 1 if start else 0, entries[record + 1]), record, start)

    def _read_pieces(
        self, records: NDArray[np.int64], starts: Offsets, stops: Offsets, before: Offsets
    ) -> Iterator[list[Any]]:
        del before  # the byte before a line shows the start of the line
        done = 0
        for lines, wide in self._reader.iterate_lines(starts, stops):
            try:
                values = _decode_all(lines, wide=wide)
            except orjson.JSONDecodeError:
                break  # the error is raised below
            done += len(values)
            yield values
        if done < len(records):
            starts, stops = starts[done:], stops[done:]
            blocks = self._reader.iterate_many(starts - np.minimum(starts, np.uint64(1)), stops)
            yield from _in_pieces(map(self._decode, blocks, records[done:].tolist(), starts.tolist()))

    def _decode(self, data: bytes, record: int, start: int) -> Any:
        """Decode one record. `data` starts with the newline before it, unless the record is at byte 0."""
        lead = 1 if start else 0
        if data.find(10, lead) != len(data) - 1 or (lead and data[0] != 10):
            self._require_line(data[lead:], data[:lead], record, start)
        try:
            return loads(data)  # the newline before the record is white space to JSON
        except orjson.JSONDecodeError:
            return decode_line(data[lead:], self.url, record, start)

    def _read_span(self, first_record: int, last_record: int) -> list[Any]:
        lines, start, wide = self._read_lines(first_record, last_record)
        return decode_lines(lines, self.url, first_record, start, wide=wide)

    def _read_raw(self, first_record: int, last_record: int) -> list[RawRecord]:
        lines, start, _ = self._read_lines(first_record, last_record)
        return raw_lines(lines, self.url, first_record, start)

    def read_data(self, start: int, stop: int) -> tuple[StreamSpan, bytes]:
        """Return the bytes of the lines `[start, stop)` after a check of their bounds, and their span.

        Raises:
            IndexMismatchError: The source has other lines there than the index.
        """
        if start == stop:
            return StreamSpan(start, 0, 0, 0), b""
        offsets = self._span_offsets(start, stop)
        begin, end = int(offsets[0]), int(offsets[-1])
        before, data = self._read_apart(begin - 1 if begin else 0, begin, end)
        lines, ends = count_lines(data), data.endswith(_NEWLINE) or end == self._reader.size
        if lines != stop - start or before not in (b"", _NEWLINE) or not ends:
            raise self._other_lines(start, stop - start, begin, end)
        return StreamSpan(start, lines, begin, end), data

    def _read_apart(self, start: int, middle: int, stop: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after an offset. Two reads of a file take less time than a copy."""
        if self._reader.local_path is not None:
            return self._reader.read(start, middle), self._reader.read(middle, stop)
        data = self._reader.read(start, stop)
        return data[: middle - start], data[middle - start :]

    def _read_lines(self, first_record: int, last_record: int) -> tuple[list[bytes], int, bool]:
        """Return the lines of a span without newlines, the offset of the first one, and the result of `holds_wide`."""
        offsets = self._span_offsets(first_record, last_record)
        start, stop = int(offsets[0]), int(offsets[-1])
        data = self._reader.read(start - 1 if start else 0, stop)
        lines = data.split(_NEWLINE)
        if (start and lines.pop(0)) or (lines and lines[-1] and stop != self._reader.size):
            lines = []  # the span starts or ends in the middle of a line
        elif lines and not lines[-1]:
            lines.pop()
        if len(lines) != len(offsets) - 1:
            raise self._other_lines(first_record, len(offsets) - 1, start, stop)
        return lines, start, holds_wide(data)

    def _other_lines(self, first_record: int, count: int, start: int, stop: int) -> LedgerbeamError:
        return self.index.mismatch(
            f"expected records [{first_record}, {first_record + count}) to be the lines of bytes [{start}, {stop}), "
            "found other line ends there"
        )

    def _require_line(self, line: bytes, before: bytes, record: int, start: int) -> None:
        """Raise unless the line lacks only its newline, at the end of the source."""
        stop = start + len(line)
        if before not in (b"", _NEWLINE):
            raise self.index.mismatch(
                f"expected record {record} to begin a line at byte {start}, found the middle of one"
            )
        end = line.find(_NEWLINE)
        if end >= 0 or stop != self._reader.size:
            found = f"a line end at {start + end + 1}" if end >= 0 else "no line end"
            raise self.index.mismatch(
                f"expected record {record} to be the line of bytes [{start}, {stop}), found {found}"
            )
