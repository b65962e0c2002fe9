"""Scan a run of plain tar headers; the size of each payload leads to the next header.

Each size is read as plain octal, and the headers are checked afterwards. A scan ends before the first header that is
not plain: an extension header, a link with a size, a base-256 size, a sparse file, damage, the end of the archive.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from typing import NamedTuple

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io import native
from ledgerbeam.io.tar.headers import BLOCK, NO_DATA

PEEK = 2 * 1024
"""Bytes of a read that may contain more than one header."""

_BATCH = 1024
_FIRST_BATCH = 64


class Run(NamedTuple):
    """Consecutive plain headers with correct checksums.

    Attributes:
        blocks: The headers, `(n, 512)`, u8; valid until the next scan.
        sizes: Bytes of their payloads, u64.
        complete: Whether another scan may follow. If false, `next_member` must parse the next header.
    """

    blocks: NDArray[np.uint8]
    sizes: NDArray[np.uint64]
    complete: bool


class PlainHeaderScan:
    """Scans the plain headers of one archive in batches. The first batch is small, since many archives are short."""

    def __init__(self) -> None:
        self._room = _FIRST_BATCH
        self._headers = np.empty((0, BLOCK), np.uint8)

    def scan_file_headers(self, descriptor: int, position: int, peek: int) -> Run:
        """Scan the plain headers of a local file, from header to header.

        Args:
            descriptor: The open file.
            position: Offset of the first header.
            peek: Bytes of each read: 512, or `PEEK` if the next header is often within it.
        """
        room = self._next_room()
        if native.compiled is None:
            return _checked(_scan_file(descriptor, position, room))
        headers, sizes = self._arrays(room)
        count = native.compiled.scan_file_headers(descriptor, position, peek, headers, sizes)
        return Run(headers[:count], sizes[:count], count > 0)

    def scan_bytes_headers(self, data: bytes, offset: int) -> Run:
        """Scan the plain headers of bytes from an offset on."""
        room = self._next_room()
        if native.compiled is None:
            return _checked(_scan_bytes(data, offset, room))
        headers, sizes = self._arrays(room)
        count = native.compiled.scan_bytes_headers(data, offset, headers, sizes)
        return Run(headers[:count], sizes[:count], count > 0)

    def _next_room(self) -> int:
        room, self._room = self._room, _BATCH
        return room

    def _arrays(self, room: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        if len(self._headers) < room:  # reused, since new memory costs page faults
            self._headers = np.empty((room, BLOCK), np.uint8)
        return self._headers[:room], np.empty(room, np.uint64)


def _scan_file(descriptor: int, position: int, count: int) -> list[bytes]:
    headers: list[bytes] = []
    pread, add = os.pread, headers.append
    # Anything unusual ends the scan; `next_member` reads it again and reports errors.
    with contextlib.suppress(ValueError, OSError):
        for _ in range(count):
            header = pread(descriptor, BLOCK, position)
            position += (int(header[124:135], 8) + 1023) & -512
            add(header)
    if headers and len(headers[-1]) < BLOCK:
        headers.pop()
    return headers


def _scan_bytes(data: bytes, offset: int, count: int) -> list[bytes]:
    headers: list[bytes] = []
    add, last = headers.append, len(data) - BLOCK
    with contextlib.suppress(ValueError):
        while 0 <= offset <= last and len(headers) < count:
            header = data[offset : offset + BLOCK]
            offset += (int(header[124:135], 8) + 1023) & -512
            add(header)
    return headers


class _HeaderTables(NamedTuple):
    """The values of octal digits, and, by kind of member, whether it is plain, and whether it has no payload."""

    octal: NDArray[np.uint64]
    plain: NDArray[np.bool_]
    empty: NDArray[np.bool_]


@cache
def _tables() -> _HeaderTables:
    plain, empty = np.ones(256, np.bool_), np.zeros(256, np.bool_)
    plain[list(b"xXgLKS")] = False
    empty[list(NO_DATA)] = True
    return _HeaderTables(8 ** np.arange(10, -1, -1, dtype=np.uint64), plain, empty)


def _checked(headers: list[bytes]) -> Run:
    """Return the leading headers that are plain and correct."""
    tables = _tables()
    blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK)
    digits = blocks[:, 124:135] - np.uint8(ord("0"))
    ends = blocks[:, 135]
    plain = (digits < 8).all(1) & ((ends == 0) | (ends == ord(" ")))
    sizes = digits @ tables.octal
    kinds = blocks[:, 156]
    plain &= tables.plain[kinds] & ~(tables.empty[kinds] & (sizes > 0))
    fields = blocks[:, 148:156]
    digits = fields[:, :6] - np.uint8(ord("0"))
    plain &= (digits < 8).all(1) & ((fields[:, 6] == 0) | (fields[:, 6] == ord(" ")))
    stated = digits @ tables.octal[-6:]
    sums = blocks.sum(1, dtype=np.uint32) - fields.sum(1, dtype=np.uint32) + np.uint32(8 * ord(" "))
    plain &= stated == sums
    if plain.all():
        return Run(blocks, sizes, len(blocks) > 0)
    count = int(plain.argmin())
    return Run(blocks[:count], sizes[:count], False)
