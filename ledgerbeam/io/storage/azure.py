"""Upload large blobs to Azure: stage the blocks, then commit all of them with one request.

adlfs and the SDK name a block only by its position. Two concurrent writers of one blob, such as two attempts of a task,
would replace each other's blocks, and the blob could become a mixture of both. Here each upload has its own names.
"""

from __future__ import annotations

import uuid
from typing import Any, BinaryIO

from ledgerbeam.io.storage.client import Options, call, filesystem, http_status

_BLOCK = 16 * 1024 * 1024
_MOST_BLOCKS = 50_000  # in one blob
_SIDE_BY_SIDE = 4
_EXISTS = frozenset({409, 412})  # HTTP status when the blob must be new and is not


def upload_blocks(url: str, file: BinaryIO, options: Options | None = None, *, exclusive: bool = False) -> None:
    """Upload a file; the whole blob appears with the last request. Up to four blocks of 16 MiB are held in memory.

    Args:
        url: URL of the blob.
        file: Read from its beginning.
        options: Storage options.
        exclusive: Whether to fail if a blob has that name already.

    Raises:
        FileExistsError: A blob has that name, and `exclusive` is true.
        StorageError: There is no such container, or the store refused.
    """
    from fsspec import asyn  # noqa: PLC0415 - a job on local files needs no event loop

    store = filesystem(url, options)

    def upload() -> bool:
        return asyn.sync(store.loop, _upload, store, url, file, exclusive)

    # When another upload of the same blob ends first, the store drops our blocks, and they are staged again.
    if not call(url, "write", upload):
        raise FileExistsError(url)
    store.invalidate_cache(url)


async def _upload(store: Any, url: str, file: BinaryIO, exclusive: bool) -> bool:
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
