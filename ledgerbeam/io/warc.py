"""WARC, the archives of web crawls: records as values and back, with the library FastWARC, and decoded payloads."""

from __future__ import annotations

import importlib
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.extensions import import_extra
from ledgerbeam.errors import UsageError
from ledgerbeam.io.formats.base import RecordFormat
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

_END = b"\r\n\r\n"
_REQUEST = 256 * 1024
_LENGTH = "Content-Length"
_MAGIC = b"WARC/"
_LENGTHS = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=[\r\n]|\Z)", re.IGNORECASE)
_BARE = re.compile(rb"(?<!\r)\n")
_NUMBER = re.compile(rb"\d{1,18}")
_MOST_HEADERS = 1 << 20

_CHUNK = re.compile(rb"(?:\A|\r?\n)[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
"""The line with the size of a chunk, and the line end of the previous chunk before it."""

_EMPTY_BROTLI = 2  # largest size of empty content in Brotli, in bytes
_WINDOW = 1 << 23  # largest window of Zstandard in HTTP, in bytes (RFC 9659)


@dataclass(frozen=True)
class WarcFormat(RecordFormat):
    """Archives of web crawls. A record is a mapping: type, url, date, id, mime, headers, http, payload."""

    name = "warc"
    suffixes = (".warc",)

    def find_ends(self, blocks: Iterable[bytes]) -> Iterator[Sequence[int]]:
        """Find the ends of records from the lengths in their headers. ValueError if a record does not end there."""
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
        """Decode a record, from `WARC/` to the empty line at its end. ValueError, or UsageError without FastWARC."""
        record = _parsed(data)
        headers = _headers(record.headers.items())
        if _first(headers, "WARC-Type") is None:
            raise ValueError(f"expected a header WARC-Type, found {', '.join(headers) or 'none'}")
        http = record.http_headers
        if http is not None and _END not in data[data.index(_END) + len(_END) : -len(_END)]:
            http = None  # declared as HTTP, but is not
            record = _parsed(data, parse_http=False)
        kind = headers.get("Content-Type") if http is None else record.http_content_type
        return {
            "type": _first(headers, "WARC-Type"),
            "url": _without_brackets(_first(headers, "WARC-Target-URI")),
            "date": _first(headers, "WARC-Date"),
            "id": _first(headers, "WARC-Record-ID"),
            "mime": None if kind is None else str(kind).partition(";")[0].strip().lower(),
            "headers": headers,
            "http": None
            if http is None
            else {"line": http.status_line, "status": http.status_code, "headers": _headers(http.items())},
            "payload": bytes(record.reader.read()),
        }

    def encode_record(self, record: Any) -> bytes:
        """Return the bytes of a record; see `record_bytes`."""
        return record_bytes(record)

    def stream_advice(self, compression: str, listed: FileInfo, options: Options | None, first: int) -> str | None:
        """Return a warning if the first gzip member of an archive has more than the first record.

        Crawlers compress each record separately. An archive that is compressed as one stream is read by one worker.
        """
        if compression != "gzip":
            return None
        member, made = zlib.decompressobj(wbits=31), 0
        with RangeReader(listed.url, options, listed=listed) as reader:
            for block in reader.blocks(_REQUEST):
                data = block
                while data and not member.eof and made <= first:
                    made += len(member.decompress(data, _REQUEST))
                    data = member.unconsumed_tail
                if member.eof or made > first:
                    break
        if made <= first:
            return None
        return (
            "one worker reads it from its beginning, since its records are not compressed separately; to use all "
            f"workers, compress it by record: fastwarc recompress {listed.url} NEW.warc.gz, then ledgerbeam index "
            "NEW.warc.gz"
        )


def record_bytes(record: Any) -> bytes:
    """Return the bytes of a record, with the correct `Content-Length`.

    Args:
        record: A record of a reader: `headers`, `http` and `payload` are written.

    Raises:
        ValueError: It is not a record.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("headers"), Mapping):
        raise ValueError(f"expected a record with headers and a payload, found {record!r:.80}")
    payload, http = record.get("payload"), record.get("http")
    if not isinstance(payload, bytes):
        raise ValueError(f"payload: expected bytes, found {type(payload).__name__}")
    if http is not None:
        if not isinstance(http, Mapping) or not isinstance(http.get("headers"), Mapping):
            raise ValueError(f"http: expected a mapping with 'line' and 'headers', found {http!r:.80}")
        payload = _lines(str(http.get("line")), http["headers"]) + payload
    headers = {name: value for name, value in record["headers"].items() if name.lower() != _LENGTH.lower()}
    return _lines("WARC/1.1", {**headers, _LENGTH: str(len(payload))}) + payload + _END


def decoded_payload(record: Mapping[str, Any]) -> bytes:
    """Return the payload of a record without the transfer and content encodings that the headers of HTTP name.

    Some crawlers undo the encodings but keep the headers. Then `record["payload"]`, the payload as it was stored, is
    already decoded, and this function raises ValueError.

    Args:
        record: A record of a reader.

    Raises:
        UsageError: The package that decodes it is not installed.
        ValueError: The encoding is not known, or the payload is cut off or not in this encoding. The payload as it was
            stored is `record["payload"]`.
    """
    payload: bytes = record["payload"]
    for name in reversed(_encodings(record)):
        if not payload:
            break
        if (decode := _DECODERS.get(name)) is None:
            raise _undecodable(name, f"expected one of {', '.join(sorted(_DECODERS))}")
        try:
            payload = decode(payload)
        except (MemoryError, UsageError):
            raise
        except Exception as error:  # each decoder has its own errors
            raise _undecodable(name, f"found {payload[:20]!r} ({error})") from error
    return payload


def _content_end(data: bytes, start: int, base: int) -> int:
    """Return where the content of the record at `data[start]` ends; `data` starts at `base`. -1: headers incomplete."""
    if data[start : start + len(_MAGIC)] != _MAGIC[: len(data) - start]:
        raise ValueError(f"expected 'WARC/', found {data[start : start + 20]!r}")
    line = data.find(b"\n", start)
    if line >= 0 and data[line - 1 : line] != b"\r":
        raise _bare_line_feed(data[start:line])
    if (end := data.find(_END, start)) < 0:
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
        f"expected headers whose lines end with CR LF, found LF alone after {line[:40]!r}. A program has changed "
        "the ends of lines, so the lengths in the file are wrong"
    )


def _parsed(data: bytes, *, parse_http: bool = True) -> Any:
    library = import_extra("fastwarc.warc", "warc", "WARC needs a package that is not installed")
    try:
        how = {"parse_http": parse_http, "auto_decode": "none", "stream_detect": False, "max_header_len": len(data)}
        return next(library.ArchiveIterator(io.BytesIO(data), **how))
    except (OSError, StopIteration) as error:
        raise ValueError(f"expected a record of WARC, found {data[:60]!r} ({error})") from error


def _headers(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return headers by name; the values of a repeated name are a list."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _first(headers: Mapping[str, Any], name: str) -> str | None:
    """Return the first value of a header, by its name in upper or lower case; None without one."""
    for other, value in headers.items():
        if other.lower() == name.lower():
            return str(value[0] if isinstance(value, list) else value)
    return None


def _without_brackets(uri: str | None) -> str | None:
    """Return a URI without the brackets that the grammar of WARC 1.0 puts around it, as wget does."""
    return uri[1:-1].strip() if uri is not None and uri.startswith("<") and uri.endswith(">") else uri


def _lines(first: str, headers: Mapping[str, Any]) -> bytes:
    lines = [first]
    for name, values in headers.items():
        lines += [f"{name}: {value}" for value in (values if isinstance(values, list) else [values])]
    for line in lines:
        if "\r" in line or "\n" in line:
            raise ValueError(f"expected headers of one line each, found {line!r:.80}")
    return "\r\n".join(lines).encode() + _END


def _encodings(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the encodings of a payload, in the order in which they were applied."""
    http = record.get("http") or {"headers": {}}
    found: list[str] = []
    for wanted in ("content-encoding", "transfer-encoding"):
        for header, values in http["headers"].items():
            if header.lower() == wanted:
                for value in values if isinstance(values, list) else [values]:
                    found += [name.strip().lower() for name in str(value).split(",")]
    return [name for name in found if name not in ("", "identity")]


def _undecodable(name: str, found: str) -> ValueError:
    return ValueError(
        f"payload: the HTTP headers name the encoding {name!r}, {found}; record['payload'] is the payload as it was "
        "stored"
    )


def _chunks(data: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while (head := _CHUNK.match(data, at)) is not None:
        start, size = head.end(), int(head[1], 16)
        if not size:
            return b"".join(parts)
        at = start + size
        parts.append(data[start:at])
    raise ValueError(f"expected the size of a chunk at byte {at} of the encoded payload")


def _gzip(data: bytes) -> bytes:
    return _frames(data, lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))


def _deflate(data: bytes) -> bytes:
    """Decompress zlib data, also without its header, which some servers leave out. Browsers accept both."""
    try:
        return _frames(data, zlib.decompressobj)
    except zlib.error:
        return _frames(data, lambda: zlib.decompressobj(-zlib.MAX_WBITS))


def _zstd(data: bytes) -> bytes:
    zstandard: Any = importlib.import_module("zstandard")
    return _frames(data, zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj)


def _frames(data: bytes, make: Callable[[], Any]) -> bytes:
    """Decompress all frames of some data; `make` makes the decompressor of one."""
    parts: list[bytes] = []
    while data:
        decompressor = make()
        parts.append(decompressor.decompress(data))
        if not decompressor.eof:
            raise ValueError("the end of the data is missing")
        data = decompressor.unused_data
    return b"".join(parts)


def _brotli(data: bytes) -> bytes:
    streams = import_extra("fastwarc.stream_io", "warc", "br needs a package that is not installed")
    found = bytes(streams.BrotliReader(io.BytesIO(data)).read())
    if not found and len(data) > _EMPTY_BROTLI:  # the reader ignores bytes after the end
        raise ValueError("the data ends before any content")
    return found


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "br": _brotli,
    "chunked": _chunks,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
