"""Encodings of payloads that HTTP names: chunks, and the compressions of `Content-Encoding`."""

from __future__ import annotations

import importlib
import io
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError

_CHUNK = re.compile(rb"(?:\A|\r?\n)[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
"""The line before a chunk, with the end of the chunk before it."""

_EMPTY_BROTLI = 2
"""Bytes of nothing in Brotli, at most."""

_WINDOW = 1 << 23
"""Largest window of Zstandard in HTTP, in bytes (RFC 9659)."""


def decoded_payload(record: Mapping[str, Any]) -> bytes:
    """Return the payload of a record without the transfer and content encodings that the headers of HTTP name.

    Some crawlers undo encodings, and keep the headers. Then the payload as it was stored, `record["payload"]`, is the
    decoded one.

    Args:
        record: A record of a reader.

    Raises:
        UsageError: A package is not installed that decodes it.
        ValueError: The payload is not in the encoding that its headers name, is cut off in it, or the encoding is not
            known. The payload as it was stored is `record["payload"]`.
    """
    payload: bytes = record["payload"]
    for name in reversed(_encodings(record)):
        if not payload:
            break
        decode = _DECODERS.get(name)
        if decode is None:
            raise _undecodable(name, f"which is none of {', '.join(sorted(_DECODERS))}")
        try:
            payload = decode(payload)
        except (MemoryError, UsageError):
            raise
        except Exception as error:  # each decoder has its own errors
            raise _undecodable(name, f"found {payload[:20]!r} ({error})") from error
    return payload


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
        f"payload: expected the encoding {name!r} that the headers of HTTP name, {found}; record['payload'] is the "
        "payload as it was stored"
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
    raise ValueError(f"no chunk begins at its byte {at}")


def _gzip(data: bytes) -> bytes:
    return _frames(data, lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))


def _deflate(data: bytes) -> bytes:
    """Decompress zlib data; some servers leave out its header, and browsers accept that."""
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
            raise ValueError("its end is missing")
        data = decompressor.unused_data
    return b"".join(parts)


def _brotli(data: bytes) -> bytes:
    try:
        streams: Any = importlib.import_module("fastwarc.stream_io")
    except ImportError as error:
        raise UsageError(f"br needs a package that is not installed: {install_command('warc')}") from error
    found = bytes(streams.BrotliReader(io.BytesIO(data)).read())
    if not found and len(data) > _EMPTY_BROTLI:  # the reader passes over what follows the end
        raise ValueError("it ends before any content")
    return found


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "br": _brotli,
    "chunked": _chunks,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
