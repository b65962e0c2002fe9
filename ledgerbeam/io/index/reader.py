"""Base classes of readers that find records by number, and the raw bytes of records."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, overload

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.compression.content import open_content
from ledgerbeam.io.index.file import LAST_OFFSET, IndexFile, Offsets, RecordLayout, check_index, index_beside
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.fetch import takes_conditions
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import canonical_url

_T = TypeVar("_T")

NO_BYTES = -1  # the position of a record without a byte range in its source


class RawRecord(NamedTuple):
    """The raw bytes of a record, with its position in the source.

    Attributes:
        url: The source.
        record: Number of the record in the source, from 0; blank JSONL lines count.
        start: Offset of its first byte, in decompressed data. `NO_BYTES` for a row of a columnar file, which has no
            byte range.
        stop: One past its last byte, or `NO_BYTES`. The newline at the end of a line of JSONL is not included.
        data: The bytes of the record; for a row of a columnar file its JSON.
    """

    url: str
    record: int
    start: int
    stop: int
    data: bytes


def raw_records(url: str, data: bytes, bounds: Sequence[int], record: int) -> list[RawRecord]:
    """Return consecutive records in memory, from number `record` on. `bounds` are their N + 1 offsets in the source."""
    first = bounds[0]
    return [
        RawRecord(url, number, start, stop, data[start - first : stop - first])
        for number, (start, stop) in enumerate(pairwise(bounds), record)
    ]


def number_of(index: int, count: int, url: str, kind: str = "record") -> int:
    """Return the number of a record, from 0; a negative `index` counts from the end. IndexError: no such record."""
    number = operator.index(index)
    if not -count <= number < count:
        raise IndexError(f"{url}: there is no {kind} {index}; it has {count}")
    return number % count


def numbers_of(
    indices: Sequence[int] | NDArray[np.int64], count: int, url: str, kind: str = "record"
) -> NDArray[np.int64]:
    """Return the numbers of many records; see `number_of`."""
    try:
        if isinstance(indices, np.ndarray) and indices.dtype == np.int64:
            numbers = indices.copy()
        else:
            numbers = np.fromiter(map(operator.index, indices), np.int64, len(indices))
    except OverflowError:
        numbers = np.full(1, count)
    numbers[numbers < 0] += count
    if ((numbers < 0) | (numbers >= count)).any():
        for index in indices:
            number_of(index, count, url, kind)  # raises
    return numbers


def runs_of(numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers as half-open ranges of consecutive ones."""
    if len(numbers):
        edges = np.flatnonzero(np.diff(numbers) > 1) + 1
        firsts, lasts = numbers[np.r_[0, edges]], numbers[np.r_[edges - 1, len(numbers) - 1]]
        yield from zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)


