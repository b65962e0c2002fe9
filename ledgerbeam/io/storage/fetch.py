"""Concurrent ranged requests of listed versions, with retries of the failed ones; reads from web servers.

S3 and Azure accept `If-Match` with the ETag, GCS a generation. The version in the response is compared too, since some
servers ignore the condition. For web servers and the Hub only the response is compared. For other stores a second
request after the read checks the version.

The version of a file of a web server is the ETag or, without one, the time of the last change with the size. No
condition is sent, since servers ignore `If-Match` with weak ETags and `If-Unmodified-Since` with ranges. Some servers
ignore the header `Range` and send the whole file, as `python -m http.server` does. Such a file can be read from its
start, in one response, but not by position.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ledgerbeam.errors import ChangedSourceError, LedgerbeamError, NotIndexableError, SourceNotFoundError, StorageError
from ledgerbeam.io.storage.client import ATTEMPTS, CONCURRENCY, Options, call, filesystem, map_ahead
from ledgerbeam.io.storage.responses import (
    byte_range,
    http_status,
    is_transient,
    no_ranges_message,
    require_range,
    storage_error,
)
from ledgerbeam.io.storage.stat import FileInfo, changed_error, info_of
from ledgerbeam.io.storage.urls import is_local, store_of

_NO_MATCH = 412  # HTTP status of a condition that does not hold
_WHOLE, _PAST_THE_END = 200, 416  # HTTP status of a response
_SILENT_SECONDS = 60.0

_PIECE = 1 << 20  # bytes of a response body in one read
_REMEDY = "read it from its beginning, as a stream, or copy it to a store with byte ranges, or to a local disk"


def fetch_many(
    store: Any,
    urls: list[str],
    starts: list[Any],
    stops: list[Any],
    listed: list[FileInfo] | None = None,
    **kwargs: Any,
) -> list[bytes]:
    """Run ranged requests concurrently; only those that fail for a transient reason are repeated.

    A store that throttles rejects some of many requests in each round. So after `ATTEMPTS` attempts, others follow if
    these attempts have read some ranges. If the objects were listed, only bytes of the listed version are returned.

    ChangedSourceError: an object changed since it was listed; also StorageError.
    """
    found: list[Any] = [None] * len(urls)
    left = list(range(len(urls)))
    if getattr(store, "async_impl", False):
        kwargs["batch_size"] = CONCURRENCY

    def fetch() -> None:
        nonlocal left
        ranges = [urls[i] for i in left], [starts[i] for i in left], [stops[i] for i in left]
        if listed is None and store_of(urls[0]).api not in ("http", "hub"):  # a web server may send another range
            answers = store.cat_ranges(*ranges, on_error="return", **kwargs)
        else:
            answers = cat_listed(store, *ranges, [None if listed is None else listed[i].version for i in left])
        again = []
        for position, answer in zip(left, answers, strict=True):
            if isinstance(answer, LedgerbeamError):
                raise answer
            if isinstance(answer, BaseException):
                if not is_transient(answer):
                    raise _final(answer, urls[position], None if listed is None else listed[position]) from answer
                again.append(position)
            found[position] = answer
        if left := again:
            raise found[left[0]]

    while left:
        before = len(left)
        try:
            call(urls[left[0]], "read", fetch)
        except StorageError as error:
            if len(left) == before or not is_transient(error.__cause__ or error):
                raise
    return found


def _final(error: BaseException, url: str, listed: FileInfo | None) -> StorageError:
    worded = storage_error(error, url, "read")
    if listed is None:
        return worded
    if isinstance(error, OtherVersionError):
        return changed_error(listed, f"version {error}")
    if http_status(error) == _NO_MATCH:
        return changed_error(listed, "another version")
    return changed_error(listed, "none: it was deleted") if isinstance(worded, SourceNotFoundError) else worded


class OtherVersionError(Exception):
    """The object has another version than the listed one; the text is the version that was found."""


def takes_conditions(url: str) -> bool:
    """Return whether reads of a source check its listed version without another request, as for a local file."""
    return is_local(url) or store_of(url).api is not None


def cat_listed(
    store: Any,
    urls: Sequence[str],
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    versions: Sequence[str | None],
) -> list[bytes | BaseException]:
    """Read ranges of objects, or whole objects, concurrently: one request each. The version None stands for any.

    Return the bytes or the error of each. If the version differs, the error has status 412 or is `OtherVersionError`.
    """
    api = store_of(urls[0]).api
    asked: list[tuple[str, int | None, int | None, Any]] = list(zip(urls, starts, stops, versions, strict=True))
    if api is None:
        return [_read_plain(partial(_read_and_stat, store), *one) for one in asked]
    if api == "hub":
        return list(map_ahead(lambda one: _read_plain(store.read_version, *one), asked, CONCURRENCY))
    from fsspec import asyn  # noqa: PLC0415 - a job on local files does not need it

    return asyn.sync(
        store.loop,
        asyn._run_coros_in_chunks,  # noqa: SLF001 - `cat_ranges` of all these stores is based on it
        [_CONDITIONAL[api](store, *one) for one in asked],
        batch_size=CONCURRENCY,
        nofiles=True,
        return_exceptions=True,
    )


async def _read_s3(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes:
    from s3fs.core import _error_wrapper  # noqa: PLC0415 - an optional package

    bucket, key, _ = store.split_path(url)
    request = {"Bucket": bucket, "Key": key, "IfMatch": f'"{version}"'}
    if (wanted := byte_range(start, stop)) is not None:
        request["Range"] = wanted

    async def read() -> bytes:
        answer = await store._call_s3("get_object", **request)  # noqa: SLF001 - as s3fs itself reads
        try:
            _require(version, answer.get("ETag"))
            body, data = answer["Body"], _room_for(answer.get("ContentLength", 0))
            while some := await body.read(_PIECE):  # `read()` of the client would hold all pieces and join them
                data.write(some)
        finally:
            answer["Body"].close()
        data.truncate()
        return data.getvalue()

    return await _error_wrapper(read, retries=store.retries)


def _room_for(size: int) -> io.BytesIO:
    """Return a file in memory that has its final size already, positioned at its start.

    Growing buffers are copied repeatedly. With concurrent reads, this took half of the processor time.
    """
    data = io.BytesIO()
    if size:
        data.seek(size - 1)
        data.write(b"\0")
        data.seek(0)
    return data


async def _read_gcs(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes:
    wanted = byte_range(start, stop)
    headers, data = await store._call(  # noqa: SLF001 - as gcsfs itself reads
        "GET", store.url(url), headers={"Range": wanted} if wanted else {}, ifGenerationMatch=version
    )
    _require(version, headers.get("X-Goog-Generation"))
    return bytes(data)


async def _read_azure(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes:
    from azure.core import MatchConditions  # noqa: PLC0415 - an optional package

    container, blob, _ = store.split_path(store._strip_protocol(url))  # noqa: SLF001 - as adlfs itself reads
    async with store.service_client.get_blob_client(container=container, blob=blob) as client:
        stream = await client.download_blob(
            offset=start,
            length=None if stop is None else stop - (start or 0),
            etag=f'"{version}"',
            match_condition=MatchConditions.IfNotModified,
            max_concurrency=store.max_concurrency,
            **store._timeout_kwargs,  # noqa: SLF001
        )
        _require(version, stream.properties.etag)
        return await stream.readall()


async def _read_web(store: Any, url: str, start: int | None, stop: int | None, version: str | None) -> bytes:
    found, data = await read_web(store, url, start, stop)
    _require(version, found)
    return data


def _require(version: str | None, found: object) -> None:
    """Raise OtherVersionError if a response names another version; None stands for any version."""
    if version and found and str(found).strip('"') != version:
        raise OtherVersionError(str(found).strip('"'))


def _read_plain(
    read: Callable[[str, int | None, int | None], tuple[str, bytes]],
    url: str,
    start: int | None,
    stop: int | None,
    version: str | None,
) -> bytes | BaseException:
    """Call `read`, which returns a version and bytes. Return the bytes if the version is right, else the error."""
    try:
        found, data = read(url, start, stop)
        _require(version, found)
    except Exception as error:  # noqa: BLE001 - returned as `cat_ranges` does; the caller decides
        return error
    return data


def _read_and_stat(store: Any, url: str, start: int | None, stop: int | None) -> tuple[str, bytes]:
    data: bytes = store.cat_file(url, start=start, end=stop)
    store.invalidate_cache()
    return info_of(url, store.info(url)).version, data


_Read = Callable[[Any, str, int | None, int | None, Any], Awaitable[bytes]]

# by `Store.api`
_CONDITIONAL: dict[str, _Read] = {"s3": _read_s3, "gcs": _read_gcs, "azure": _read_azure, "http": _read_web}


def takes_ranges(url: str, options: Options | None = None) -> bool:
    """Return whether a file can be read by position. Some web servers do not support this: one request finds out."""
    if store_of(url).api != "http":
        return True
    from fsspec import asyn  # noqa: PLC0415 - a job on local files does not need it

    store = filesystem(url, options)

    async def ask() -> bool:
        answer = await _request(store, url, byte_range(0, 1), (_PAST_THE_END,))  # of an empty file
        answer.close()
        return bool(answer.status != _WHOLE)

    return call(url, "read", asyn.sync, store.loop, ask)


def require_ranges(url: str, options: Options | None = None) -> None:
    """Raise NotIndexableError unless `takes_ranges`."""
    if not takes_ranges(url, options):
        raise NotIndexableError(no_ranges_message(url, byte_range(0, 1), _WHOLE, _REMEDY))


def read_from_beginning(
    url: str, options: Options | None, bounds: tuple[int, int], size: int, listed: FileInfo | None
) -> Iterator[bytes]:
    """Yield the range `bounds` of a file in blocks of at most `size` bytes, from a web server without byte ranges.

    One response has the whole file. Bytes before the range are discarded. A broken connection causes a new request.
    ChangedSourceError: the file changed since it was listed, or while it was read; also StorageError.
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


async def read_web(store: Any, url: str, start: int | None, stop: int | None) -> tuple[str, bytes]:
    """Read a range of a file of a web server or the whole file: one request.

    Raises:
        NotIndexableError: The server supports no ranges, and the range does not begin at the first byte.
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


async def _request(store: Any, url: str, wanted: str | None, accepted: tuple[int, ...] = ()) -> Any:
    """Return the response to a request, before its body is read; `close` must be called.

    The body is not decompressed, because a server may declare the compression of a stored gzip file as an encoding.
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
