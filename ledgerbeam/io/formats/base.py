"""Base classes of formats with an index of offsets, and the search for the ends of records.

A new format derives from `RecordFormat` and defines a name, suffixes and three methods: see docs/own-format.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError, LedgerbeamError, RecordError, UsageError
from ledgerbeam.io.compression.streams import Stream, decompressed
from ledgerbeam.io.formats.format import Reader, ShardFile, StreamedRecords, StreamSpan
from ledgerbeam.io.index.file import IndexFile, IndexLocation, Offsets, RecordLayout, check_index, index_bytes
from ledgerbeam.io.index.newlines import build_jsonl_index, line_ends
from ledgerbeam.io.index.reader import IndexedRecords, RawRecord, raw_records
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import require_head
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url

FindEnds: TypeAlias = "Callable[[Iterable[bytes]], Iterator[Sequence[int] | NDArray[Any]]]"
"""A function that finds the ends of records in consecutive blocks; see `RecordFormat.find_ends`."""

MOST_RECORD = 1 << 30  # bytes of a record of a compressed source; more is damage or a decompression bomb
_NEAR = 1 << 20  # up to this size, the previous record is read too, to check where the next one starts
_MOST_KEPT = 1 << 26  # greatest number of bytes that are kept to find a damaged record, besides the last block


class IndexedFormat:
    """A format whose shards are a data file and a `.idx` of offsets, which can be built from the data."""

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    is_indexable: ClassVar[bool] = True
    is_streamable: ClassVar[bool] = True
    ends_at_newlines: ClassVar[bool] = False
    layout: ClassVar[RecordLayout] = RecordLayout()
    """Rules for the positions of records in a source, by which an index is checked."""

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        """Return the index of a source, unopened."""
        return IndexFile(location.url_for(url), options, source=url)

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        """Check that an index fits a source, with `deep` every offset. IndexNotFoundError, IndexMismatchError."""
        check_index(index, source, self.layout, deep=deep)

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        """Open a source for random access; see `OffsetFormat`."""
        return self._reader(url, index, options, check=check, listed=listed)

    def _reader(self, *source: Any, **how: Any) -> Reader:
        raise NotImplementedError

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        """Return the raw bytes of consecutive whole records in memory; see `OffsetFormat`."""
        record, start = (0, 0) if span is None else (span.record, span.start)
        bounds = self._bounds_of(data, url, span)
        return raw_records(url, data[bounds[0] :], [start + bound for bound in bounds], record)

    def _bounds_of(self, data: bytes, url: str, span: StreamSpan | None) -> list[int]:
        """Return the start of each record in memory, and the end of the last one."""
        raise NotImplementedError

    def shard(self, data: bytes, offsets: Offsets, *, nulled: int = 0) -> list[ShardFile]:
        """Return the two files of a shard: data and index. `nulled` is as in `ShardFile`."""
        suffix = self.suffixes[0]
        index = ShardFile(f"{suffix}.idx", index_bytes(offsets), 0)
        return [ShardFile(suffix, data, len(offsets) - 1, nulled), index]


class RecordFormat(IndexedFormat, ABC):
    """A format of independent records that follow each other from the first byte to the last.

    A subclass defines `name`, `suffixes`, `find_ends`, `decode` and `encode_record`. Options are arguments of its
    constructor. Its objects must be picklable, as objects of a dataclass are.
    """

    ends_with_source: ClassVar[bool] = False
    """Whether the end of the source also ends a record, as in a text whose last line has no newline."""

    @abstractmethod
    def find_ends(self, blocks: Iterable[bytes]) -> Iterator[Sequence[int] | NDArray[Any]]:
        """Find the ends of records.

        Args:
            blocks: Consecutive bytes, from the start of a record. A record may extend over several blocks.

        Yields:
            Ends of records in ascending order, in bytes from the first byte. Bytes after the last end are an incomplete
            record.

        Raises:
            ValueError: The bytes cannot be records. The message names the expected and the found value.
        """

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decode a record: a JSON value, or an object with a method `as_json()`.

        Args:
            data: The bytes between two ends.

        Raises:
            ValueError: The bytes cannot be decoded. The message names the expected and the found value.
        """

    @abstractmethod
    def encode_record(self, record: Any) -> bytes:
        """Encode a record, including its end. `decode` returns an equal record.

        Args:
            record: A result of `decode`, or a JSON value.

        Raises:
            ValueError: The record cannot be encoded. The message names the expected and the found value.
        """

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Find the offsets of all records; see `OffsetFormat`."""
        url = canonical_url(url)
        try:
            return self._offsets(decompressed(url, options, listed), url)
        except (ArchiveError, RecordError):
            require_head(url, options, listed, self.name)
            raise

    def _reader(self, *source: Any, **how: Any) -> Reader:
        return _RecordReader(self, *source, **how)

    def scan(self, stream: Stream) -> StreamedRecords:
        """Find the records of a compressed source in one pass; see `OffsetFormat`."""
        return StreamedRecords(self._offsets(stream.blocks(), stream.url, most=MOST_RECORD), self)

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        """Decode consecutive whole records in memory; see `OffsetFormat`."""
        record, start = (0, 0) if span is None else (span.record, span.start)
        return self.decode_all(data, self._bounds_of(data, url, span), url, record, start)

    def encode(self, records: Iterable[Any]) -> list[ShardFile]:
        """Encode records as the files of a shard.

        Raises:
            RecordError: A record cannot be encoded; the message has its position.
        """
        parts: list[bytes] = []
        for number, record in enumerate(records):
            try:
                data = self.encode_record(record)
                if not data:
                    raise ValueError("expected at least one byte of a record, found none")
                parts.append(data)
            except ValueError as error:
                raise RecordError(f"record {number}: {error}") from error
        offsets = np.zeros(len(parts) + 1, np.uint64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return self.shard(b"".join(parts), offsets)

    def bounds(self, data: bytes) -> list[int]:
        """Return the start of each record in some bytes, and the end of the last one.

        Bytes after the last end are a record if the format allows it. If the bytes are no records, return `[0]`.
        """
        try:
            found = [0, *(int(end) for ends in self.find_ends([data]) for end in ends)]
        except ValueError:
            return [0]
        return [*found, len(data)] if found[-1] < len(data) and self.ends_with_source else found

    def decode_all(self, data: bytes, bounds: Sequence[int], url: str, record: int, start: int) -> list[Any]:
        """Decode consecutive records. `bounds`: their starts in `data`, and the last end; `data` starts at `start`.

        Raises:
            RecordError: A record cannot be decoded. The message has its number and its byte range.
        """
        records = []
        for number, (begin, end) in enumerate(pairwise(bounds), record):
            try:
                records.append(self.decode(data[begin:end]))
            except UsageError:
                raise  # a missing package, not a fault of the record
            except ValueError as error:
                raise RecordError(
                    f"{url}: record {number}, bytes [{start + begin}, {start + end}): {error}; correct it and index "
                    "again"
                ) from error
        return records

    def _bounds_of(self, data: bytes, url: str, span: StreamSpan | None) -> list[int]:
        if span is None:
            return list(map(int, self._offsets([data], url)))
        bounds = self.bounds(data)
        if len(bounds) - 1 != span.records or bounds[-1] != len(data):
            raise changed_span(url, span)
        return bounds

    def _offsets(self, blocks: Iterable[bytes], url: str, *, most: int | None = None) -> Offsets:
        return offsets_of_ends(self.find_ends, blocks, url, ends_with_source=self.ends_with_source, most=most)


class LineFormat(RecordFormat):
    """A format whose records are lines. A subclass defines `decode` and `encode_record`, for bytes with the newline."""

    ends_with_source = True
    ends_at_newlines = True

    def find_ends(self, blocks: Iterable[bytes]) -> Iterator[Sequence[int] | NDArray[Any]]:
        """Find the ends of lines."""
        return find_line_ends(blocks)

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Find the offsets of all lines; see `OffsetFormat`."""
        return build_jsonl_index(url, options, listed=listed, name=self.name)


