"""Protocols of formats and their readers, and a cache of decoded row groups.

Format             has a name, and encodes records
├── OffsetFormat   consecutive records, which an index of byte offsets finds
└── ColumnFormat   rows of columns, which the footer of the file finds
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.index.file import IndexFile, IndexLocation, Offsets
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeIs


CACHE_BYTES = 64 * 2**20  # default size of a cache in bytes
GroupKey = tuple[str, int]  # the URL of a file, and the number of a row group in it


class Reader(Protocol):
    """Random access to the records of one source.

    Deterministic, picklable, and safe to share between threads and to use after a fork.
    """

    @property
    def url(self) -> str:
        """The canonical URL of the source."""

    @property
    def is_indexed(self) -> Literal[True]:
        """True: each record can be read separately."""

    def __len__(self) -> int: ...

    def __getitem__(self, item: Any, /) -> Any:
        """Return one record for an int (negative counts from the end), a list of records for a slice."""

    def __iter__(self) -> Iterator[Any]: ...

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Return records by number, in the requested order; neighbours share a request."""

    def raw(self, index: int) -> bytes:
        """Return the bytes of one record in the source."""

    def read_span(self, start: int, stop: int) -> list[Any]:
        """Return the records `[start, stop)`: one ranged read of the index, one of the source.

        Blank JSONL lines are skipped; their number is `stop - start - len(result)`.
        """

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the raw bytes of the records that `read_span` returns, in the same order."""

    def close(self) -> None:
        """Close the open files; a later read opens them again."""


class RowGroup(NamedTuple):
    """Consecutive rows, with the bytes of their chosen columns: in the file, and decoded (0 if not known)."""

    rows: int
    size: int
    plain_size: int = 0


class ColumnReader(Reader, Protocol):
    """Random access to the rows of one source. Only the chosen columns are read. Spans count rows.

    Attributes:
        held: Cache of decoded row groups; readers of several sources may share it.
    """

    held: HeldGroups

    @property
    def schema(self) -> pa.Schema:
        """The schema of the chosen columns."""

    @property
    def groups(self) -> Sequence[RowGroup]:
        """The row groups, in order."""

    def read_batch(self, start: int, stop: int) -> pa.Table:
        """Return the rows `[start, stop)` as columns."""

    def read_rows(self, numbers: NDArray[np.int64]) -> pa.Table:
        """Return some rows, given by ascending numbers, as columns."""

    def read_each(self, start: int, stop: int) -> list[Any]:
        """Return the records of `read_span`, with a `RecordError` in place of each record that cannot be decoded."""

    def first_rows(self, group: int, rows: int) -> pa.Table:
        """Return at most `rows` first rows of a row group as columns, without reading all of a large group."""

    def decode_each(self, table: pa.Table, numbers: Sequence[int]) -> list[Any]:
        """Return rows as records, as `read_each` does; `numbers` are their numbers in the source."""

    def facts(self) -> Mapping[str, Any]:
        """Return the properties that `show` prints besides name, size and number of records."""


class ShardFile(NamedTuple):
    """One file of a shard.

    Attributes:
        ending: End of its name, after the name of the task.
        data: Its content.
        records: Number of records; 0 for an index.
        nulled: Number of NaN and infinities that were written as null.
    """

    ending: str
    data: bytes
    records: int
    nulled: int = 0


class ShardEncoder(Protocol):
    """Encoder of the records of a task. Picklable. The result depends only on the records."""

    def encode(self, records: Any) -> list[ShardFile]:
        """Return the files of a shard in the order of their publication: each index after its data.

        Raises:
            RecordError: A record cannot be encoded.
        """


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """Consecutive records of a source: number of the first, number of records, range of the decompressed bytes."""

    record: int
    records: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StreamedRecords:
    """Result of one pass over a compressed source."""

    offsets: Offsets  # start of each record in the decompressed bytes, and end of the last one: `N + 1`, u64
    format: OffsetFormat  # decodes the spans; the pass may have set more options, such as the grouping of a tar


class Format(ShardEncoder, Protocol):
    """A kind of file: encodes records and, by one of the two protocols below, finds and reads them.

    Options, such as the grouping of a tar or the columns to read, are arguments of the constructor. A format is
    picklable and has no open files.
    """

    @property
    def name(self) -> str:
        """The value of `--to`, and the name in the output of `show`."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of its files, in lower case with the dot. Outputs have the first one."""


