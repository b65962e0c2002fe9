"""Reads of exactly the listed version of an object.

S3 and Azure accept `If-Match` with the ETag, GCS a generation; the version in the response is compared too, since some
servers ignore the condition. For web servers and the Hub only the response is compared. For other stores a second
request after the read checks the version.
"""

from __future__ import annotations

import io
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, StorageError, UsageError
from ledgerbeam.io.storage.client import CONCURRENCY, storage_error
from ledgerbeam.io.storage.stat import FileInfo, changed_error, info_of, require_regular
from ledgerbeam.io.storage.urls import is_local, store_of
from ledgerbeam.io.storage.web import byte_range, read_web

_PIECE = 1 << 20
"""Bytes of the body of a response that are taken together."""


class OtherVersionError(Exception):
    """The object has another version than the listed one; the text is the version that was found."""


def takes_conditions(url: str) -> bool:
    """Return whether a given version can be read without an extra request: a local file is compared as it is opened."""
    return is_local(url) or store_of(url).api is not None


def cat_listed(
    store: Any,
    urls: Sequence[str],
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    versions: Sequence[str | None],
) -> list[bytes | BaseException]:
    """Read ranges of objects, or whole objects, concurrently: one request each.

    Args:
        store: Their fsspec file system.
        urls: Canonical URLs.
        starts: First byte of each range; None for the whole object.
        stops: End of each range, exclusive; None for the whole object.
        versions: The version of each, as in `FileInfo.version`; of web servers None for any.

    Returns:
        For each its bytes or its error; for another version one of status 412, or `OtherVersionError`.
    """
    api = store_of(urls[0]).api
    asked: list[tuple[str, int | None, int | None, Any]] = list(zip(urls, starts, stops, versions, strict=True))
    if api is None:
        return [_read_plain(partial(_read_and_stat, store), *one) for one in asked]
    if api == "hub":
        with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-hub") as pool:
            return list(pool.map(lambda one: _read_plain(store.read_version, *one), asked))
    from fsspec import asyn  # noqa: PLC0415 - a job on local files does not need it

    found: list[bytes | BaseException] = asyn.sync(
        store.loop,
        asyn._run_coros_in_chunks,  # noqa: SLF001 - what `cat_ranges` of all these stores is made of
        [_CONDITIONAL[api](store, *one) for one in asked],
        batch_size=CONCURRENCY,
        nofiles=True,
        return_exceptions=True,
    )
    return found


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
            while some := await body.read(_PIECE):  # the client would hold all pieces, and join them
                data.write(some)
        finally:
            answer["Body"].close()
        data.truncate()
        return data.getvalue()

    data: bytes = await _error_wrapper(read, retries=store.retries)
    return data


def _room_for(size: int) -> io.BytesIO:
    """Return a file in memory that has this size from the first, and is written from its beginning.

    Of several that grow side by side each is copied again and again: that took half of the processors of such reads.
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
        data: bytes = await stream.readall()
        return data


async def _read_web(store: Any, url: str, start: int | None, stop: int | None, version: str | None) -> bytes:
    found, data = await read_web(store, url, start, stop)
    if version is not None:
        _require(version, found)
    return data


def _require(version: str, found: object) -> None:
    """Raise OtherVersionError if a response names another version."""
    if found and str(found).strip('"') != version:
        raise OtherVersionError(str(found).strip('"'))


def _read_plain(
    read: Callable[[str, int | None, int | None], tuple[str, bytes]],
    url: str,
    start: int | None,
    stop: int | None,
    version: str,
) -> bytes | BaseException:
    """Return the bytes that `read` returns with their version, or the error."""
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

_CONDITIONAL: dict[str, _Read] = {  # by `Store.api`
    "s3": _read_s3,
    "gcs": _read_gcs,
    "azure": _read_azure,
    "http": _read_web,
}


Marks = tuple[tuple[int, int, int], ...]
"""Device, inode and time of the last change of each file."""


class SourceWatch:
    """Checks that local sources do not change: when it is made, at `check`, and at the end of its `with` block.

    Args:
        listed: The listed properties of the sources, with `changed_ns` where an earlier check has found it; remote
            sources are ignored.

    Raises:
        ChangedSourceError: One of them changed since it was listed.
        StorageError: No permission to read its properties.
    """

    __slots__ = ("_listed", "marks")

    def __init__(self, listed: Iterable[FileInfo]) -> None:
        self._listed = [source for source in listed if is_local(source.url)]
        self.marks: Marks = self._look()

    def check(self) -> None:
        """Check the sources again.

        Raises:
            ChangedSourceError: A source changed since it was listed, or since the first check.
        """
        marks = self._look()
        for source, before, now in zip(self._listed, self.marks, marks, strict=True):
            if before != now:
                raise changed_error(
                    source,
                    f"them written, replaced or renamed while they were read (device, inode and time of change were "
                    f"{before}, are {now})",
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.check()
        elif isinstance(error, LedgerbeamError) and not isinstance(error, (DiskFullError, LedgerError)):
            try:  # a file that is only half written looks damaged, and its index does not fit
                self.check()
            except StorageError as changed:
                raise changed from error

    def _look(self) -> Marks:
        return tuple(map(_mark, self._listed))


def _mark(source: FileInfo) -> tuple[int, int, int]:
    try:
        found = os.stat(source.url)
        require_regular(found, source.url)
    except (FileNotFoundError, NotADirectoryError, UsageError) as error:
        raise changed_error(source, f"none ({error})") from error
    except OSError as error:
        raise storage_error(error, source.url, "read") from error
    if (found.st_size, str(found.st_mtime_ns)) != (source.size, source.version):
        raise changed_error(source, f"{found.st_size} bytes of version {found.st_mtime_ns}")
    if source.changed_ns not in (0, found.st_ctime_ns):
        raise changed_error(source, "a file of that size and time which was written, replaced or renamed since")
    return found.st_dev, found.st_ino, found.st_ctime_ns
