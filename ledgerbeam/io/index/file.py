"""The `.idx` container: where every record of a source begins.

A flat array of little-endian u64 byte offsets, `N + 1` for `N` records: record `i` is `[offset[i], offset[i + 1])`, the
last entry is a sentinel. No magic, no header: the layout is that of lhotse 2.0 (`lhotse.indexing`) and of Energon's
`.tar.idx`, so a file is recognised only by how it fits its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import ArchiveError, IndexMismatchError, IndexNotFoundError, SourceNotFoundError, StorageError
from ledgerbeam.io.compression.content import ContentReader, is_older, open_content
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.headers import next_member

__all__ = ["LAST_OFFSET", "IndexFile", "Kind", "Offsets", "check_index", "check_offsets", "index_bytes", "write_index"]

Offsets: TypeAlias = NDArray[np.uint64]
"""Byte offsets of `N` records and a sentinel: shape `(N + 1,)`, u64, increasing."""

Kind: TypeAlias = Literal["jsonl", "tar"]
"""What an index addresses: lines, or samples of a tar archive."""

LAST_OFFSET = 2**63 - 1
"""The end of the largest file that there can be, in bytes."""

_ENTRY = 8
_BLOCK = 512


def index_bytes(offsets: Offsets) -> bytes:
    """Returns the content of an index file."""
    return np.ascontiguousarray(offsets, dtype="<u8").tobytes()


def write_index(url: str, offsets: Offsets, options: Options | None = None, *, not_before_ns: int = 0) -> None:
    """Publishes an index atomically.

    Args:
        url: Where the index goes, usually `<source>.idx`.
        offsets: `N + 1` offsets in bytes.
        options: Storage options.
        not_before_ns: Time of modification of the source, which may lie ahead of the clock: a local index is not older.

    Raises:
        DiskFullError: No space is left; nothing was published.
        StorageError: No permission, or the store refused.
    """
    with publish(url, options, not_before_ns=not_before_ns) as file:
        file.write(index_bytes(offsets))


class IndexFile:
    """An index that lies in a store. Nothing is read before it is asked for.

    May be pickled, shared by threads and carried through a fork.

    Args:
        url: Where the index lies.
        options: Storage options.
        source: The URL it belongs to, for messages. Default: `url` without `.idx`.
    """

    __slots__ = ("_info", "_reader", "options", "source", "url")

    def __init__(self, url: str, options: Options | None = None, *, source: str | None = None) -> None:
        self.url = canonical_url(url)
        self.options = options
        self.source = source if source is not None else self.url.removesuffix(".idx")
        self._reader = RangeReader(self.url, options)
        self._info: FileInfo | None = None

    def __repr__(self) -> str:
        return f"IndexFile({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.url, self.options, self.source)

    @property
    def info(self) -> FileInfo:
        """Size and time of modification; asked once.

        Raises:
            IndexNotFoundError: There is no such file.
        """
        if self._info is None:
            try:
                self._info = stat(self.url, self.options)
            except SourceNotFoundError as error:
                raise self._missing() from error
        return self._info

    @property
    def count(self) -> int:
        """Number of records.

        Raises:
            IndexNotFoundError: There is no such file.
            IndexMismatchError: It is empty or not a whole number of entries.
        """
        size = self.info.size
        if size == 0:
            raise self.mismatch("expected at least 8 bytes, found an empty file")
        if size % _ENTRY:
            raise self.mismatch(f"expected a multiple of 8 bytes, found {size}")
        return size // _ENTRY - 1

    def load(self) -> Offsets:
        """Reads all offsets: 8 bytes of memory a record. Their order is not judged; see `check_offsets`.

        Returns:
            Shape `(N + 1,)`, u64, read-only.

        Raises:
            IndexNotFoundError: There is no such file; IndexMismatchError as in `count`.
        """
        return self.slice(0, self.count)

    def slice(self, start: int, stop: int) -> Offsets:
        """Reads the offsets of the records `[start, stop)` and the end of the last: one ranged read.

        Args:
            start: First record, `0 <= start`.
            stop: End of the records, exclusive, `start <= stop <= N`.

        Returns:
            Shape `(stop - start + 1,)`, u64, read-only.

        Raises:
            IndexNotFoundError: There is no such file.
            IndexMismatchError: It has fewer records.
        """
        try:
            data = self._reader.read(start * _ENTRY, (stop + 1) * _ENTRY)
        except SourceNotFoundError as error:
            raise self._missing() from error
        except StorageError as error:
            if self.info.size < (stop + 1) * _ENTRY:
                raise self.mismatch(f"expected at least {stop} records, found {self.info.size} bytes") from error
            raise
        return np.frombuffer(data, "<u8")

    def ranges(self, records: NDArray[np.int64]) -> tuple[Offsets, Offsets, Offsets]:
        """Reads where some records begin and end, without the rest of the index; neighbours share a request.

        Args:
            records: Their numbers, `0 <= record < N`, in any order.

        Returns:
            First bytes of the records before them (of record 0: 0), first bytes and ends, shape `(n,)` each, u64.

        Raises:
            IndexNotFoundError: There is no such file; also the errors of `RangeReader.read_many`.
        """
        try:
            found = self._reader.read_many(np.maximum(records - 1, 0) * _ENTRY, (records + 2) * _ENTRY)
        except SourceNotFoundError as error:
            raise self._missing() from error
        return three_columns(found)

    def first_and_last(self) -> tuple[int, int, int]:
        """Reads the first offset, the last record's and the sentinel; without records all three are the sentinel."""
        count = self.count
        last = max(0, count - 1) * _ENTRY
        head, tail = self._reader.read_many([0, last], [_ENTRY, self.info.size])
        ends = np.frombuffer(tail, "<u8")
        return int.from_bytes(head, "little"), int(ends[0]), int(ends[-1])

    def close(self) -> None:
        """Closes the file, if it is open; a later read opens it again."""
        self._reader.close()

    def mismatch(self, what: str) -> IndexMismatchError:
        """Words an error that names index, source and remedy."""
        return IndexMismatchError(
            f"{self.url} does not fit {self.source}: {what}{self._text_hint()}. Rebuild it: ledgerbeam index --force "
            f"{self.source}"
        )

    def _missing(self) -> IndexNotFoundError:
        return IndexNotFoundError(
            f"{self.source} has no index: expected {self.url}. Build it: ledgerbeam index {self.source}"
        )

    def _text_hint(self) -> str:
        """Recognises the decimal text that lhotse's StatelessSampler writes under the same name."""
        head = self._reader.read(0, min(64, self.info.size))
        if not head or head.strip(b"0123456789\r\n"):
            return ""
        return " (decimal text, as lhotse's StatelessSampler writes it; not a binary index)"


