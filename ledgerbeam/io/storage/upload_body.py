"""The body of an upload as the clients of S3 take it: a file of bytes that lie in memory.

botocore hashes a file piece by piece and copies no more than a piece. aiohttp would have each 64 kB of a file read by
another thread, and where a thread is at work that does not wait, each of these hands the interpreter over twice: the
upload of 16 MB takes twice as long. So aiohttp is told how such a body is sent.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aiohttp.payload import PAYLOAD_REGISTRY, Payload

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

__all__ = ["UploadBody"]

_PIECE = 1 << 20


class UploadBody:
    """Bytes in memory, with what botocore asks of a file. It is none of `io`, of which aiobotocore makes streams.

    Args:
        data: The bytes.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._place = 0

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, up to `size`; all that are left if it is None or negative."""
        stop = len(self.data) if size is None or size < 0 else self._place + size
        some = bytes(self.data[self._place : stop])
        self._place += len(some)
        return some

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
