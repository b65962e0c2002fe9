"""Uploads of large blobs to Azure, and of bytes in memory to S3.

Azure: blocks are staged, then one request commits all of them. adlfs and the SDK name a block only by its position. Two
concurrent writers of one blob, such as two attempts of a task, would replace each other's blocks, and the blob could
become a mixture of both. Here each upload has its own block names.

S3: the client copies bytes twice, and s3fs reads a file of up to 100 MB in one piece first. A body that is read piece
by piece is not copied, except for the current piece.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any, BinaryIO

from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.responses import http_status

_BLOCK = 16 * 1024 * 1024
_MOST_BLOCKS = 50_000  # in one blob
_PART = 48 * 1024 * 1024
_MOST_PARTS = 10_000
_SIDE_BY_SIDE = 4
_EXISTS = frozenset({409, 412})  # HTTP status when the blob must be new and is not


def upload_blocks(url: str, file: BinaryIO, options: Options | None = None, *, exclusive: bool = False) -> None:
    """Upload a file; the whole blob appears with the last request. Up to four blocks of 16 MiB are in memory.

    Args:
        url: URL of the blob.
        file: Read from its beginning.
        options: Storage options.
        exclusive: Whether to fail if a blob has that name already.

    Raises:
        FileExistsError: A blob has that name, and `exclusive` is true.
        StorageError: The container does not exist, or the store refused.
    """
    from fsspec import asyn  # noqa: PLC0415 - a job on local files needs no event loop

    store = filesystem(url, options)

    def upload() -> bool:
        return asyn.sync(store.loop, _upload_blob, store, url, file, exclusive)

    # When another upload of the same blob ends first, the store drops our blocks, and they are staged again.
    if not call(url, "write", upload):
        raise FileExistsError(url)
    store.invalidate_cache(url)


async def _upload_blob(store: Any, url: str, file: BinaryIO, exclusive: bool) -> bool:
    """Return False if `exclusive` is true and a blob of that name exists."""
    from asyncio import gather  # noqa: PLC0415

    from azure.core.exceptions import HttpResponseError  # noqa: PLC0415 - comes with the extra
    from azure.storage.blob import BlobBlock  # noqa: PLC0415

    container, key, _ = store.split_path(url)
    mark = uuid.uuid4().hex
    names: list[str] = []
    size = file.seek(0, 2)
    block = max(_BLOCK, -(-size // _MOST_BLOCKS))
    file.seek(0)
    condition = {"headers": {"If-None-Match": "*"}} if exclusive else {}
    async with store.service_client.get_blob_client(container, key) as blob:
        while True:
            staged: list[Any] = []
            while len(staged) < _SIDE_BY_SIDE and (data := file.read(block)):
                names.append(f"{mark}{len(names):06d}")
                staged.append(blob.stage_block(names[-1], data))
            if not staged:
                break
            await gather(*staged)
        try:
            await blob.commit_block_list([BlobBlock(name) for name in names], **condition)
        except HttpResponseError as error:
            if exclusive and http_status(error) in _EXISTS:
                return False
            raise
    return True


def upload_bytes(url: str, data: bytes, options: Options | None = None) -> None:
    """Upload an object with one request up to 96 MiB, else as a multipart upload. It appears with the last request.

    Args:
        url: URL of the object.
        data: Its content.
        options: Storage options.

    Raises:
        StorageError: The bucket does not exist, or the store refused.
    """
    from fsspec import asyn  # noqa: PLC0415 - a job on local files needs no event loop

    store = filesystem(url, options)
    call(url, "write", lambda: asyn.sync(store.loop, _upload_object, store, url, memoryview(data)))
    store.invalidate_cache(url)


async def _upload_object(store: Any, url: str, data: memoryview) -> None:
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

    from ledgerbeam.io.storage.upload_body import UploadBody  # noqa: PLC0415 - imports aiohttp, an optional package

    await store.set_session()
    client = await store.get_s3(asked["Bucket"])
    send = getattr(client, method)

    logger.debug("CALL: %s - () - %s", method, asked)  # as s3fs logs every request

    async def attempt() -> Any:
        # A new body for each attempt: an earlier attempt has read the last one to its end.
        return await send(**store._get_s3_method_kwargs(send, **asked, Body=UploadBody(data)))  # noqa: SLF001

    answer = await _error_wrapper(attempt, retries=store.retries)
    return asked.get("PartNumber", 1), answer["ETag"]
