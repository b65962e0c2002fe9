"""JSON lines: decode and encode values, in memory, as a stream, and by number with an index."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, overload

import orjson

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError
from ledgerbeam.io.compression.streams import decompressed, is_pipe
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import count_lines
from ledgerbeam.io.index.reader import IndexedRecords, RawRecord, small_gap
from ledgerbeam.io.json_values import (
    MOST_DEEP,
    NanRule,
    dumps_wide,
    exact,
    holds_null,
    holds_wide,
    json_form,
    loads,
    require_finite,
)
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import line_fault
from ledgerbeam.io.storage.ranges import are_near
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url

LINE_BREAK = "holds a line break inside its JSON; expected one line. Return plain values instead of orjson.Fragment"
"""End of the error message for a value whose JSON has several lines."""

_NEWLINE = b"\n"
_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_PREVIEW = 120
_PIECE = 64  # lines that are yielded together
_WINDOW, _WINDOW_GAP = 2**20, 2**16  # bytes of a local file that are read at once, and bytes between lines in them


def decode_line(line: bytes, url: str, record: int, start: int) -> Any:
    """Decode one line, with or without its newline. `record` is its number and `start` its offset, for errors.

    RecordError, with number, byte range and a preview: the line is blank, not UTF-8 or not JSON.
    """
    try:
        return loads(line)
    except orjson.JSONDecodeError as error:
        where = f"{url}: record {record}, bytes [{start}, {start + len(line.removesuffix(_NEWLINE))})"
        text = line.strip(_BLANK)
        if not text:
            raise RecordError(
                f"{where}: expected a JSON value, found a blank line; delete the line, or read spans "
                "(read_span), which skip blank lines"
            ) from error
        preview = text[:_PREVIEW].decode("utf-8", "backslashreplace")
        fault = line_fault(text) if record == 0 else None
        if fault is not None:
            raise RecordError(f"{where}: expected JSON, found {preview!r} ({error}): {fault}; index again") from error
        remedy = "remove the byte order mark" if text.startswith(_BOM) else "correct the line"
        raise RecordError(f"{where}: expected JSON, found {preview!r} ({error}); {remedy} and index again") from error


def decode_lines(lines: list[bytes], url: str, record: int, start: int, *, wide: bool) -> list[Any]:
    """Decode consecutive lines, given without newlines. Blank lines are left out. Errors as in `decode_line`.

    `record` and `start` are the number and the offset of the first line; `wide` is the result of `holds_wide`.
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


def _decode_all(lines: list[bytes], *, wide: bool) -> list[Any]:
    decode = orjson.loads
    values = [decode(line) for line in lines]
    return list(map(exact, lines, values)) if wide else values


def raw_lines(lines: list[bytes], url: str, record: int, start: int) -> list[RawRecord]:
    """Return consecutive lines, given without newlines, as raw records with their positions, without blank lines."""
    found = []
    for number, line in enumerate(lines, record):
        stop = start + len(line)
        if line.strip(_BLANK):
            found.append(RawRecord(url, number, start, stop, line))
        start = stop + 1
    return found


def stream_records(url: str, options: Options | None = None, listed: FileInfo | None = None) -> Iterator[Any]:
    """Yield the values of a JSONL source in order, plain or compressed. Errors have ranges of decompressed bytes."""
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