class OffsetFormat(Format, Protocol):
    """A format of consecutive records, which an index of byte offsets finds.

    `ledgerbeam.io.formats.base` has base classes that implement most of it.
    """

    @property
    def is_indexable(self) -> bool:
        """Whether an index can be built from a source. If not, the index is a part of the dataset."""

    @property
    def is_streamable(self) -> bool:
        """Whether one pass can divide a compressed source into records: `scan`, and `split` with a span."""

    @property
    def ends_at_newlines(self) -> bool:
        """Whether exactly the newlines end records. A large source is then indexed in byte ranges."""

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        """Return the index of a source, unopened. The index of a format that is not indexable is beside the source."""

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Find the offsets of all records of an uncompressed source: `N + 1` of them, u64, the last a sentinel.

        Raises:
            ChangedSourceError: The source changed since it was `listed`.
            NotIndexableError: `is_indexable` is false.
        """

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        """Check that an index fits a source, with `deep` every offset. IndexNotFoundError, IndexMismatchError."""

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        """Open a source for random access. `index` defaults to `<url>.idx`; `listed` is as in `RangeReader`."""

    def scan(self, stream: Stream) -> StreamedRecords:
        """Find the records of a compressed source in one pass, to its end.

        Raises:
            RecordError: A record has more bytes than `base.MOST_RECORD`.
            SourceError: The data is damaged.
        """

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        """Decode consecutive whole records in memory.

        Args:
            data: The bytes of the records.
            span: Their span in the source, as `scan` found it. Default: the whole source.

        Raises:
            ArchiveError: The records differ from the records that `scan` found.
            SourceError: A record cannot be decoded.
        """

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        """Return the raw bytes of the records that `split` returns, in the same order.

        To decode one of these raw records, call `split` with its span.

        Raises:
            ArchiveError: The records differ from the records that `scan` found.
            SourceError: The bytes cannot be divided into records.
        """


class TableMaking(Protocol):
    """Builder of tables from records, by one schema."""

    def copied(self, record: Any) -> Any:
        """Return a copy of a record, so that its creator may change the record before it becomes a row."""

    def require(self, record: Any) -> None:
        """Raise RecordError unless a record fits the schema."""

    def table(self, records: Any, *, url: str = "", first: int = 0) -> pa.Table:
        """Return records, or columns, as a table. RecordError: a record does not fit; the message has its number."""

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return tables of this schema as one table."""


@runtime_checkable
class ColumnFormat(Format, Protocol):
    """A format of rows of columns. The footer of the file lists the row groups and is its only index."""

    def select(self, columns: Sequence[str]) -> Self:
        """Return this format with a choice of columns to read. An empty choice means all columns."""

    def open_columns(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> ColumnReader:
        """Open a source for random access; `listed` is as in `RangeReader`.

        Raises:
            SourceError: It is damaged, encrypted, or of another kind; also `ChangedSourceError` and StorageError.
            UsageError: The source lacks one of the columns.
        """

    def written(self, route: str = "") -> TableMaking | None:
        """Return the builder of tables for the outputs of a route; None if each file has a separate schema.

        Raises:
            RecordError: There are schemas for other routes only.
        """

    def open_bytes(self, data: bytes, url: str) -> ColumnReader:
        """Open a whole source in memory, with the errors of `open_columns`."""


@runtime_checkable
class TableFormat(Protocol):
    """A format of offsets whose records can also be read as rows of a table, without Python objects.

    Its readers have a method `read_data(start, stop)`. It returns the `StreamSpan` and the checked bytes of the records
    `[start, stop)`.
    """

    def split_table(self, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        """Return consecutive whole records in memory as rows, equal to the records of `OffsetFormat.split`."""

    def split_table_each(
        self, data: bytes, url: str, span: StreamSpan | None = None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return the decodable records as rows, and the errors of the other records by position among all records."""


@runtime_checkable
class StreamAdvisor(Protocol):
    """A format with advice on compressed files that only one worker can read."""

    def stream_advice(self, compression: str, listed: FileInfo, options: Options | None, first: int) -> str | None:
        """Return a warning with the way to let several workers read a compressed file; None without advice.

        `first` is the number of decompressed bytes of the first record.
        """


def fits(value: object, protocol: Any) -> bool:
    """Return `isinstance` of a runtime protocol, cached by class because the check reads all attributes."""
    key = type(value), protocol
    known = _fits.get(key)
    if known is None:
        known = _fits[key] = isinstance(value, protocol)
    return known


def is_columnar(kind: object) -> TypeIs[ColumnFormat]:
    """Return whether a format is a `ColumnFormat`."""
    return fits(kind, ColumnFormat)


def json_value(record: Any) -> Any:
    """Return the JSON value of a record: the result of its method `as_json`, or the record itself without one."""
    if type(record) is dict:
        return record
    as_json = getattr(type(record), "as_json", None)
    return record if as_json is None else as_json(record)


class HeldGroups:
    """Cache of decoded row groups of one file, or of several files whose readers share it.

    It has no lock, since a fork could copy it locked. Each step is atomic; a row group lost in a race is read again. A
    pickled cache is empty. The `least` most recently used row groups stay in the cache at any size. With `least=0`,
    only the last used row group stays, and readers read a very large row group in parts, without the cache.
    """

    def __init__(self, most_bytes: int = CACHE_BYTES, least: int = 0) -> None:
        self.most_bytes = most_bytes
        self.least = least
        # Each table with its size in bytes, which a table would recompute column by column at each access.
        self._tables: OrderedDict[GroupKey, tuple[pa.Table, int]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.most_bytes, self.least)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def size(self) -> int:
        """Bytes of the row groups in the cache."""
        return sum(size for _, size in list(self._tables.values()))

    def get(self, key: GroupKey) -> pa.Table | None:
        """Return a row group; None if it is not in the cache."""
        found = self._tables.get(key)
        return None if found is None else found[0]

    def put(self, key: GroupKey, table: pa.Table) -> None:
        """Add a row group as the most recently used one, and remove the least recently used ones over the limit."""
        before = self._tables.pop(key, None)
        if before is not None and before[0] is table:
            self._tables[key] = before
            return
        self._tables[key] = table, table.nbytes
        size = self.size
        while size > self.most_bytes and len(self._tables) > max(1, self.least):
            try:
                size -= self._tables.popitem(last=False)[1][1]
            except KeyError:
                break

    def use(self, keys: Iterable[GroupKey]) -> None:
        """Mark row groups in the cache as the most recently used ones, in this order."""
        for key in keys:
            found = self._tables.pop(key, None)
            if found is not None:
                self._tables[key] = found

    def clear(self) -> None:
        """Remove all row groups."""
        self._tables.clear()


_fits: dict[tuple[type, Any], bool] = {}