class _RecordReader(IndexedRecords[Any]):
    """Random access to the records of a `RecordFormat`.

    `find_ends` runs over the requested records and the record before them, and must find the same ends as the index
    has. So an index of other data causes an error, never a wrong record.
    """

    def __init__(self, format: RecordFormat, *source: Any, **how: Any) -> None:  # noqa: A002 - the usual word
        self.format = format
        super().__init__(*source, **how)

    def _read_one(self, entries: memoryview[int], record: int) -> Any:
        before = entries[record - 1] if record else 0
        return self._records(None, before, [entries[record], entries[record + 1]], record)[0]

    def _read_pieces(
        self, records: NDArray[np.int64], starts: Offsets, stops: Offsets, before: Offsets
    ) -> Iterator[list[Any]]:
        bases = np.where(starts - before <= np.uint64(_NEAR), before, starts)
        blocks = self._reader.iterate_many(bases, stops)
        rows = zip(records.tolist(), bases.tolist(), starts.tolist(), stops.tolist(), blocks, strict=True)
        for record, base, start, stop, data in rows:
            yield self._records(data, base, [start, stop], record)

    def _read_span(self, start: int, stop: int) -> list[Any]:
        before, bounds = self._span_bounds(start, stop)
        return self._records(None, before, bounds, start)

    def _read_raw(self, start: int, stop: int) -> list[RawRecord]:
        before, bounds = self._span_bounds(start, stop)
        data, base = self._checked(None, before, bounds, start)
        return raw_records(self.url, data[bounds[0] - base :], bounds, start)

    def read_data(self, start: int, stop: int) -> tuple[StreamSpan, bytes]:
        """Return span and bytes of the records `[start, stop)`. IndexMismatchError: the index has other boundaries."""
        if start == stop:
            return StreamSpan(start, 0, 0, 0), b""
        before, bounds = self._span_bounds(start, stop)
        data, base = self._checked(None, before, bounds, start)
        return StreamSpan(start, stop - start, bounds[0], bounds[-1]), data[bounds[0] - base :]

    def _span_bounds(self, start: int, stop: int) -> tuple[int, list[int]]:
        """Return the start of the record before a span, and the starts of its records with the end of the last one."""
        lead = 1 if start else 0
        bounds: list[int] = self._span_offsets(start - lead, stop).tolist()
        before = bounds.pop(0) if lead else 0
        return before, bounds

    def _records(self, data: bytes | None, before: int, bounds: list[int], record: int) -> list[Any]:
        """Check and decode consecutive records. The check includes the record before them, which starts at `before`."""
        data, base = self._checked(data, before, bounds, record)
        return self.format.decode_all(data, [place - base for place in bounds], self.url, record, base)

    def _checked(self, data: bytes | None, before: int, bounds: list[int], record: int) -> tuple[bytes, int]:
        """Check consecutive records as `_records` does. Return their bytes, and the offset of the first byte."""
        start, stop = bounds[0], bounds[-1]
        base = before if start - before <= _NEAR else start
        if data is None:
            data = self._reader.read(base, stop)
        expected = [place - base for place in ([base] if base < start else []) + bounds]
        if self.format.bounds(data) != expected or (self._is_open_ended(data) and stop != self._reader.size):
            raise self.index.mismatch(
                f"expected records [{record}, {record + len(bounds) - 1}) at bytes [{start}, {stop}), found records "
                "that end elsewhere"
            )
        return data, base

    def _is_open_ended(self, data: bytes) -> bool:
        """Return whether the last record in `data` lacks its end (a newline), as only the last of a source may."""
        if not self.format.ends_with_source:
            return False
        last = 0
        for ends in self.format.find_ends([data]):
            last = int(ends[-1]) if len(ends) else last
        return last < len(data)


