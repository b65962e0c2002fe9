"""Walk over the headers of a tar archive in memory or in a store, without reading its payloads.

The size in each header leads to the next header. Runs of plain headers are scanned (`PlainHeaderScan`) and parsed as
arrays. `next_member` parses all others, one member at a time. If members are large, each header is a short read. If
they are small, reading everything in large blocks costs less than a system call or a request for each header.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_local
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.headers import (
    BLOCK,
    DIRECTORY,
    GNU_MAGIC,
    PEEK,
    REGULAR,
    Member,
    PlainHeaderScan,
    Run,
    next_member,
)

_FIRST_REQUEST = 1024 * 1024
SMALL = PEEK - 2 * BLOCK  # a payload of this size can be read together with the next header in one short read
_MIXED = 0.25
# The largest mean distance of headers for which blocks are read, and the size of a block.
_LOCAL = (8 * 1024, 256 * 1024)
_REMOTE = (4 * 1024 * 1024, 8 * 1024 * 1024)
_REQUESTS_AHEAD = 4


class HeaderSource(ABC):
    """The bytes of an archive for a walk over its headers."""

    size: int

    @abstractmethod
    def read(self, position: int, size: int) -> bytes:
        """Read bytes near the position of the walk; fewer at the end of the archive."""

    @abstractmethod
    def headers(self, position: int) -> Run:
        """Scan the plain headers from `position` on, as many as can be read cheaply."""

    def moved(self, distance: float, small: float) -> None:  # noqa: B027 - some have only one way to read
        """Choose how to read from here on: in blocks, or each header by itself.

        `distance` is the mean distance of the last headers in bytes, `small` the share of them with at most `SMALL`
        bytes of payload.
        """


class _MemoryHeaders(HeaderSource):
    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data
        self._scan = PlainHeaderScan()

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]

    def headers(self, position: int) -> Run:
        return self._scan.scan_bytes_headers(self._data, position)


class _StoredHeaders(HeaderSource):
    """An archive in a store; it has a descriptor if it is local."""

    def __init__(self, reader: RangeReader, descriptor: int | None) -> None:
        self.size = reader.size
        self._reader = reader
        self._descriptor = descriptor
        self._scan = PlainHeaderScan()
        self._peek = BLOCK
        self._near, self._step = _LOCAL
        self._ahead = 0
        self._blocks: _Blocks | None = None
        if descriptor is None:
            (self._near, self._step), self._ahead = _REMOTE, _REQUESTS_AHEAD
            self._blocks = _Blocks(reader, _FIRST_REQUEST, 0)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes from the current block if it contains them, else from the store."""
        if self._blocks is not None:
            data = self._blocks.take(position, size)
            if data is not None:
                return data
        # A damaged header can contain any size.
        stop = min(position + size, self.size)
        if self._descriptor is not None:
            return os.pread(self._descriptor, max(0, stop - position), position)
        return self._reader.read(min(position, stop), stop)

    def headers(self, position: int) -> Run:
        """Scan the plain headers in the current block, or in the local file."""
        if self._blocks is not None:
            return self._scan.scan_bytes_headers(*self._blocks.at(position))
        if self._descriptor is None:
            return self._scan.scan_bytes_headers(b"", 0)
        return self._scan.scan_file_headers(self._descriptor, position, self._peek)

    def moved(self, distance: float, small: float) -> None:
        """Read in blocks while headers are close together, else each header by itself."""
        self._peek = PEEK if small > _MIXED else BLOCK
        if distance > self._near:
            self.close()
        elif self._blocks is None or self._blocks.step != self._step:
            self.close()
            self._blocks = _Blocks(self._reader, self._step, self._ahead)

    def close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
        self._blocks = None


