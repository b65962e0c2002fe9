"""Reads of an object in the version that was listed, by the condition that its store puts on a request.

S3 and Azure take `If-Match` with the ETag, GCS a generation; what answers is compared too, for there are servers that
pass over a condition. Other stores have none: they are asked after the read what they hold, one request more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fsspec import asyn

from ledgerbeam.io.file_info import info_of
from ledgerbeam.io.remote import CONCURRENCY, split_scheme

__all__ = ["OtherVersionError", "cat_listed", "takes_conditions"]


class OtherVersionError(Exception):
    """The object that a store gave is of another version; the text is what was found."""


def takes_conditions(url: str) -> bool:
    """Tells whether a store reads an object in a given version at no extra request."""
    return split_scheme(url)[0] in _CONDITIONAL


def cat_listed(
    store: Any, urls: Sequence[str], starts: Sequence[int | None], stops: Sequence[int | None], versions: Sequence[str]
) -> list[bytes | BaseException]:
    """Reads ranges of objects, or whole ones, side by side: one request each.

    Args:
        store: Their fsspec file system.
        urls: Canonical URLs.
        starts: First byte of each; None for the whole object.
        stops: End of each, exclusive; None likewise.
        versions: The version of each, as in `FileInfo.version`.

    Returns:
        The bytes of each or the error it met: of another version one of status 412, or `OtherVersionError`.
    """
    read = _CONDITIONAL.get(split_scheme(urls[0])[0])
    asked = list(zip(urls, starts, stops, versions, strict=True))
    if read is None:
        return [_look_after(store, *one) for one in asked]
    found: list[bytes | BaseException] = asyn.sync(
        store.loop,
        asyn._run_coros_in_chunks,  # noqa: SLF001 - what `cat_ranges` of all these stores is made of
        [read(store, *one) for one in asked],
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


def _require(version: str, found: object) -> None:
    """Raises if an answer tells a version, and it is another."""
    if found and str(found).strip('"') != version:
        raise OtherVersionError(str(found).strip('"'))


def _look_after(store: Any, url: str, start: int | None, stop: int | None, version: str) -> bytes | BaseException:
    try:
        data: bytes = store.cat_file(url, start=start, end=stop)
        store.invalidate_cache()
        _require(version, info_of(url, store.info(url)).version)
    except Exception as error:  # noqa: BLE001 - as `cat_ranges` gives them; who asked decides
        return error
    return data


_Read = Callable[[Any, str, int | None, int | None, str], Awaitable[bytes]]

_CONDITIONAL: dict[str, _Read] = {
    "s3": _read_s3,
    "gs": _read_gcs,
    "az": _read_azure,
    "abfs": _read_azure,
    "abfss": _read_azure,
}
