"""The body of an upload as the clients of S3 take it: a file of bytes that lie in memory.

botocore hashes a file by pieces of 1 MB, each of which is copied, and aiohttp would have each 64 kB of it read by
another thread. Where a thread is at work that does not wait, each piece hands the interpreter over twice: the upload of
16 MB takes twice as long. So botocore is given all that is left as one piece, and aiohttp is told how to send it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aiohttp.payload import PAYLOAD_REGISTRY, Payload

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter


_PIECE = 1 << 20


class UploadBody:
    """Bytes in memory, with what botocore asks of a file. It is none of `io`, of which aiobotocore makes streams.

    Args:
        data: The bytes.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._place = 0

    def read(self, size: int | None = -1) -> memoryview:  # noqa: ARG002 - of a file, which comes by pieces
        """Return all bytes that are left, however many are asked for: they are copied nowhere."""
        left = self.data[self._place :]
        self._place = len(self.data)
        return left

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, as in a file."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self.data)}[whence]
        return self._place

    def tell(self) -> int:
        """Return the place at which the next bytes are read."""
        return self._place


class _Sent(Payload):
    """An `UploadBody` on its way: always all of it, whatever was read, so that it may be sent again."""

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
