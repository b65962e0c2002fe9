"""The body of an upload for the clients of S3: a file object over bytes in memory.

botocore hashes a file in pieces of 1 MB and copies each one. aiohttp reads each 64 kB of a file in another thread. If a
thread computes meanwhile, each piece switches threads twice, and an upload of 16 MB takes twice as long. So `read`
returns all remaining bytes as one piece, and a payload class for aiohttp sends them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aiohttp.payload import PAYLOAD_REGISTRY, Payload

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter


_PIECE = 1 << 20


class UploadBody:
    """Bytes in memory with the methods of a file that botocore needs.

    It is not a class of `io`, because aiobotocore wraps those in streams.

    Args:
        data: The bytes.
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
    """Payload of aiohttp for an `UploadBody`. It sends all bytes, also if some were read, so that it can be resent."""

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
