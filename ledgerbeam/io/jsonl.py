"""JSONL: decoding and encoding records, and random access to them through an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.errors import RecordError
from ledgerbeam.io.index import Offsets
from ledgerbeam.io.newlines import assemble_jsonl_index, build_jsonl_index, scan_newlines
from ledgerbeam.io.records import IndexedRecords

__all__ = [
    "JsonlReader",
    "assemble_jsonl_index",
    "build_jsonl_index",
    "decode_line",
    "decode_lines",
    "encode_jsonl",
    "scan_newlines",
    "split_jsonl",
]

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_PREVIEW = 120
_ENCODED_AT_ONCE = 1000
"""Lines that are held one by one: what orjson gives keeps some 4 KB each, however short the line."""

_NEWLINE = b"\n"
_loads = orjson.loads


def decode_line(line: bytes, url: str, record: int, start: int) -> Any:
    """Decodes one line.

    Args:
        line: Its bytes, with or without the newline.
        url: The source, for messages.
        record: Its number in the source, from 0.
        start: Where it begins in the source, in bytes.

    Raises:
        RecordError: It is blank, not UTF-8 or not JSON; the message has record, byte range and a preview.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        where = f"{url}: record {record}, bytes [{start}, {start + len(line.removesuffix(_NEWLINE))})"
        text = line.strip(_BLANK)
        if not text:
            raise RecordError(
                f"{where}: expected a JSON value, found a blank line; delete the line or read spans, "
                "which skip blank lines."
            ) from error
        remedy = "remove the byte order mark" if text.startswith(_BOM) else "correct the line"
        preview = text[:_PREVIEW].decode("utf-8", "backslashreplace")
        raise RecordError(f"{where}: expected JSON, found {preview!r} ({error}); {remedy} and index again.") from error


def decode_lines(lines: list[bytes], url: str, record: int, start: int) -> list[Any]:
    """Decodes consecutive lines, given without their newlines, and leaves blank ones out."""
    loads = orjson.loads
    try:
        return [loads(line) for line in lines]
    except orjson.JSONDecodeError:
        values = []
        for line in lines:
            if line.strip(_BLANK):
                values.append(decode_line(line, url, record, start))
            record += 1
            start += len(line) + 1
        return values


def split_jsonl(data: bytes, url: str, first_record: int = 0) -> list[Any]:
    """Decodes a whole file that is in memory.

    Args:
        data: The content.
        url: The source, for messages.
        first_record: The number of its first line, for messages.

    Returns:
        The values in order; blank lines are left out.

    Raises:
        RecordError: As in `decode_line`.
    """
    return decode_lines(data.split(_NEWLINE), url, first_record, 0)


def encode_jsonl(records: Sequence[Any]) -> tuple[bytes, Offsets]:
    """Encodes values as JSONL, one line each, keys in the order of the mapping.

    Args:
        records: What orjson can encode; NaN and infinities become null.

    Returns:
        The bytes, and the `N + 1` offsets of the lines.

    Raises:
        RecordError: A value that orjson cannot encode; the message has its position and type.
    """
    blocks: list[bytes] = []
    lengths: list[int] = []
    for start in range(0, len(records), _ENCODED_AT_ONCE):
        lines = _encode_lines(records[start : start + _ENCODED_AT_ONCE], start)
        block = b"".join(lines)
        if block.count(_NEWLINE) != len(lines):  # only a ready-made orjson.Fragment can hold one
            position = start + next(i for i, line in enumerate(lines) if line.count(_NEWLINE) != 1)
            raise RecordError(
                f"output record {position} holds a line break inside its JSON; expected one line. Return plain values "
                "instead of orjson.Fragment."
            )
        lengths.extend(map(len, lines))
        blocks.append(block)
    offsets = np.zeros(len(lengths) + 1, np.uint64)
    np.cumsum(np.array(lengths, np.uint64), out=offsets[1:])
    return b"".join(blocks), offsets


