"""What a format is: the narrow protocols by which the rest of the library reads and writes all of them alike.

Format          has a name, and encodes records
├── OffsetFormat   its records lie one after the other: an index of byte offsets finds them
└── ColumnFormat   its records are rows of columns: its footer finds them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.formats.held import HeldGroups
from ledgerbeam.io.index.file import IndexFile, Offsets
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa
    from typing_extensions import TypeIs


class Reader(Protocol):
    """Random access to the records of one source.

    Deterministic, picklable, and safe to share between threads and to use after a fork.
    """

    @property
    def url(self) -> str:
        """The canonical URL of the source."""

    @property
    def is_indexed(self) -> Literal[True]:
        """True: any record can be read alone."""

    def __len__(self) -> int: ...

    def __getitem__(self, item: Any, /) -> Any:
        """Return one record for an int (negative counts from the end), a list of records for a slice."""

    def __iter__(self) -> Iterator[Any]: ...

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Return records by number, in the order asked; neighbours share a request."""

    def raw(self, index: int) -> bytes:
        """Return the bytes of one record as they lie in the source."""

    def read_span(self, start: int, stop: int) -> list[Any]:
        """Return the records `[start, stop)`: one ranged read of the index, one of the source.

        Blank JSONL lines are left out: `stop - start - len(result)` of them were skipped.
        """

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return what `read_span` decodes, in its order and number, as it lies in the source."""

    def close(self) -> None:
        """Close what is open; a later read opens it again."""


class RowGroup(NamedTuple):
    """Consecutive rows that lie together in a file.

    Attributes:
        rows: How many.
        size: Bytes of the chosen columns, as they lie in the file.
        plain_size: Their decoded bytes, as far as the file says; 0 if unknown.
    """

    rows: int
    size: int
    plain_size: int = 0


class ColumnReader(Reader, Protocol):
    """Random access to the rows of one source, of which only the chosen columns are read. Spans count rows.

    Attributes:
        held: Its decoded row groups; readers of several sources may share one object.
    """

    held: HeldGroups

    @property
    def schema(self) -> pa.Schema:
        """The chosen columns."""

    @property
    def groups(self) -> Sequence[RowGroup]:
        """The row groups, in order."""

    def read_batch(self, start: int, stop: int) -> pa.Table:
        """Return the rows `[start, stop)` as columns."""

    def read_each(self, start: int, stop: int) -> list[Any]:
        """Return what `read_span` does, with a `RecordError` in the place of each record that cannot be decoded."""

    def first_rows(self, group: int, rows: int) -> pa.Table:
        """Return the first rows of a row group as columns, at most so many, without reading all of a large one."""

    def decode_each(self, table: pa.Table, first: int) -> list[Any]:
        """Return rows as records, as `read_each` does; `first` is the number of the first."""

    def facts(self) -> Mapping[str, Any]:
        """Return what `show` prints of the source besides its name, size and number of records."""


class ShardFile(NamedTuple):
    """One file of a shard.

    Attributes:
        ending: What its name ends with, after the name of the task.
        data: Its content.
        records: How many it holds; 0 for an index.
        nulled: How many numbers that JSON does not have were written in it as null.
    """

    ending: str
    data: bytes
    records: int
    nulled: int = 0


class ShardEncoder(Protocol):
    """Encodes the records of a task. Picklable; a pure function of the records."""

    def encode(self, records: Any) -> list[ShardFile]:
        """Return the files of a shard, in the order in which they are published: each index after its data.

        Raises:
            RecordError: A record that cannot be encoded.
        """


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """Consecutive records of a source.

    Attributes:
        record: Number of the first one.
        records: How many there are.
        start: Where they begin in the decompressed bytes.
        stop: Where they end.
    """

    record: int
    records: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StreamedRecords:
    """What one pass over a compressed source found.

    Attributes:
        offsets: Where each record begins in the decompressed bytes, and where the last one ends: `N + 1`, u64.
        format: Decodes the spans. It may know more than the one that looked, for example how a tar is grouped.
    """

    offsets: Offsets
    format: OffsetFormat


class Format(ShardEncoder, Protocol):
    """How the records of a kind of file are written and, by one of the two protocols below, found and read.

    What can be chosen (how a tar is grouped, which columns are read) is an argument of the constructor. A format is
    picklable and holds nothing open.
    """

    @property
    def name(self) -> str:
        """The word of `--to`, and what `show` prints."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What the names of its files have in them, dot included, in lower case; outputs end with the first."""


