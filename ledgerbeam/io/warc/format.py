"""The format WARC: a record is a page, a request, or anything else that a crawler stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io.formats.base import RecordFormat
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.warc.records import parse_record, record_bytes, stream_advice

_END = b"\r\n\r\n"
_MAGIC = b"WARC/"
_LENGTHS = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=[\r\n]|\Z)", re.IGNORECASE)
_BARE = re.compile(rb"(?<!\r)\n")
_NUMBER = re.compile(rb"\d{1,18}")
_MOST_HEADERS = 1 << 20


@dataclass(frozen=True)
class WarcFormat(RecordFormat):
    """Archives of web crawls. A record is a mapping: type, url, date, id, mime, headers, http, payload."""

    name = "warc"
    suffixes = (".warc",)

    def find_ends(self, blocks: Iterable[bytes]) -> Iterator[Sequence[int]]:
        """Find the ends of records from the lengths in their headers, without parsing their contents.

        Raises:
            ValueError: A record does not begin as expected, or does not end where its length says.
        """
        data, base = b"", 0
        start, content_end = 0, -1  # of the current record; -1 as long as its headers are not complete
        for block in blocks:
            data = data + block if data else block
            reached = base + len(data)
            ends: list[int] = []
            while True:
                if content_end < 0:
                    content_end = _content_end(data, start - base, base)
                if content_end < 0 or reached < content_end + len(_END):
                    break
                found = data[content_end - base : content_end - base + len(_END)]
                if found != _END:
                    raise ValueError(f"expected an empty line after its {content_end - start:,} bytes, found {found!r}")
                start, content_end = content_end + len(_END), -1
                ends.append(start)
            kept = min(start if content_end < 0 else content_end, reached)
            data, base = data[kept - base :], kept
            yield ends

    def decode(self, data: bytes) -> dict[str, Any]:
        """Decode a record.

        Raises:
            UsageError: The library FastWARC is not installed.
            ValueError: It is not a record.
        """
        return parse_record(data)

    def encode_record(self, record: Any) -> bytes:
        """Return the bytes of a record; see `record_bytes`.

        Raises:
            ValueError: It is not a record.
        """
        return record_bytes(record)

    def stream_advice(self, compression: str, listed: FileInfo, options: Options | None, first: int) -> str | None:
        """Return a warning for a gzip archive whose records are not compressed separately; see `StreamAdvisor`."""
        return stream_advice(compression, listed, options, first)


def _content_end(data: bytes, start: int, base: int) -> int:
    """Return the end of the content of the record at `start` of some bytes; -1 if its headers are not complete.

    Args:
        data: The bytes.
        start: Offset of the record in the bytes.
        base: Offset of the bytes, which is added to the result.
    """
    if data[start : start + len(_MAGIC)] != _MAGIC[: len(data) - start]:
        raise ValueError(f"expected 'WARC/', found {data[start : start + 20]!r}")
    line = data.find(b"\n", start)
    if line >= 0 and data[line - 1 : line] != b"\r":
        raise _bare_line_feed(data[start:line])
    end = data.find(_END, start)
    if end < 0:
        if len(data) - start > _MOST_HEADERS:
            raise ValueError(f"expected headers of at most {_MOST_HEADERS:,} bytes, found more")
        return -1
    lengths = _LENGTHS.findall(data, start, end)
    numbers = {int(length) if _NUMBER.fullmatch(length) else None for length in lengths}
    length = numbers.pop() if len(numbers) == 1 else None
    if length is None:
        if bare := _BARE.search(data, start, end):
            raise _bare_line_feed(data[start : bare.start()])
        found = ", ".join(length.decode("latin-1")[:40] for length in lengths) or "none"
        raise ValueError(f"expected headers with one Content-Length, found {found}")
    return base + end + len(_END) + length


def _bare_line_feed(before: bytes) -> ValueError:
    line = before.rpartition(b"\n")[2]
    return ValueError(
        f"expected headers whose lines end with CR LF, found LF alone after {line[:40]!r}; a program for texts has "
        "changed the file, so no length in it fits"
    )