class _Blocks:
    """The current block of an archive, for reads from front to back. The next blocks are read in advance."""

    def __init__(self, reader: RangeReader, step: int, ahead: int) -> None:
        self.step = step
        self._reader = reader
        self._ahead = ahead
        self._base, self._block = 0, b""
        self._coming: Generator[bytes] | None = None
        self._reach = 0  # from here on a new start costs less than reading up to it

    def take(self, position: int, size: int) -> bytes | None:
        """Return bytes if the block at `position` contains all of them, else None."""
        block, offset = self.at(position)
        return block[offset : offset + size] if offset + size <= len(block) else None

    def close(self) -> None:
        if self._coming is not None:
            self._coming.close()

    def at(self, position: int) -> tuple[bytes, int]:
        """Return the block that contains `position`, and the offset of `position` in it; no bytes past the end."""
        while not self._base <= position < self._base + len(self._block):
            if self._coming is None or not self._base <= position < self._reach:
                self.close()
                self._coming = self._reader.blocks(self.step, self._ahead, start=position)
                self._base, self._block = position, b""
            self._base += len(self._block)
            self._block = next(self._coming, b"")
            self._reach = self._base + (self._ahead + 2) * self.step
            if not self._block:
                self._base = position
                break
        return self._block, position - self._base


_RECORD = 20 * BLOCK
_CALM = 16  # this many plain headers in a row end the parsing member by member
_DECIDE = 64  # members between two decisions on how to read
_FIRST_DECISION = 4
_TAIL = 1024 * 1024  # bytes read after the end of an archive: more than any padding


@dataclass(frozen=True, slots=True)
class TarMembers:
    """The members of an archive, in order, as columns of equal length."""

    header_offset: NDArray[np.uint64]  # first byte of each member's first header, extension headers included; u64
    data_offset: NDArray[np.uint64]  # first byte of each payload; u64
    size: NDArray[np.uint64]  # bytes of payload in the archive; u64. For a sparse file less than its length.
    kind: NDArray[np.uint8]  # type flags; u8. `0x30` and 0 are files, `0x35` folders.
    names: list[str]  # full paths, UTF-8 with surrogate escapes; folders without trailing slash
    end: int  # first byte after the padded payload of the last member, where the end marker of the archive begins
    consumed: int  # how far lhotse reads: past the first block of zeros, to a multiple of 10,240 or the size

    def __len__(self) -> int:
        return len(self.names)

    @property
    def regular(self) -> NDArray[np.bool_]:
        """Whether each member is a file with content."""
        return np.isin(self.kind, list(REGULAR))


def walk_tar(url: str, options: Options | None = None, listed: FileInfo | None = None) -> TarMembers:
    """Find all members of an uncompressed archive.

    Supports ustar, pax, GNU and old archives. The archive ends at the first block of zeros, or at the end of the file
    if a member ends there. Only zeros, its padding, may follow. Payloads are not read, but must be in the file.

    Raises:
        ArchiveError: The archive is empty, truncated or damaged, or something follows its end, such as another archive;
            the message names the member and the byte.
        ChangedSourceError: The archive changed since it was listed.
        SourceNotFoundError: The archive does not exist; also StorageError.
    """
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(RangeReader(url, options, listed=listed))
        path = reader.local_path
        source = _StoredHeaders(reader, None if path is None else stack.enter_context(open_local(path, listed)))
        stack.callback(source.close)
        return walk_source(source, canonical_url(url))


def walk_bytes(data: bytes, url: str) -> TarMembers:
    """Find all members of an archive in memory; see `walk_tar`."""
    return walk_source(_MemoryHeaders(data), url)


def walk_source(source: HeaderSource, url: str) -> TarMembers:
    """Find all members of an archive from a source of its headers; see `walk_tar`."""
    return _Walk(source, url).run()


