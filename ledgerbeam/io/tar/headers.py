"""Parse one tar member, its header and the extension headers before it; or scan a run of plain headers.

A scan finds the next header by the size in each header, read as plain octal, and checks all headers afterwards. It ends
before the first header that is not plain: an extension header, a link with a size, a base-256 size, a sparse file,
damage, or the end of the archive.

Sources: POSIX.1-2017 `pax` (ustar and pax formats) and the GNU tar manual, "Basic Tar Format". Ambiguous cases follow
Python's tarfile, except that damage is an error here, while tarfile silently ends the archive.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io import native

BLOCK = 512  # unit of a tar archive in bytes: the size of a header, and of the padding of payloads
REGULAR = b"0\x007S"  # type flags of files with content: file, file of old archives, contiguous file, GNU sparse file

_NO_DATA = b"123456"  # links, devices, folders and pipes: no payload follows, for any value of the size field
DIRECTORY = ord("5")
GNU_MAGIC = b"ustar  "

_EXTENSIONS = b"xXgLK"
_MOST_DIGITS = 19  # largest number of digits of a size; Python refuses to parse thousands of digits
_ADLER = 65521


class Member(NamedTuple):
    """A member of an archive."""

    header_offset: int  # first byte of its first header, extension headers included
    data_offset: int  # first byte of its payload
    size: int  # bytes of payload in the archive; for a sparse file less than its length
    kind: int  # type flag, as a byte; `5` also for folders of old archives
    name: str  # full path as in tarfile: UTF-8 with surrogate escapes, folders without trailing slash
    end: int  # first byte after the padded payload
    sparse: bool  # the stored payload is not the content of the file (GNU sparse, old or in pax)

    @property
    def regular(self) -> bool:
        """Whether the member is a file with content."""
        return self.kind in REGULAR


def padded(size: int) -> int:
    """Round a size in bytes up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def checksum(block: bytes) -> int:
    """Return the checksum that the header should contain, modulo 65521, since `zlib.adler32` computes it so."""
    total = zlib.adler32(block[156:], zlib.adler32(block[:148])) & 0xFFFF  # its lower half is 1 + the sum
    return (total + 255) % _ADLER  # the field itself counts as 8 spaces


def plain_file(block: bytes) -> tuple[int, bytes] | None:
    """Return the size of the payload and the raw name of a file, from its only header.

    None for any other block, such as an extension header; `next_member` parses these.
    """
    size, written = block[124:135], block[148:154]
    if block[156:157] != b"0" or block[345] or not size.isdigit() or not written.isdigit() or block[135] not in b"\0 ":
        return None
    try:
        if int(written, 8) % _ADLER != checksum(block):
            return None
        return int(size, 8), block[:100].partition(b"\0")[0]
    except ValueError:  # an 8 or a 9
        return None


def next_member(read: Callable[[int, int], bytes], position: int, url: str) -> Member | None:
    """Parse the headers of the member at a position; None at the end: a block of zeros, or no more bytes.

    `read(start, size)` returns bytes of the archive, fewer at its end. The position is 0, or the `end` of a member.
    ArchiveError: a header is invalid, or a global header sets the path or the size of members.
    """
    start = position
    values: dict[str, bytes] = {}
    extended = False
    while True:
        block = read(position, BLOCK)
        if not block.strip(b"\0"):
            if extended:
                raise ArchiveError(
                    f"{url}: expected a member after the extension header at byte {start}, found the end of the "
                    "archive; write it again"
                )
            return None
        _check(block, position, url)
        size = _number(block[124:136], position, url)
        kind = block[156]
        if kind not in _EXTENSIONS:
            return _member(read, block, size, (start, position), values, url=url)
        payload = read(position + BLOCK, size)
        if len(payload) < size:
            raise ArchiveError(
                f"{url}: the extension header at byte {position} is cut off: expected {size} bytes, found "
                f"{len(payload)}; write the archive again"
            )
        if kind in b"xX":
            values = _pax(payload, position, url) | values  # tarfile applies the outer header last
        elif kind == ord("L"):
            values = {"path": payload.partition(b"\0")[0]} | values
        extended = extended or kind != ord("g")
        if kind == ord("g"):
            for key in _pax(payload, position, url):
                if key in ("path", "size") or key.startswith("GNU.sparse."):
                    raise ArchiveError(
                        f"{url}: the global header at byte {position} sets {key!r} for all later members; expected it "
                        "in the header of each member, since members are also read alone. Write the archive again"
                    )
        position += BLOCK + padded(size)
        if kind == ord("g") and not extended:
            start = position


