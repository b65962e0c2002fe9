"""Walk over the headers of a tar archive without reading its payloads.

The size in each header leads to the next header. Runs of plain headers are scanned (`plain_headers`) and parsed as
arrays. `next_member` parses all others, one member at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.header_source import SMALL, HeaderSource, MemoryHeaders, open_headers
from ledgerbeam.io.tar.headers import BLOCK, DIRECTORY, GNU_MAGIC, REGULAR, Member, next_member
from ledgerbeam.io.tar.plain_headers import Run

_RECORD = 20 * BLOCK
_CALM = 16  # this many plain headers in a row end the parsing member by member
_DECIDE = 64  # members between two decisions on how to read
_FIRST_DECISION = 4
_TAIL = 1024 * 1024  # bytes read after the end of an archive: more than any padding


@dataclass(frozen=True, slots=True)
class TarMembers:
    """The members of an archive, in order, as columns of equal length.

    Attributes:
        header_offset: First byte of each member's first header, extension headers included; u64.
        data_offset: First byte of each payload; u64.
        size: Bytes of payload in the archive; u64. For a sparse file less than its length.
        kind: Type flags; u8. `0x30` and 0 are files, `0x35` folders.
        names: Full paths, UTF-8 with surrogate escapes; folders without trailing slash.
        end: First byte after the padded payload of the last member, where the end marker of the archive begins.
        consumed: How far lhotse reads: the end of the first block of zeros, rounded up to a multiple of 10,240 bytes,
            at most the size of the archive.
    """

    header_offset: NDArray[np.uint64]
    data_offset: NDArray[np.uint64]
    size: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    names: list[str]
    end: int
    consumed: int

    def __len__(self) -> int:
        return len(self.names)

    @property
    def regular(self) -> NDArray[np.bool_]:
        """Whether each member is a file with content."""
        return np.isin(self.kind, list(REGULAR))


def walk_tar(url: str, options: Options | None = None, listed: FileInfo | None = None) -> TarMembers:
    """Find all members of an archive.

    Supports ustar, pax, GNU and old archives. The archive ends at the first block of zeros, or at the end of the file
    if a member ends there. Only zeros may follow, as far as it is padded. Payloads are not read, but must exist.

    Args:
        url: The archive, uncompressed.
        options: Storage options.
        listed: The listed properties of the source; see `RangeReader`.

    Returns:
        The members.

    Raises:
        ArchiveError: The archive is empty, truncated or damaged, or something follows its end, such as another archive;
            the message names the member and the byte.
        ChangedSourceError: It changed since it was listed.
        SourceNotFoundError: There is no such source; also StorageError.
    """
    with open_headers(url, options, listed) as source:
        return _Walk(source, canonical_url(url)).run()


def walk_bytes(data: bytes, url: str) -> TarMembers:
    """Find all members of an archive in memory; see `walk_tar`.

    Args:
        data: The archive.
        url: Its name, for messages.
    """
    return _Walk(MemoryHeaders(data), url).run()


def walk_source(source: HeaderSource, url: str) -> TarMembers:
    """Find all members of an archive from a source of its headers; see `walk_tar`.

    Args:
        source: The headers.
        url: The archive, for messages.
    """
    return _Walk(source, url).run()


class _Walk:
    """One walk: the position and the columns so far."""

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
            self._decide()

    def _decide(self) -> None:
        """Report the distance of headers to the source from time to time."""
        count = len(self._names) - self._seen
        if count >= self._next_decision:
            self._source.moved((self._position - self._seen_at) / count, self._small / count)
            self._seen, self._seen_at, self._small, self._next_decision = len(self._names), self._position, 0, _DECIDE

    def _take(self, run: Run) -> None:
        """Add the members of a run."""
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
            f"{self._url}: member {name!r} at byte {header} is cut off: expected its payload to end at byte {stop} and "
            f"its block to be filled up, found the end of the archive at {self._source.size}; write it again"
        )

    def _finish(self) -> TarMembers:
        self._flush()
        self._check_tail()
        end = self._position
        consumed = min(self._source.size, -(-(end + BLOCK) // _RECORD) * _RECORD)
        empty = np.empty(0, np.uint64)
        columns = zip(*self._columns, strict=True) if self._columns else [[empty]] * 4
        header, data, size, kind = (np.concatenate(list(column)) for column in columns)
        return TarMembers(header, data, size, kind.astype(np.uint8), self._names, end, consumed)

    def _read(self, position: int, size: int) -> bytes:
        self._asked = position
        return self._source.read(position, size)

    def _check_tail(self) -> None:
        """Refuse what follows the end, which other programs pass over: `cat` puts an archive there."""
        end = self._asked  # behind global headers, which are no members
        tail = self._source.read(end, min(_TAIL, self._source.size - end))
        zeros = len(tail) - len(tail.lstrip(b"\0"))
        if zeros < len(tail):
            raise ArchiveError(
                f"{self._url}: the archive ends at byte {end}, and something follows its end marker at byte "
                f"{end + zeros}; expected zeros only. Of archives that were joined with cat only the first is read: "
                "join them with 'tar --concatenate', or keep them apart. If it is nothing that you need, cut it off: "
                f"truncate --size {end + 2 * BLOCK} FILE"
            )


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