class RawLines(Sequence[RawRecord]):
    """Lines of a source, by ascending numbers, with their offsets; without newlines, and without blank lines."""

    def __init__(self, url: str, numbers: NDArray[np.int64], starts: NDArray[np.int64], lines: ByteRows) -> None:
        self.url = url
        self.numbers, self.starts, self.lines = numbers, starts, lines

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[place] for place in range(len(self))[item]]
        start, line = int(self.starts[item]), self.lines[item]
        return RawRecord(self.url, int(self.numbers[item]), start, start + len(line), line)


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

    def read_raw_some(self, numbers: NDArray[np.int64]) -> RawLines:
        """Return the bytes of some lines; see `ScatteredReader`."""
        if not len(numbers):
            return RawLines(self.url, numbers, numbers, ByteRows.of([]))
        first = int(numbers[0])
        offsets = self._span_offsets(first, int(numbers[-1]) + 1).astype(np.int64)
        starts, stops = offsets[numbers - first], offsets[numbers - first + 1]
        leads = np.minimum(starts, 1)  # the newline before a line shows its start
        data = self._read_together(starts - leads, stops)
        ends = np.cumsum(stops - starts + leads)
        begins, letters = ends - (stops - starts), np.frombuffer(data, np.uint8)
        breaks = letters[ends - 1] == ord(_NEWLINE)
        are_lines = breaks.all() and (letters[begins[leads > 0] - 1] == ord(_NEWLINE)).all()
        if not are_lines or data.count(_NEWLINE) != leads.sum() + len(numbers):
            places = zip(numbers.tolist(), starts.tolist(), begins.tolist(), ends.tolist(), leads.tolist(), strict=True)
            for record, start, begin, end, lead in places:
                if data.find(_NEWLINE, begin, end) != end - 1 or data[begin - lead : begin] != _NEWLINE[:lead]:
                    self._require_line(data[begin:end], data[begin - lead : begin], record, start)
        lines = ByteRows((data,), begins, stops - starts - breaks)
        filled = ~lines.blank()
        return RawLines(self.url, numbers[filled], starts[filled], lines.at(filled))

    def _read_together(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bytes:
        """Return the bytes of ascending ranges together."""
        if self._reader.local_path is None:
            return b"".join(self._reader.iterate_many(starts, stops, gap=small_gap(starts, stops)))
        windows = self._reader.windows(starts, stops, are_near(starts, stops, _WINDOW_GAP), _WINDOW)
        rows = (
            ByteRows((block,), starts[first:last] - begin, stops[first:last] - starts[first:last])
            for block, begin, first, last in windows
        )
        return b"".join([some.joined() for some in rows])

    def read_data(self, start: int, stop: int) -> tuple[StreamSpan, bytes]:
        """Return span and bytes of the lines `[start, stop)`. IndexMismatchError: the index has other boundaries."""
        if start == stop:
            return StreamSpan(start, 0, 0, 0), b""
        offsets = self._span_offsets(start, stop)
        begin, end = int(offsets[0]), int(offsets[-1])
        lead = begin - 1 if begin else 0
        if self._reader.local_path is not None:  # two reads of a file take less time than a copy
            before, data = self._reader.read(lead, begin), self._reader.read(begin, end)
        else:
            data = self._reader.read(lead, end)
            before, data = data[: begin - lead], data[begin - lead :]
        lines, ends = count_lines(data), data.endswith(_NEWLINE) or end == self._reader.size
        if lines != stop - start or before not in (b"", _NEWLINE) or not ends:
            raise self.index.mismatch(
                f"expected records [{start}, {stop}) to be the lines of bytes [{begin}, {end}), found other line ends "
                "there"
            )
        return StreamSpan(start, lines, begin, end), data

    def _read_lines(self, first_record: int, last_record: int) -> tuple[list[bytes], int, bool]:
        """Return the lines of a span without newlines, the offset of the first one, and the result of `holds_wide`."""
        span, data = self.read_data(first_record, last_record)
        lines = data.split(_NEWLINE)
        return lines if lines[-1] else lines[:-1], span.start, holds_wide(data)

    def _require_line(self, line: bytes, before: bytes, record: int, start: int) -> None:
        """Raise IndexMismatchError unless `line` is the source's last, without newline. `before`: its previous byte."""
        stop = start + len(line)
        if before not in (b"", _NEWLINE):
            raise self.index.mismatch(
                f"expected record {record} to start a line at byte {start}, found the middle of a line"
            )
        end = line.find(_NEWLINE)
        if end >= 0 or stop != self._reader.size:
            found = f"a line end at {start + end + 1}" if end >= 0 else "no line end"
            raise self.index.mismatch(
                f"expected record {record} to be the line of bytes [{start}, {stop}), found {found}"
            )


def _in_pieces(values: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield the values in lists. If a value cannot be decoded, the values before it are yielded before the error."""
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


class JsonLines(Sequence[Any]):
    """The values of a JSONL file in memory. A value is decoded each time that it is accessed.

    `offsets` are the offsets of the lines, and the end of the last one. `nulled` is the number of values that are
    written as null instead of NaN or an infinity.
    """

    def __init__(self, data: bytes, offsets: Offsets, nulled: int = 0) -> None:
        self.data = data
        self.offsets = offsets
        self.nulled = nulled

    def __repr__(self) -> str:
        return f"JsonLines({len(self)} lines, {len(self.data)} bytes)"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: int | slice) -> Any:
        found = range(len(self))[item]
        if isinstance(found, int):
            start, stop = self.offsets[found : found + 2].tolist()
            return loads(self.data[start:stop])
        return [self[number] for number in found]

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, JsonLines) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class JsonLinesBuilder:
    """Encodes values as lines of JSON, with keys in the order of the mapping. A value is encoded when it is added."""

    def __init__(self, nan: NanRule = "refuse") -> None:
        self._nan: NanRule = nan
        self._nulled = 0
        self._data = io.BytesIO()
        self._lengths = array("Q")
        self._write = self._data.write
        self._note = self._lengths.append

    def add(self, value: Any) -> None:
        """Add a value. RecordError, with its position and type, if JSON cannot hold it; then nothing is added."""
        try:
            line = orjson.dumps(value, json_form, orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError as error:
            line = self._encode_wide(value, error)
        if holds_null(line):
            self._nulled += self._count_nulled(value)
        self._note(self._write(line))

    def encode(self, value: Any) -> tuple[bytes, int]:
        """Return the line of a value, and how many NaN and infinities became null. RecordError as for `add`."""
        try:
            line = orjson.dumps(value, json_form, orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError as error:
            line = self._encode_wide(value, error)
        return line, self._count_nulled(value) if holds_null(line) else 0

    def append(self, line: bytes, nulled: int) -> None:
        """Add a result of `encode`."""
        self._nulled += nulled
        self._note(self._write(line))

    def finish(self) -> JsonLines:
        """Return the added values. RecordError if the JSON of a value has a line break."""
        data = self._data.getvalue()
        offsets = np.zeros(len(self._lengths) + 1, np.uint64)
        np.cumsum(np.frombuffer(self._lengths, np.uint64), out=offsets[1:])
        if count_lines(data) != len(self._lengths):  # only an orjson.Fragment can have a line break
            lines = enumerate(pairwise(offsets.tolist()))
            broken = next(number for number, (start, stop) in lines if data.count(_NEWLINE, start, stop) != 1)
            raise RecordError(f"output record {broken} {LINE_BREAK}")
        return JsonLines(data, offsets, self._nulled)

    @property
    def _position(self) -> int:
        return len(self._lengths)

    def _count_nulled(self, value: Any) -> int:
        try:
            return require_finite(value, self._nan)
        except RecordError as error:
            raise RecordError(f"output record {self._position}: {error}") from error

    def _encode_wide(self, value: Any, error: TypeError) -> bytes:
        try:
            return dumps_wide(value, orjson.OPT_APPEND_NEWLINE, error)
        except orjson.JSONEncodeError as refused:
            raise RecordError(
                f"output record {self._position} ({type(value).__name__}) cannot be written as JSON: {refused}; return "
                f"dicts, lists, strings, numbers, booleans or None, nested at most {MOST_DEEP} times"
            ) from error