def changed_span(url: str, span: StreamSpan) -> ArchiveError:
    """Return the error for a span of a stream whose records differ from those of the first pass."""
    return ArchiveError(
        f"{url}: expected records [{span.record}, {span.record + span.records}) in bytes [{span.start}, {span.stop}) "
        "of the decompressed data, found other records; the source has changed, run the job again"
    )


def find_line_ends(blocks: Iterable[bytes]) -> Iterator[NDArray[Any]]:
    """Find the ends of lines, block by block; see `RecordFormat.find_ends`."""
    size = 0
    for block in blocks:
        yield line_ends(block, size)
        size += len(block)


def offsets_of_ends(
    find_ends: FindEnds, blocks: Iterable[bytes], url: str, *, ends_with_source: bool, most: int | None = None
) -> Offsets:
    """Return the offsets of the records of a source: 0 and the results of `record_ends`."""
    ends = record_ends(find_ends, blocks, url, ends_with_source=ends_with_source, most=most)
    return np.concatenate([np.zeros(1, np.uint64), *ends])


def record_ends(
    find_ends: FindEnds, blocks: Iterable[bytes], url: str, *, ends_with_source: bool, most: int | None = None
) -> Iterator[Offsets]:
    """Find the ends of the records of a source, block by block.

    With `ends_with_source`, the end of the source also ends a record, such as a last line without newline.
    ArchiveError: the source is cut off in a record. RecordError: a record is damaged, or has more bytes than `most`.
    """
    found = _Progress(blocks, url, most)
    try:
        for ends in find_ends(found.blocks()):
            if len(ends):
                yield found.add(np.asarray(ends, np.uint64))
    except LedgerbeamError:
        raise
    except ValueError as error:
        kept = found.kept()
        if missed := _ends_before_damage(find_ends, kept or b""):
            yield found.add(np.array(missed, np.uint64) + np.uint64(found.last))
        place = found.place() if kept is not None else f"{found.place()}, or one after it"
        raise RecordError(f"{url}: {place}: {error}; write the file again") from error
    found.require_size()
    if found.size > found.last:
        if not ends_with_source:
            raise ArchiveError(
                f"{url}: {found.place()}, is cut off: expected its end, found the end of the source at byte "
                f"{found.size}; write the file again"
            )
        yield np.array([found.size], np.uint64)