def _encode_lines(records: Sequence[Any], first: int) -> list[bytes]:
    """Encodes some records, of which the first has the number `first`."""
    dumps, newline = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    lines: list[bytes] = []
    try:
        for value in records:
            lines.append(dumps(value, None, newline))  # noqa: PERF401 - the length names the record that failed
    except orjson.JSONEncodeError as error:
        kind = type(records[len(lines)]).__name__
        raise RecordError(
            f"output record {first + len(lines)} ({kind}) cannot be written as JSON: {error}; return "
            "dicts, lists, strings, numbers, booleans or None."
        ) from error
    return lines


class JsonlReader(IndexedRecords[Any]):
    """Random access to the lines of a JSONL source, decoded.

    That a record begins after a newline and ends at its first is checked at every read, so an index of other data can
    raise but not give a wrong record. See `IndexedRecords` for arguments and methods.
    """

    kind = "jsonl"

    def _read_one(self, entries: memoryview[int], record: int) -> Any:
        line = self._reader.read_line(entries, record)
        if line is not None:
            try:
                return _loads(line)
            except orjson.JSONDecodeError:
                pass  # worded below
        start = entries[record]
        return self._decode(self._reader.read(start - 1 if start else 0, entries[record + 1]), record, start)

    def _read_scattered(
        self, records: NDArray[np.int64], starts: Offsets, stops: Offsets, before: Offsets
    ) -> list[Any]:
        del before  # a line tells where it begins by the byte before it
        values: list[Any] = []
        for lines in self._reader.iterate_lines(starts, stops):
            try:
                values += [_loads(line) for line in lines]
            except orjson.JSONDecodeError:
                break  # worded below
        done = len(values)
        if done == len(records):
            return values
        starts, stops = starts[done:], stops[done:]
        blocks = self._reader.iterate_many(starts - np.minimum(starts, np.uint64(1)), stops)
        return values + self._decode_many(blocks, records[done:].tolist(), starts.tolist())

    def _decode(self, data: bytes, record: int, start: int) -> Any:
        """Decodes one record; `data` begins with the newline before it unless it is at byte 0."""
        lead = 1 if start else 0
        if data.find(10, lead) != len(data) - 1 or (lead and data[0] != 10):
            self._require_line(data[lead:], data[:lead], record, start)
        try:
            return _loads(data)  # the newline before the record is white space to JSON
        except orjson.JSONDecodeError:
            return decode_line(data[lead:], self.url, record, start)

    def _decode_many(self, blocks: Iterable[bytes], records: list[int], starts: list[int]) -> list[Any]:
        found = []
        for data, record, start in zip(blocks, records, starts, strict=True):
            if start and data[0] == 10 and data.find(10, 1) == len(data) - 1:  # what `_decode` does, without a call
                try:
                    found.append(_loads(data))
                    continue
                except orjson.JSONDecodeError:  # `_decode` words it
                    pass
            found.append(self._decode(data, record, start))
        return found

    def _read_span(self, first_record: int, last_record: int) -> list[Any]:
        offsets = self._span_offsets(first_record, last_record)
        start, stop = int(offsets[0]), int(offsets[-1])
        data = self._reader.read(start - 1 if start else 0, stop)
        lines = data.split(_NEWLINE)
        if (start and lines.pop(0)) or (lines and lines[-1] and stop != self._reader.size):
            lines = []  # begins or ends in the middle of a line
        elif lines and not lines[-1]:
            lines.pop()
        if len(lines) != len(offsets) - 1:
            raise self.index.mismatch(
                f"expected records [{first_record}, {first_record + len(offsets) - 1}) to be the lines of bytes "
                f"[{start}, {stop}), found other line ends there"
            )
        return decode_lines(lines, self.url, first_record, start)

    def _require_line(self, line: bytes, before: bytes, record: int, start: int) -> None:
        """Raises unless the line only lacks its newline because it ends the source."""
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