class _Walk:
    def __init__(self, source: HeaderSource, url: str) -> None:
        self._source = source
        self._url = url
        self._position = 0
        self._asked = 0
        self._names: list[str] = []
        self._columns: list[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]] = []
        self._single: list[Member] = []
        self._seen, self._seen_at, self._small = 0, 0, 0
        self._next_decision = _FIRST_DECISION

    def run(self) -> TarMembers:
        source = self._source
        if not source.size:
            raise ArchiveError(f"{self._url}: expected a tar archive, found an empty file; write it again")
        unusual = 0  # while positive, members are parsed one by one
        while True:
            if unusual <= 0:
                run = source.headers(self._position)
                complete = run.complete
                if len(run.sizes):
                    self._take(run)
            else:
                complete = False
            if not complete:
                member = next_member(self._read, self._position, self._url)
                if member is None:
                    return self._finish()
                self._add(member)
                unusual = unusual - 1 if member.data_offset == member.header_offset + BLOCK else _CALM
            count = len(self._names) - self._seen
            if count >= self._next_decision:
                source.moved((self._position - self._seen_at) / count, self._small / count)
                self._seen, self._seen_at, self._small = len(self._names), self._position, 0
                self._next_decision = _DECIDE

    def _take(self, run: Run) -> None:
        blocks, sizes, _ = run
        ends = np.cumsum((sizes + np.uint64(2 * BLOCK - 1)) & ~np.uint64(BLOCK - 1)) + np.uint64(self._position)
        starts = np.concatenate((np.array([self._position], np.uint64), ends[:-1]))
        kinds = blocks[:, 156].copy()
        names = _plain_names(blocks, kinds)
        self._flush()
        self._columns.append((starts, starts + np.uint64(BLOCK), sizes, kinds))
        self._names += names
        self._small += int(np.count_nonzero(sizes <= SMALL))
        self._position = int(ends[-1])
        if self._position > self._source.size:
            self._cut_off(names[-1], int(starts[-1]), int(starts[-1]) + BLOCK + int(sizes[-1]))

    def _add(self, member: Member) -> None:
        if member.end > self._source.size:
            self._cut_off(member.name, member.header_offset, member.data_offset + member.size)
        self._single.append(member)
        self._names.append(member.name)
        self._small += member.size <= SMALL
        self._position = member.end

    def _flush(self) -> None:
        if self._single:
            rows = np.array([member[:4] for member in self._single], np.uint64).T
            self._columns.append((rows[0], rows[1], rows[2], rows[3].astype(np.uint8)))
            self._single = []

    def _cut_off(self, name: str, header: int, stop: int) -> None:
        raise ArchiveError(
            f"{self._url}: member {name!r} at byte {header} is cut off: expected its payload to end at byte {stop}, "
            f"then padding to a whole block, found the end of the archive at {self._source.size}; write it again"
        )

    def _finish(self) -> TarMembers:
        self._flush()
        end = self._asked  # behind global headers, which are no members
        tail = self._source.read(end, min(_TAIL, self._source.size - end))
        zeros = len(tail) - len(tail.lstrip(b"\0"))
        if zeros < len(tail):  # other programs ignore them
            raise ArchiveError(
                f"{self._url}: the archive ends at byte {end}, and something follows its end marker at byte "
                f"{end + zeros}; expected only zeros. If archives were joined with cat, only the first is read: join "
                "them with 'tar --concatenate', or keep them apart. If you do not need these bytes, cut them off: "
                f"truncate --size {end + 2 * BLOCK} FILE"
            )
        end = self._position
        consumed = min(self._source.size, -(-(end + BLOCK) // _RECORD) * _RECORD)
        empty = np.empty(0, np.uint64)
        columns = zip(*self._columns, strict=True) if self._columns else [[empty]] * 4
        header, data, size, kind = (np.concatenate(list(column)) for column in columns)
        return TarMembers(header, data, size, kind.astype(np.uint8), self._names, end, consumed)

    def _read(self, position: int, size: int) -> bytes:
        self._asked = position
        return self._source.read(position, size)


def _plain_names(blocks: NDArray[np.uint8], kinds: NDArray[np.uint8]) -> list[str]:
    """Return the names of plain headers; set the kind of folders of old archives to `5`."""
    raw: list[bytes] = np.ascontiguousarray(blocks[:, :100]).view("S100").ravel().tolist()
    prefixed = blocks[:, 345] != 0
    if prefixed.any():
        prefixed &= (blocks[:, 257:264] != np.frombuffer(GNU_MAGIC, np.uint8)).any(1)
        for row in prefixed.nonzero()[0].tolist():
            prefix = blocks[row, 345:500].tobytes().partition(b"\0")[0]
            raw[row] = prefix + b"/" + raw[row].partition(b"\0")[0]
    names = b"\0".join(raw).decode("utf-8", "surrogateescape").split("\0")
    if len(names) != len(raw):  # bytes follow the terminator of a name
        names = [name.partition(b"\0")[0].decode("utf-8", "surrogateescape") for name in raw]
    for row in ((kinds == 0) | (kinds == DIRECTORY)).nonzero()[0].tolist():
        if kinds[row] == 0 and names[row].endswith("/"):
            kinds[row] = DIRECTORY
        if kinds[row] == DIRECTORY:
            names[row] = names[row].rstrip("/")
    return names
