"""Uploads of large blobs to Azure, and of bytes in memory to S3. The clients of both import aiohttp.

Azure: blocks are staged, then one request commits all of them. adlfs and the SDK name a block only by its position. Two
concurrent writers of one blob, such as two attempts of a task, would replace each other's blocks, and the blob could
become a mixture of both. Here each upload has its own block names.

S3: the client copies bytes twice, and s3fs reads a file of up to 100 MB in one piece first. botocore hashes a file in
pieces of 1 MB and copies each one. aiohttp reads each 64 kB of a file in another thread. If a thread computes
meanwhile, each piece switches threads twice, and an upload of 16 MB takes twice as long. So `UploadBody.read` returns
all remaining bytes as one piece without a copy, and a payload class for aiohttp sends them.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from asyncio import gather
from typing import TYPE_CHECKING, Any, BinaryIO

from aiohttp.payload import PAYLOAD_REGISTRY, Payload
from fsspec import asyn

from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.responses import http_status

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter


_BLOCK = 16 * 1024 * 1024
_MOST_BLOCKS = 50_000  # in one blob
_PART = 48 * 1024 * 1024
_MOST_PARTS = 10_000
_SIDE_BY_SIDE = 4
_PIECE = 1 << 20
_EXISTS = frozenset({409, 412})  # HTTP status when the blob must be new and is not


def upload_blocks(url: str, file: BinaryIO, options: Options | None = None, *, exclusive: bool = False) -> None:
    """Upload a file; the whole blob appears with the last request. Up to four blocks of 16 MiB are in memory.

    `FileExistsError`: a blob has that name, and `exclusive` is true.
    """
    store = filesystem(url, options)

    def upload() -> bool:
        return asyn.sync(store.loop, _upload_blob, store, url, file, exclusive)

    # When another upload of the same blob ends first, the store drops our blocks, and they are staged again.
    if not call(url, "write", upload):
        raise FileExistsError(url)
    store.invalidate_cache(url)


async def _upload_blob(store: Any, url: str, file: BinaryIO, exclusive: bool) -> bool:
    """Return False if `exclusive` is true and a blob of that name exists."""
    from azure.core.exceptions import HttpResponseError  # noqa: PLC0415 - comes with the extra
    from azure.storage.blob import BlobBlock  # noqa: PLC0415

    container, key, _ = store.split_path(url)
    mark = uuid.uuid4().hex
    names: list[str] = []
    block = max(_BLOCK, -(-file.seek(0, 2) // _MOST_BLOCKS))
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
    """Upload an object with one request up to 96 MiB, else as a multipart upload. It appears with the last request."""
    store = filesystem(url, options)
    call(url, "write", lambda: asyn.sync(store.loop, _upload_object, store, url, memoryview(data)))
    store.invalidate_cache(url)


async def _upload_object(store: Any, url: str, data: memoryview) -> None:
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

    await store.set_session()
    client = await store.get_s3(asked["Bucket"])
    send = getattr(client, method)

    logger.debug("CALL: %s - () - %s", method, asked)  # as s3fs logs every request

    async def attempt() -> Any:
        # A new body for each attempt: an earlier attempt has read the last one to its end.
        return await send(**store._get_s3_method_kwargs(send, **asked, Body=UploadBody(data)))  # noqa: SLF001

    answer = await _error_wrapper(attempt, retries=store.retries)
    return asked.get("PartNumber", 1), answer["ETag"]


class UploadBody:
    """Bytes in memory with the methods of a file that botocore needs.

    It is not a class of `io`, because aiobotocore wraps those in streams.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._place = 0

    def read(self, size: int | None = -1) -> memoryview:  # noqa: ARG002 - interface of a file
        """Return all remaining bytes, regardless of `size`, without a copy."""
        left = self.data[self._place :]
        self._place = len(self.data)
        return left

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, as in a file."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self.data)}[whence]
        return self._place

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._place


class _Sent(Payload):
    """Payload of aiohttp for an `UploadBody`. Each write sends all bytes from the first one, for retries."""

    _value: UploadBody

    def __init__(self, value: UploadBody, *args: Any, **kwargs: Any) -> None:
        super().__init__(value, *args, **kwargs)
        self._size = len(value.data)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value.data, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        data = self._value.data[:content_length]
        for start in range(0, len(data), _PIECE):
            await writer.write(data[start : start + _PIECE])


PAYLOAD_REGISTRY.register(_Sent, UploadBody)
