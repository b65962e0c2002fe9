"""Reads from web servers, only of the listed version, which every response must name.

A version is the ETag or, without one, the time of the last change with the size. No condition is sent, since servers
ignore `If-Match` with weak ETags and `If-Unmodified-Since` with ranges. Instead the version in the response headers is
compared.

Some servers ignore the header `Range` and send the whole file, as `python -m http.server` does. Such a file can be read
from its start, in one response, but not by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ledgerbeam.errors import ChangedSourceError, LedgerbeamError, NotIndexableError
from ledgerbeam.io.storage.client import ATTEMPTS, Options, call, filesystem
from ledgerbeam.io.storage.responses import byte_range, is_transient, no_ranges_message, require_range, storage_error
from ledgerbeam.io.storage.stat import FileInfo, changed_error, info_of
from ledgerbeam.io.storage.urls import store_of

_WHOLE, _PAST_THE_END = 200, 416  # HTTP status of a response
_SILENT_SECONDS = 60.0
_REMEDY = "read it from its beginning, as a stream, or copy it to a store that does, or to a local disk"


async def read_web(store: Any, url: str, start: int | None, stop: int | None) -> tuple[str, bytes]:
    """Read a range of a file of a web server or the whole file: one request.

    Args:
        store: Its fsspec file system.
        url: Canonical URL.
        start: First byte; None for the whole file.
        stop: End, exclusive; None for the whole file.

    Returns:
        The version of the file, and the bytes.

    Raises:
        NotIndexableError: The server supports no ranges, and the range does not begin at the first byte.
        StorageError: The response is another range, or names no version; also the errors of the client.
    """
    wanted = byte_range(start, stop)
    answer = await _request(store, url, wanted)
    try:
        if wanted and answer.status == _WHOLE:
            if start or stop is None:
                raise NotIndexableError(no_ranges_message(url, wanted, answer.status, _REMEDY))
            return _version(url, answer.headers), await _take(answer, stop)
        require_range(url, wanted, answer.status, answer.headers, _REMEDY)
        return _version(url, answer.headers), await answer.read()
    finally:
        answer.close()


def takes_ranges(url: str, options: Options | None = None) -> bool:
    """Return whether a file can be read by position. Only web servers may not support it; they get one request.

    Raises:
        StorageError: The server did not respond, or refused.
    """
    if store_of(url).api != "http":
        return True
    from fsspec import asyn  # noqa: PLC0415 - a job on local files does not need it

    store = filesystem(url, options)

    async def ask() -> bool:
        answer = await _request(store, url, byte_range(0, 1), (_PAST_THE_END,))  # of an empty file
        answer.close()
        return bool(answer.status != _WHOLE)

    found: bool = call(url, "read", asyn.sync, store.loop, ask)
    return found


def require_ranges(url: str, options: Options | None = None) -> None:
    """Raise NotIndexableError unless `takes_ranges`."""
    if not takes_ranges(url, options):
        raise NotIndexableError(no_ranges_message(url, byte_range(0, 1), _WHOLE, _REMEDY))


def read_from_beginning(
    url: str, options: Options | None, bounds: tuple[int, int], size: int, listed: FileInfo | None
) -> Iterator[bytes]:
    """Read a part of a file of a web server without ranges, in one response. The bytes before the part are discarded.

    After a broken connection the file is requested again.

    Args:
        url: Canonical URL.
        options: Storage options.
        bounds: First byte, and end, exclusive.
        size: Bytes of a block; the last one may have fewer.
        listed: The listed properties of the file; None for any version.

    Yields:
        The bytes, in blocks.

    Raises:
        ChangedSourceError: The file changed since it was listed, or while it was read; also StorageError.
    """
    from fsspec import asyn  # noqa: PLC0415

    store = filesystem(url, options)
    position, stop = bounds
    version = None if listed is None else listed.version
    failed = 0
    while position < stop:
        answer = call(url, "read", asyn.sync, store.loop, _request, store, url, None)
        try:
            found = _version(url, answer.headers)
            if version not in (None, found):
                raise changed_error(listed or FileInfo(url, stop, str(version)), f"version {found}")
            version = found
            asyn.sync(store.loop, _skip, answer, position)
            while position < stop:
                data: bytes = asyn.sync(store.loop, _take, answer, min(size, stop - position))
                if not data:
                    raise ChangedSourceError(
                        f"{url}: expected at least {stop} bytes, found {position}; the source was replaced, run again"
                    )
                yield data
                position, failed = position + len(data), 0
        except LedgerbeamError:
            raise
        except Exception as error:
            failed += 1
            if not is_transient(error) or failed == ATTEMPTS:
                raise storage_error(error, url, "read") from error
        finally:
            store.loop.call_soon_threadsafe(answer.close)


async def _request(store: Any, url: str, wanted: str | None, accepted: tuple[int, ...] = ()) -> Any:
    """Return the response to a request, before its body is read; `close` must be called.

    The body is as it is stored: of a file in gzip the server may say that it is an encoding.
    """
    import aiohttp  # noqa: PLC0415 - an optional package

    limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
    request = {"timeout": limits, **store.kwargs}
    heads = {**request.pop("headers", {}), "Accept-Encoding": "identity"}
    if wanted:
        heads["Range"] = wanted
    session = await store.set_session()
    answer = await session.get(store.encode_url(url), headers=heads, auto_decompress=False, **request)
    if answer.status not in accepted:
        answer.raise_for_status()
    return answer


async def _take(answer: Any, size: int) -> bytes:
    """Return the next bytes of a body, fewer at its end."""
    parts: list[bytes] = []
    left = size
    while left and (data := await answer.content.read(left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


async def _skip(answer: Any, size: int) -> None:
    while size and (data := await answer.content.read(min(size, 1 << 20))):
        size -= len(data)


def _version(url: str, headers: Mapping[str, str]) -> str:
    """Return the version that a response names, as in `FileInfo.version`."""
    size = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "")
    fields = {name: headers.get(name) for name in ("ETag", "Last-Modified")}
    # An ETag is the version without the size.
    known = int(size) if size.isdecimal() else 0 if fields["ETag"] else None
    return info_of(url, {**fields, "size": known}).version