def small_gap(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> int:
    """Return the largest gap between ascending ranges such that all such gaps are at most a tenth of the ranges."""
    gaps = np.sort(starts[1:] - stops[:-1])
    fits = np.cumsum(gaps) * 10 <= (stops - starts).sum()
    fits[:-1] &= gaps[1:] > gaps[:-1]  # equal gaps are read all or not at all
    return int(gaps[fits].max(initial=0))


def require_span(start: int, stop: int, url: str) -> None:
    """Raise UsageError unless `0 <= start <= stop`."""
    if not 0 <= start <= stop:
        raise UsageError(f"{url}: [{start}, {stop}) is not a span of records; expected 0 <= start <= stop")


class NumberedRecords(ABC, Generic[_T]):
    """Random access to numbered records, such as the records of several files."""

    url: str  # the name that the reader was opened with

    _together: ClassVar[int] = 64  # number of records that iteration reads at once

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _read(self, records: list[int]) -> list[_T]:
        """Read records by number, `0 <= number < len(self)`, in the given order."""

    def _read_single(self, record: int) -> _T:
        return self._read([record])[0]

    @abstractmethod
    def close(self) -> None:
        """Close the open files; a later read opens them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def __getitem__(self, item: int, /) -> _T: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[_T]: ...
    def __getitem__(self, item: int | slice, /) -> _T | list[_T]:
        if not isinstance(item, slice):
            return self._read_single(self._number(item))
        numbers = range(*item.indices(len(self)))
        if numbers.step == 1:
            return self.read_span(numbers.start, max(numbers.start, numbers.stop))
        return self._read(list(numbers))

    def __iter__(self) -> Iterator[_T]:
        for start in range(0, len(self), self._together):
            yield from self.read_span(start, min(start + self._together, len(self)))

    def read_many(self, indices: Sequence[int]) -> list[_T]:
        """Return records by number, in the requested order. Negative numbers count from the end.

        Raises:
            IndexError: A number is out of range; also the errors of reading one record.
        """
        if len(indices) < _FEW:
            return self._read([self._number(index) for index in indices])
        return self._read(numbers_of(indices, len(self), self.url).tolist())

    def read_span(self, start: int, stop: int) -> list[_T]:
        """Read the records `[start, stop)`; IndexMismatchError if there are fewer."""
        require_span(start, stop, self.url)
        if stop > len(self):
            raise IndexMismatchError(f"{self.url}: expected at least {stop} records, found {len(self)}")
        return self._read(list(range(start, stop)))

    def _number(self, index: int) -> int:
        """Return the number of a record, from 0; a negative `index` counts from the end."""
        return number_of(index, len(self), self.url)


def read_by_part(
    records: Sequence[int] | NDArray[np.int64],
    bounds: Sequence[int] | NDArray[np.int64],
    read: Callable[[int, list[int]], Sequence[_T]],
) -> list[_T]:
    """Read records that are numbered across parts, such as files, in the given order. Each part is read once.

    `bounds` has the first record of each part, and the end of the last. `read` takes a part and numbers in it.
    """
    if len(records) == 1:
        part = bisect_right(bounds, records[0]) - 1
        return list(read(part, [int(records[0] - bounds[part])]))
    numbers = np.asarray(records, np.int64)
    parts = np.searchsorted(bounds, numbers, "right") - 1
    found: list[Any] = [None] * len(numbers)
    for part in dict.fromkeys(parts.tolist()):
        places = np.flatnonzero(parts == part)
        inside = (numbers[places] - bounds[part]).tolist()
        for place, record in zip(places.tolist(), read(part, inside), strict=True):
            found[place] = record
    return found


_ITERATE = 4 * 1024 * 1024
_RARE = 256  # the whole index is loaded when more than one of this many records was requested
_FEW = 32  # fewer records of a local source are read one by one, which is faster than with arrays


class IndexedRecords(NumberedRecords[_T]):
    """Random access to the records of a source with an index.

    Deterministic, picklable, safe to share between threads and to use after a fork. `[i]`, slices, iteration and
    `read_many` load the index once (8 bytes for each record). `read_many` of a few records of a large source does not
    load it. `read_span` reads only its part of the index.

    Args:
        url: The source. The records of gzip and seekable Zstandard are in the decompressed bytes.
        index: The index, or the URL of the index. Default: `<url>.idx`.
        check: Whether to check now that the index fits the source (`check_index`): one request for the source, two for
            the index. Unpickling does not repeat the check.
        listed: The listed properties of the source; see `RangeReader`. Default: the properties that `check` finds, for
            local files, and for stores where a read can require a version.

    Attributes:
        found: The properties of the source that `check` found; None without `check`.
        listed: The version of the source that reads must return; None for any version.

    Raises:
        SourceNotFoundError: The source does not exist.
        IndexNotFoundError: The source has no index.
        IndexMismatchError: The index does not fit this source.
    """

    is_indexed: Literal[True] = True

    layout: ClassVar[RecordLayout] = RecordLayout()

    def __init__(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> None:
        self.url = canonical_url(url)
        self.options = options
        if isinstance(index, IndexFile):
            self.index = index
        else:
            self.index = IndexFile(index or index_beside(self.url), options, source=self.url)
        self.found = source = stat(self.url, options) if check else None
        if listed is None and source and takes_conditions(self.url):
            listed = source
        self.listed = listed
        self._reader = open_content(self.url, self.index.url, options, source.size if source else None, listed)
        if source:
            check_index(self.index, source, self.layout, content=self._reader)
        self._count = 0
        self._looked_up = 0
        self._offsets: Offsets | None = None
        self._entries: memoryview[int] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, index={self.index.url!r})"

    @property
    def is_local(self) -> bool:
        """Whether the records are read from a local file."""
        return self._reader.local_path is not None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_offsets": None, "_entries": None}

    def _read(self, records: list[int]) -> list[_T]:
        return self.read_many(records)

    def __len__(self) -> int:
        return len(self._entries) - 1 if self._entries is not None else self.index.count

    @overload
    def __getitem__(self, item: int, /) -> _T: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[_T]: ...
    def __getitem__(self, item: int | slice, /) -> _T | list[_T]:
        entries = self._entries
        if entries is None or type(item) is not int or not 0 <= item < self._count:
            if isinstance(item, slice):
                return self.read_many(range(*item.indices(len(self))))
            item = self._locate(item)[0]
            entries = self._load().data
        return self._read_one(entries, item)

    def __iter__(self) -> Iterator[_T]:
        """Read all records in order, a few MB at a time; blank JSONL lines are skipped."""
        offsets = self._load()
        count = len(offsets) - 1
        start = 0
        while start < count:
            limit = offsets[start] + offsets.dtype.type(_ITERATE)
            stop = max(start + 1, int(offsets.searchsorted(limit, "right")) - 1)
            yield from self.read_span(start, stop)
            start = stop

    def read_many(self, indices: Sequence[int]) -> list[_T]:
        """Return records by number, in the requested order. Negative numbers count from the end.

        Neighbours in a remote source share a request.

        Raises:
            IndexError: A number is out of range.
            RecordError: A record cannot be decoded, or is a blank JSONL line.
        """
        if len(indices) < _FEW and self.is_local and self._offsets is not None:
            return [self[index] for index in map(operator.index, indices)]
        return list(chain.from_iterable(self.read_pieces(indices)))

    def read_pieces(self, indices: Sequence[int] | NDArray[np.int64]) -> Iterator[list[_T]]:
        """Yield the records of `read_many` in lists.

        A list of a local source is read when it is needed; a remote source gets all requests at once. Records before
        one that cannot be decoded are yielded before the error.
        """
        return self._read_pieces(*self._ranges(indices))

    def raw(self, index: int) -> bytes:
        """Return the raw bytes of one record. IndexError: there is no record of this number."""
        entries = self._entries
        if entries is not None and type(index) is int and 0 <= index < self._count:  # the common case, without a call
            return self._reader.read(entries[index], entries[index + 1])
        _, start, stop = self._locate(index)
        return self._reader.read(start, stop)

    def read_span(self, start: int, stop: int) -> list[_T]:
        """Read the records `[start, stop)`: one ranged read of the source, and one of the index if it is not loaded.

        Blank JSONL lines are skipped: their number is `stop - start - len(result)`.

        Raises:
            IndexMismatchError: The records of the source have other boundaries than in the index.
            RecordError: A record cannot be decoded.
            UsageError: `0 <= start <= stop` is false.
        """
        require_span(start, stop, self.url)
        return [] if start == stop else self._read_span(start, stop)

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the raw bytes of the records that `read_span` decodes, with their positions, in the same order.

        Raises:
            IndexMismatchError: The records of the source have other boundaries than in the index.
        """
        return self._read_raw(start, stop) if start < stop else []

    def close(self) -> None:
        """Close the open files; a later read opens them again."""
        self._reader.close()
        self.index.close()

    def _span_offsets(self, start: int, stop: int) -> Offsets:
        """Return the offsets of the records `[start, stop)`, and the end of the last."""
        if (offsets := self._offsets) is None:
            part = self.index.slice(start, stop)
            self.layout.check_offsets(part, self.index, first_record=start)
            return part
        if stop < len(offsets):
            return offsets[start : stop + 1]
        raise self.index.mismatch(f"expected at least {stop} records, found {len(offsets) - 1}")

    def _load(self) -> Offsets:
        if self._offsets is None:
            offsets = self.index.load()
            self.layout.check_offsets(offsets, self.index)
            self._count = len(offsets) - 1
            self._entries = offsets.data
            self._offsets = offsets
        return self._offsets

    def _ranges(
        self, indices: Sequence[int] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Offsets, Offsets, Offsets]:
        """Return for some records their numbers, offsets and ends, and the offsets of the previous records.

        The index is loaded once the calls have asked for more than 1 in 256 records.
        """
        if self._offsets is None:
            self._looked_up += len(indices)
            self._count = len(self)
            if self._looked_up * _RARE < self._count:
                records = numbers_of(indices, self._count, self.url)
                before, starts, stops = self.index.ranges(records)
                if (before <= starts).all() and (starts < stops).all() and int(stops.max(initial=0)) <= LAST_OFFSET:
                    return records, starts, stops, before
        offsets = self._load()  # raises if the index is damaged
        records = numbers_of(indices, self._count, self.url)
        before = np.where(records > 0, offsets[records - 1], np.uint64(0))
        return records, offsets[records], offsets[records + 1], before

    def _locate(self, index: int) -> tuple[int, int, int]:
        """Return the number of a record, its offset and its end."""
        if (entries := self._entries) is None:
            self._load()
            return self._locate(index)
        record = number_of(index, len(entries) - 1, self.url)
        return record, entries[record], entries[record + 1]

    @abstractmethod
    def _read_one(self, entries: memoryview[int], record: int) -> _T:
        """Read a record; `entries` contains all offsets."""

    @abstractmethod
    def _read_pieces(
        self, records: NDArray[np.int64], starts: Offsets, stops: Offsets, before: Offsets
    ) -> Iterator[list[_T]]:
        """Read records by number, in pieces, given their offsets and ends, and the offsets of the previous records."""

    @abstractmethod
    def _read_span(self, start: int, stop: int) -> list[_T]:
        """Read the records `[start, stop)`, at least one."""

    @abstractmethod
    def _read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Read the raw bytes of the records `[start, stop)`, at least one."""
