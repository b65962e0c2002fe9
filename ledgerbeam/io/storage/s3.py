"""Upload to S3 what is in memory, as it lies there.

Of bytes the client makes two copies on their way, and s3fs reads a file of up to 100 MB as one piece before that. From
an object that is read piece by piece nothing is copied but the piece.
"""

from __future__ import annotations

import contextlib
from typing import Any

from ledgerbeam.io.storage.client import Options, call, filesystem

_PART = 48 * 1024 * 1024
_MOST_PARTS = 10_000
_SIDE_BY_SIDE = 4


def upload_bytes(url: str, data: bytes, options: Options | None = None) -> None:
    """Upload an object, which appears with the last request: one up to 96 MiB, else a multipart upload.

    Args:
        url: Of the object.
        data: Its content.
        options: Storage options.

    Raises:
        StorageError: There is no such bucket, or the store refused.
    """
    from fsspec import asyn  # noqa: PLC0415 - a job on local files needs no event loop

    store = filesystem(url, options)
    call(url, "write", lambda: asyn.sync(store.loop, _upload, store, url, memoryview(data)))
    store.invalidate_cache(url)


async def _upload(store: Any, url: str, data: memoryview) -> None:
    from asyncio import gather  # noqa: PLC0415

    bucket, key, _ = store.split_path(url)
    place = {"Bucket": bucket, "Key": key}
    if len(data) <= 2 * _PART:
        await _send(store, "put_object", data, **place)
        return
    size = max(_PART, -(-len(data) // _MOST_PARTS))
    started = await store._call_s3("create_multipart_upload", **place)  # noqa: SLF001 - as s3fs itself does
    place["UploadId"] = started["UploadId"]
    parts: list[dict[str, Any]] = []
    try:
        for first in range(0, len(data), size * _SIDE_BY_SIDE):
            some = [data[start : start + size] for start in range(first, first + size * _SIDE_BY_SIDE, size)]
            sent = [
                _send(store, "upload_part", piece, **place, PartNumber=len(parts) + place_of)
                for place_of, piece in enumerate(filter(len, some), 1)
            ]
            parts += [{"PartNumber": number, "ETag": etag} for number, etag in await gather(*sent)]
        done = {"Parts": parts}
        await store._call_s3("complete_multipart_upload", **place, MultipartUpload=done)  # noqa: SLF001
    except Exception:
        with contextlib.suppress(Exception):  # the first error counts
            await store._call_s3("abort_multipart_upload", **place)  # noqa: SLF001
        raise


async def _send(store: Any, method: str, data: memoryview, **asked: Any) -> tuple[int, str]:
    """Send a body; return the number of the part and its ETag."""
    from s3fs.core import _error_wrapper, logger  # noqa: PLC0415 - an optional package

    from ledgerbeam.io.storage.upload_body import UploadBody  # noqa: PLC0415 - likewise

    await store.set_session()
    client = await store.get_s3(asked["Bucket"])
    send = getattr(client, method)

    logger.debug("CALL: %s - () - %s", method, asked)  # as s3fs says of every request

    async def attempt() -> Any:
        # Of the body an attempt before has read, nothing is left to be read.
        return await send(**store._get_s3_method_kwargs(send, **asked, Body=UploadBody(data)))  # noqa: SLF001

    answer = await _error_wrapper(attempt, retries=store.retries)
    return asked.get("PartNumber", 1), answer["ETag"]