def _member(
    read: Callable[[int, int], bytes],
    block: bytes,
    size: int,
    offsets: tuple[int, int],
    values: Mapping[str, bytes],
    *,
    url: str,
) -> Member:
    start, position = offsets
    kind = block[156]
    sparse = kind == ord("S")
    data = position + BLOCK
    if sparse and block[482]:
        data = _after_sparse_headers(read, data, url)
    raw = block[:100].partition(b"\0")[0]
    if block[345] and kind != ord("S") and block[257:264] != GNU_MAGIC:
        raw = block[345:500].partition(b"\0")[0] + b"/" + raw
    if values:
        raw = values["path"].rstrip(b"/") if "path" in values else raw
        raw = values.get("GNU.sparse.name", raw)
        sparse = sparse or any(key.startswith("GNU.sparse.") for key in values)
        if "size" in values:
            size = _decimal(values["size"], position, url)
    if kind == 0 and raw.endswith(b"/"):
        kind = DIRECTORY
    if kind == DIRECTORY:
        raw = raw.rstrip(b"/")
    if kind in _NO_DATA:
        size = 0
    name = raw.decode("utf-8", "surrogateescape")
    return Member(start, data, size, kind, name, data + padded(size), sparse)


def _after_sparse_headers(read: Callable[[int, int], bytes], position: int, url: str) -> int:
    """Return the position after the blocks of an old GNU sparse map. Byte 504 of a block shows if another follows."""
    more = 1
    while more:
        block = read(position, BLOCK)
        if len(block) < BLOCK:
            raise ArchiveError(
                f"{url}: the map of a sparse member is cut off at byte {position}; write the archive again"
            )
        more = block[504]
        position += BLOCK
    return position


def _check(block: bytes, position: int, url: str) -> None:
    if len(block) < BLOCK:
        raise ArchiveError(
            f"{url}: the header at byte {position} is cut off: expected 512 bytes, found {len(block)}; the archive is "
            "truncated, write it again"
        )
    field = block[148:156]
    written = _field(field)
    if written >= 0 and written % _ADLER == checksum(block):
        return
    # Some old writers summed the bytes as signed.
    signed = 256 + sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:])
    if written != signed:
        raise ArchiveError(
            f"{url}: expected a tar header at byte {position}, found a block whose checksum {field!r} does not fit its "
            "bytes; the archive is damaged or not a tar, write it again"
        )


def _number(field: bytes, position: int, url: str) -> int:
    number = _field(field)
    if number < 0:
        raise ArchiveError(
            f"{url}: the header at byte {position} has the size {field!r}, which is no number; write the archive again"
        )
    return number


def _field(field: bytes) -> int:
    """Parse a number: octal text, or GNU's base-256, which sets the top bit of the first byte; -1 for other text."""
    if field[0] == 0o200:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0o377:
        return int.from_bytes(field, "big", signed=True)
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _decimal(value: bytes, position: int, url: str) -> int:
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise ArchiveError(
            f"{url}: the pax header before byte {position} has the invalid size {value!r}; write the archive again"
        )
    return int(value)


def _pax(payload: bytes, position: int, url: str) -> dict[str, bytes]:
    """Parse pax records: `<length> <key>=<value>` and a line feed each; the length includes everything."""
    values: dict[str, bytes] = {}
    at = 0
    while at < len(payload) and payload[at]:
        length, _, rest = payload[at : at + 24].partition(b" ")
        stop = at + int(length) if length.isdigit() and rest else at
        key, equals, value = payload[at + len(length) + 1 : stop].partition(b"=")
        if stop <= at or stop > len(payload) or not equals or not value.endswith(b"\n"):
            raise ArchiveError(
                f"{url}: the pax header before byte {position} has a malformed record at its byte {at}; "
                "write the archive again"
            )
        values[key.decode("utf-8", "surrogateescape")] = value[:-1]
        at = stop
    return values