def three_columns(entries: Sequence[bytes]) -> tuple[Offsets, Offsets, Offsets]:
    """Parts runs of three entries each, or of two, which have a 0 put before them."""
    rows = np.frombuffer(b"".join(data.rjust(3 * _ENTRY, b"\0") for data in entries), "<u8").reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _restore(url: str, options: Options | None, source: str) -> IndexFile:
    return IndexFile(url, options, source=source)


def check_index(
    index: IndexFile, source: FileInfo, kind: Kind, *, deep: bool = False, content: RangeReader | None = None
) -> None:
    """Checks that an index fits its source.

    Without `deep`: size, first offset, sentinel and age; two requests, for tar one more to see the end of the archive.
    With it, all offsets are read and judged too.

    Args:
        index: The index.
        source: What the store says of the source.
        kind: What the index addresses.
        deep: Also run `check_offsets` on all of it: O(N).
        content: What reads the source, if there is a reader already.

    Raises:
        IndexNotFoundError: There is no index, or no seek points of a gzip file.
        IndexMismatchError: It is empty, not a whole number of entries, decimal text, older than its source, or its
            offsets cannot be those of this source.
    """
    first, last, sentinel = index.first_and_last()
    if is_older(index.info, source):
        seconds = (source.modified_ns - index.info.modified_ns) / 1e9
        raise index.mismatch(f"expected it to be newer than its source, found it {seconds:.3f} s older")
    with open_content(source.url, index.url, index.options, source.size) as opened:
        reader = opened if content is None else content
        if isinstance(reader, ContentReader):
            reader.check(source)
        if kind == "jsonl":
            _check_jsonl_ends(index, first, sentinel, reader.size)
        elif index.count:
            _check_tar_ends(index, first, last, sentinel, reader)
    if deep:
        check_offsets(index.load(), index, kind)