class OffsetFormat(Format, Protocol):
    """A format whose records lie one after the other, so that an index of byte offsets finds them.

    `ledgerbeam.io.formats.base` has base classes that bring most of it.
    """

    @property
    def is_indexable(self) -> bool:
        """Whether an index can be built from its source; if not, the files bring one."""

    @property
    def is_streamable(self) -> bool:
        """Whether a compressed source can be cut into records in one pass: `scan` and `split` with a span."""

    @property
    def ends_at_newlines(self) -> bool:
        """Whether every newline ends a record and nothing else does: a large source is then indexed in byte ranges."""

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        """Return the index of a source, unopened; a format that brings its own has it beside the source."""

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Find the offsets of all records of an uncompressed source: `N + 1` of them, u64, the last a sentinel.

        Raises:
            ChangedSourceError: The source is not what was `listed`.
            NotIndexableError: The format is not `is_indexable`.
        """

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        """Raise IndexNotFoundError or IndexMismatchError when the index does not fit the source."""

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
        """Decode consecutive whole records that are in memory.

        Args:
            data: Their bytes.
            url: The source, for messages.
            span: Which records of the source they are, as `scan` found them. Default: all of it.

        Raises:
            ArchiveError: They are not the records that `scan` found.
            SourceError: A record cannot be decoded.
        """

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        """Return what `split` decodes, in its order and number, as it lies in memory.

        A record of it alone is decoded by `split` with a span of that record.

        Raises:
            ArchiveError: They are not the records that `scan` found; also SourceError, if they cannot be separated.
        """


class TableMaking(Protocol):
    """Makes tables of records, by one schema."""

    def copied(self, record: Any) -> Any:
        """Return a copy of a record that is to be a row, which what made it may change then."""

    def require(self, record: Any) -> None:
        """Raise RecordError unless a record fits."""

    def table(self, records: Any, *, url: str = "", first: int = 0) -> pa.Table:
        """Return records as a table.

        Args:
            records: The records; or columns.
            url: What they are of, for messages.
            first: The number of the first one in it.

        Raises:
            RecordError: One does not fit; the message names it, and the field.
        """

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return such tables as one."""

    def encoded(self, record: Any) -> bytes:
        """Return what the columns of a record are, to compare it with others; it must fit."""


@runtime_checkable
class ColumnFormat(Format, Protocol):
    """A format whose records are rows of columns, in groups that a footer of the file lists: it has no other index."""

    def select(self, columns: Sequence[str]) -> Self:
        """Return this format reading only these columns; all for none."""

    def open_columns(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> ColumnReader:
        """Open a source for random access; `listed` is as in `RangeReader`.

        Raises:
            SourceError: It is damaged, encrypted, or no such file; also `ChangedSourceError` and StorageError.
            UsageError: It lacks one of the columns.
        """

    def written(self, route: str = "") -> TableMaking | None:
        """Return what makes tables of what is written of a route; None if each file has a schema of its own.

        Raises:
            RecordError: There are schemas, and none for this route.
        """

    def open_bytes(self, data: bytes, url: str) -> ColumnReader:
        """Open a whole source that is in memory; raises as `open_columns`.

        Args:
            data: Its content.
            url: The source, for messages.
        """


@runtime_checkable
class TableFormat(Protocol):
    """A format of offsets whose records are also read as rows of a table, without Python objects.

    Its readers have a method `read_data(start, stop)`, which returns the bytes of the records `[start, stop)`, checked
    to be these, and their `StreamSpan`.
    """

    def split_table(self, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        """Return consecutive whole records that are in memory as rows: those that `OffsetFormat.split` decodes."""

    def split_table_each(
        self, data: bytes, url: str, span: StreamSpan | None = None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return the records that can be decoded as rows; and why others cannot, by position among all of them."""


_fits: dict[tuple[type, Any], bool] = {}


def fits(value: object, protocol: Any) -> bool:
    """Return what `isinstance` says of a runtime protocol, which looks at all attributes: once for each class."""
    key = type(value), protocol
    known = _fits.get(key)
    if known is None:
        known = _fits[key] = isinstance(value, protocol)
    return known


def is_columnar(kind: object) -> TypeIs[ColumnFormat]:
    """Return whether a format is a `ColumnFormat`."""
    return fits(kind, ColumnFormat)


def json_value(record: Any) -> Any:
    """Return a record as a JSON value, as its `as_json` makes it, if it has one; else it is one."""
    as_json = getattr(type(record), "as_json", None)
    return record if as_json is None else as_json(record)