class _Progress:
    """Number and position of the current record, and all bytes since its start."""

    def __init__(self, blocks: Iterable[bytes], url: str, most: int | None) -> None:
        self.records = self.last = self.size = 0
        self._blocks, self._url, self._most = blocks, url, most
        self._kept: deque[bytes] = deque()
        self._begin = 0  # offset of the kept bytes

    def blocks(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._kept.append(block)
            self.size += len(block)
            while self._kept and (
                self._begin + len(self._kept[0]) <= self.last or self.size - self._begin > _MOST_KEPT + len(block)
            ):
                self._begin += len(self._kept.popleft())
            yield block
            self.require_size()

    def add(self, ends: Offsets) -> Offsets:
        if self._most is not None:
            require_size(np.concatenate([np.array([self.last], np.uint64), ends]), self._url, self.records, self._most)
        self.records += len(ends)
        self.last = int(ends[-1])
        return ends

    def require_size(self) -> None:
        """Raise RecordError if there are too many bytes after the last end for a record."""
        if self._most is not None and self.size - self.last > self._most:
            raise _too_long(self._url, self.records, self.last, self.size - self.last, self._most)

    def kept(self) -> bytes | None:
        """Return all bytes after the last end; None if there were too many to keep."""
        return b"".join(self._kept)[self.last - self._begin :] if self._begin <= self.last else None

    def place(self) -> str:
        content = "" if self._most is None else " of the decompressed data"
        return f"record {self.records}, which starts at byte {self.last}{content}"


def _ends_before_damage(find_ends: FindEnds, data: bytes) -> list[int]:
    """Return the ends of the records before the damaged one.

    When `find_ends` raises, the ends that it had found in the last block are lost. So it runs again over prefixes of
    the bytes, up to the longest one for which it does not raise.
    """
    found: list[int] = []
    start, good, bad = 0, 0, len(data)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            ends = [start + int(end) for some in find_ends([data[start:middle]]) for end in some]
        except ValueError:
            bad = middle
            continue
        good = middle
        found += ends
        start = found[-1] if found else 0
    return found


def require_size(offsets: Offsets, url: str, record: int, most: int) -> None:
    """Raise RecordError if a record of a compressed source has over `most` bytes; `record`: number of the first."""
    lengths = np.diff(offsets)
    if len(lengths) and int(lengths.max()) > most:
        at = int(lengths.argmax())
        raise _too_long(url, record + at, int(offsets[at]), int(lengths[at]), most)


def _too_long(url: str, record: int, start: int, length: int, most: int) -> RecordError:
    return RecordError(
        f"{url}: record {record}, which starts at byte {start:,} of the decompressed data, has at least {length:,} "
        f"bytes; expected at most {most:,}. If it is not damaged, decompress the file"
    )