def _check_jsonl_ends(index: IndexFile, first: int, sentinel: int, size: int) -> None:
    if first != 0:
        raise index.mismatch(f"expected the first record at byte 0, found {first}")
    if sentinel != size:
        raise index.mismatch(f"expected the last offset to be the size of the source, {size}, found {sentinel}")


def _check_tar_ends(index: IndexFile, first: int, last: int, sentinel: int, source: RangeReader) -> None:
    if first % _BLOCK:
        raise index.mismatch(f"expected the first sample at a multiple of 512, found byte {first}")
    if sentinel > source.size or last >= source.size:
        raise index.mismatch(
            f"expected offsets up to the size of the source, {source.size}, found {max(last, sentinel)}"
        )
    if sentinel <= last:
        raise index.mismatch(f"expected the end of the last sample after its start at {last}, found {sentinel}")
    # A sentinel stands before the zeros that end an archive (Energon) or among or after them (lhotse).
    around = source.read(sentinel - min(sentinel, _BLOCK), min(sentinel + _BLOCK, source.size))
    if sentinel < source.size and any(around[_BLOCK:]):
        begin = sentinel if any(around[:_BLOCK]) else last  # zeros before it may be a payload's
        try:
            members = _count_members(source, begin, sentinel)
        except ArchiveError as error:
            raise index.mismatch(f"expected the end of the archive at byte {sentinel}: {error}") from error
        if members:
            raise index.mismatch(f"expected the end of the archive at byte {sentinel}, found more members")


def _count_members(source: RangeReader, position: int, sentinel: int) -> int:
    """Counts the members from a place on that begin at a sentinel or after it."""
    defaults: dict[str, bytes] = {}
    while member := next_member(
        lambda place, size: source.read(min(place, source.size), min(place + size, source.size)),
        position,
        defaults,
        source.url,
    ):
        if member.end > sentinel:
            return 1
        position = member.end
    return 0


def check_offsets(offsets: Offsets, index: IndexFile, kind: Kind, *, first_record: int = 0) -> None:
    """Checks the order of offsets, and for tar that samples begin at multiples of 512: O(N).

    Args:
        offsets: All of an index or a slice of it, shape `(n + 1,)`.
        index: Where they come from, for the message.
        kind: What they address.
        first_record: The number of the first record in `offsets`, for the message.

    Raises:
        IndexMismatchError: An offset does not lie after the one before it, is not aligned, or beyond any file.
    """
    wrong = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if len(wrong):
        at = int(wrong[0])
        raise index.mismatch(
            f"expected increasing offsets, found record {first_record + at} at byte {offsets[at]} and the next at "
            f"{offsets[at + 1]}"
        )
    if len(offsets) and int(offsets[-1]) > LAST_OFFSET:
        raise index.mismatch(
            f"expected offsets of at most {LAST_OFFSET}, found the end of record {first_record + len(offsets) - 2} at "
            f"byte {offsets[-1]}"
        )
    if kind == "tar":
        wrong = np.flatnonzero(offsets[:-1] % np.uint64(_BLOCK))
        if len(wrong):
            at = int(wrong[0])
            raise index.mismatch(
                f"expected samples at multiples of 512, found sample {first_record + at} at byte {offsets[at]}"
            )