PEEK = 2 * 1024  # bytes of a read that may contain more than one header
_BATCH = 1024
_FIRST_BATCH = 64


class Run(NamedTuple):
    """Consecutive plain headers with correct checksums."""

    blocks: NDArray[np.uint8]  # the headers, `(n, 512)`, u8; valid until the next scan
    sizes: NDArray[np.uint64]  # bytes of their payloads, u64
    complete: bool  # whether another scan may follow. If false, `next_member` must parse the next header.


class PlainHeaderScan:
    """Scans the plain headers of one archive in batches. The first batch is small, since many archives are short."""

    def __init__(self) -> None:
        self._room = _FIRST_BATCH
        self._headers = np.empty((0, BLOCK), np.uint8)

    def scan_file_headers(self, descriptor: int, position: int, peek: int) -> Run:
        """Scan the plain headers of a local file, from header to header.

        `peek` are the bytes of each read: 512, or `PEEK` if the next header is often within it.
        """
        if native.compiled is None:
            return self._scan_each(partial(os.pread, descriptor, BLOCK), position)
        return self._scan(native.compiled.scan_file_headers, descriptor, position, peek)

    def scan_bytes_headers(self, data: bytes, offset: int) -> Run:
        """Scan the plain headers of bytes from an offset on."""
        if native.compiled is None:
            return self._scan_each(lambda at: data[at : at + BLOCK], offset)
        return self._scan(native.compiled.scan_bytes_headers, data, offset)

    def _scan(self, scan: Callable[..., int], *where: Any) -> Run:
        room, self._room = self._room, _BATCH
        if len(self._headers) < room:  # reused, since new memory costs page faults
            self._headers = np.empty((room, BLOCK), np.uint8)
        headers, sizes = self._headers[:room], np.empty(room, np.uint64)
        count = scan(*where, headers, sizes)
        return Run(headers[:count], sizes[:count], count > 0)

    def _scan_each(self, read: Callable[[int], bytes], position: int) -> Run:
        headers: list[bytes] = []
        room, self._room = self._room, _BATCH
        # Anything unusual ends the scan; `next_member` reads it again and reports errors.
        with contextlib.suppress(ValueError, OSError):
            while len(headers) < room and len(header := read(position)) == BLOCK:
                position += (int(header[124:135], 8) + 1023) & -512
                headers.append(header)
        return _checked(headers)


@cache
def _tables() -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the values of octal digits; and for each type flag, whether it is plain, and whether it has no payload."""
    plain, empty = np.ones(256, np.bool_), np.zeros(256, np.bool_)
    plain[list(b"xXgLKS")] = False
    empty[list(_NO_DATA)] = True
    return 8 ** np.arange(10, -1, -1, dtype=np.uint64), plain, empty


def _checked(headers: list[bytes]) -> Run:
    """Return the headers up to the first one that is not plain or not correct."""
    octal, plain_kinds, empty_kinds = _tables()
    blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK)
    digits = blocks[:, 124:135] - np.uint8(ord("0"))
    ends = blocks[:, 135]
    plain = (digits < 8).all(1) & ((ends == 0) | (ends == ord(" ")))
    sizes = digits @ octal
    kinds = blocks[:, 156]
    plain &= plain_kinds[kinds] & ~(empty_kinds[kinds] & (sizes > 0))
    fields = blocks[:, 148:156]
    digits = fields[:, :6] - np.uint8(ord("0"))
    plain &= (digits < 8).all(1) & ((fields[:, 6] == 0) | (fields[:, 6] == ord(" ")))
    stated = digits @ octal[-6:]
    sums = blocks.sum(1, dtype=np.uint32) - fields.sum(1, dtype=np.uint32) + np.uint32(8 * ord(" "))
    plain &= stated == sums
    if plain.all():
        return Run(blocks, sizes, len(blocks) > 0)
    count = int(plain.argmin())
    return Run(blocks[:count], sizes[:count], False)
