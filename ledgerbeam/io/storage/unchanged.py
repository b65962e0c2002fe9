"""Reads of an object in the version that was listed, by the condition that its store puts on a request.

S3 and Azure take `If-Match` with the ETag, GCS a generation; what answers is compared too, for there are servers that
pass over a condition. Of a web server and of the Hub the answer alone is compared. Other stores have none: they are
asked after the read what they hold, one request more.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from fsspec import asyn

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, StorageError, UsageError
from ledgerbeam.io.storage.client import CONCURRENCY, storage_error
from ledgerbeam.io.storage.stat import FileInfo, changed_error, info_of, require_regular
from ledgerbeam.io.storage.urls import is_local, store_of
from ledgerbeam.io.storage.web import read_web

__all__ = ["OtherVersionError", "SourceWatch", "cat_listed", "takes_conditions"]


class OtherVersionError(Exception):
    """The object that a store gave is of another version; the text is what was found."""


def takes_conditions(url: str) -> bool:
    """Return whether a store reads an object in a given version at no extra request."""
    return store_of(url).api is not None


def cat_listed(
    store: Any, urls: Sequence[str], starts: Sequence[int | None], stops: Sequence[int | None], versions: Sequence[str]
) -> list[bytes | BaseException]:
    """Read ranges of objects, or whole ones, side by side: one request each.

    Args:
        store: Their fsspec file system.
        urls: Canonical URLs.
        starts: First byte of each; None for the whole object.
        stops: End of each, exclusive; None likewise.
        versions: The version of each, as in `FileInfo.version`.

    Returns:
        The bytes of each or the error it met: of another version one of status 412, or `OtherVersionError`.
    """
    api = store_of(urls[0]).api
    asked = list(zip(urls, starts, stops, versions, strict=True))
    if api is None:
        return [_look_after(store, *one) for one in asked]
    if api == "hub":
        with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-hub") as pool:
            return list(pool.map(lambda one: _read_hub(store, *one), asked))
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
    if start is not None and stop is not None:
        request["Range"] = f"bytes={start}-{stop - 1}"

    async def read() -> bytes:
        answer = await store._call_s3("get_object", **request)  # noqa: SLF001 - as s3fs itself reads
        try:
            _require(version, answer.get("ETag"))
            data: bytes = await answer["Body"].read()
        finally:
            answer["Body"].close()
        return data

    data: bytes = await _error_wrapper(read, retries=store.retries)
    return data


async def _read_gcs(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes:
    head = {} if start is None or stop is None else {"Range": f"bytes={start}-{stop - 1}"}
    headers, data = await store._call(  # noqa: SLF001 - as gcsfs itself reads
        "GET", store.url(url), headers=head, ifGenerationMatch=version
    )
    _require(version, headers.get("X-Goog-Generation"))
    return bytes(data)


async def _read_azure(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes:
    from azure.core import MatchConditions  # noqa: PLC0415 - an optional package

    container, blob, _ = store.split_path(store._strip_protocol(url))  # noqa: SLF001 - as adlfs itself reads
    async with store.service_client.get_blob_client(container=container, blob=blob) as client:
        stream = await client.download_blob(
            offset=start,
            length=None if start is None or stop is None else stop - start,
            etag=f'"{version}"',
            match_condition=MatchConditions.IfNotModified,
            max_concurrency=store.max_concurrency,
            **store._timeout_kwargs,  # noqa: SLF001
        )
        _require(version, stream.properties.etag)
        data: bytes = await stream.readall()
        return data


async def _read_web(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes:
    found, data = await read_web(store, url, start, stop)
    _require(version, found)
    return data


def _require(version: str, found: object) -> None:
    """Raise if a response names a version, and it is another."""
    if found and str(found).strip('"') != version:
        raise OtherVersionError(str(found).strip('"'))


def _look_after(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes | BaseException:
    try:
        data: bytes = store.cat_file(url, start=start, end=stop)
        store.invalidate_cache()
        _require(version, info_of(url, store.info(url)).version)
    except Exception as error:  # noqa: BLE001 - as `cat_ranges` returns them; who asked decides
        return error
    return data


def _read_hub(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes | BaseException:
    try:
        found, data = store.read_version(url, start, stop)
        _require(version, found)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return bytes(data)


_Read = Callable[[Any, str, int | None, int | None, str], Awaitable[bytes]]

_CONDITIONAL: dict[str, _Read] = {  # by `Store.api`
    "s3": _read_s3,
    "gcs": _read_gcs,
    "azure": _read_azure,
    "http": _read_web,
}


Marks = tuple[tuple[int, int, int], ...]
"""Device, inode and time of the last change of each file."""


class SourceWatch:
    """Looks at local sources when it is made and whenever it is asked. A context manager, which looks at the end too.

    Args:
        listed: What was listed, with the time of the last change of a file where that is known from an earlier look;
            remote sources among it are passed over.

    Raises:
        ChangedSourceError: One of them is not what was listed.
        StorageError: No permission to look.
    """

    __slots__ = ("_listed", "marks")

    def __init__(self, listed: Iterable[FileInfo]) -> None:
        self._listed = [source for source in listed if is_local(source.url)]
        self.marks: Marks = self._look()

    def check(self) -> None:
        """Look again.

        Raises:
            ChangedSourceError: A source is not what was listed, or has changed since the first look.
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
            try:  # half of a file that is being written is also damaged, and an index does not fit it
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
