"""Records of WARC files as values and back, with the library FastWARC; and a check of their compression.

Crawlers compress each record separately. An archive that is compressed as one stream is read by one worker.
"""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

_REQUEST = 256 * 1024


def stream_advice(compression: str, listed: FileInfo, options: Options | None, first: int) -> str | None:
    """Return a warning if the first member of a gzip archive does not end with its first record; else None.

    Args:
        compression: Name of the compression of the file.
        listed: The listed properties of the file.
        options: Storage options.
        first: Decompressed bytes of the first record.

    Raises:
        ChangedSourceError: The file changed since it was listed; also StorageError.
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
        "one worker reads it from its beginning, since its records are not compressed separately; to use all workers, "
        f"compress it by record: fastwarc recompress {listed.url} NEW.warc.gz, then ledgerbeam index NEW.warc.gz"
    )


_END = b"\r\n\r\n"
_LENGTH = "Content-Length"


def parse_record(data: bytes) -> dict[str, Any]:
    """Parse a record.

    Args:
        data: Its bytes, from `WARC/` to the empty line at its end.

    Raises:
        UsageError: The library is not installed.
        ValueError: They are not a record.
    """
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


def record_bytes(record: Any) -> bytes:
    """Return the bytes of a record, with the correct `Content-Length`.

    Args:
        record: A record of `parse_record`: `headers`, `http` and `payload` are written.

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
            raise ValueError(f"http: expected a line and headers, found {http!r:.80}")
        payload = _lines(str(http.get("line")), http["headers"]) + payload
    headers = {name: value for name, value in record["headers"].items() if name.lower() != _LENGTH.lower()}
    return _lines("WARC/1.1", {**headers, _LENGTH: str(len(payload))}) + payload + _END


def _parsed(data: bytes, *, parse_http: bool = True) -> Any:
    try:
        library: Any = importlib.import_module("fastwarc.warc")
    except ImportError as error:
        raise UsageError(f"WARC needs a package that is not installed: {install_command('warc')}") from error
    try:
        return next(
            library.ArchiveIterator(
                io.BytesIO(data),
                parse_http=parse_http,
                auto_decode="none",
                stream_detect=False,
                max_header_len=len(data),
            )
        )
    except (OSError, StopIteration) as error:
        raise ValueError(f"expected a record of WARC, found {data[:60]!r} ({error})") from error


def _headers(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return headers by name; the values of a repeated name are a list."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def _first(headers: Mapping[str, Any], name: str) -> str | None:
    """Return a header by name, in upper or lower case."""
    for other, value in headers.items():
        if other.lower() == name.lower():
            return str(value[0] if isinstance(value, list) else value)
    return None


def _without_brackets(uri: str | None) -> str | None:
    """Return a URI without the brackets that the grammar of WARC 1.0 puts around it, as wget does."""
    if uri is not None and uri.startswith("<") and uri.endswith(">"):
        return uri[1:-1].strip()
    return uri


def _lines(first: str, headers: Mapping[str, Any]) -> bytes:
    lines = [first]
    for name, values in headers.items():
        lines += [f"{name}: {value}" for value in (values if isinstance(values, list) else [values])]
    for line in lines:
        if "\r" in line or "\n" in line:
            raise ValueError(f"expected headers of one line each, found {line!r:.80}")
    return "\r\n".join(lines).encode() + _END
