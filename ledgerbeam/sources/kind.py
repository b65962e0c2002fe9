"""The protocol of a kind of source, which divides a source into spans and reads them; and readers of tasks."""

from __future__ import annotations

import dataclasses
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ChangedSourceError, RecordError, SourceNotFoundError, UnsupportedShapeError
from ledgerbeam.io import OffsetFormat, Options
from ledgerbeam.io.formats.format import RowGroup, StreamSpan
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, Marks, SourceWatch, changed_error, stat
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.model.identity import checksum_of, content_checksum
from ledgerbeam.sources.listing import own_version
from ledgerbeam.user_code.guards import message_of

BUCKET_SCHEME = "bucket://"  # of URLs of buckets, which cannot be read: tables of an exchange have their slices


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Marks a record that cannot be decoded among the records of a task. The error has the position of the record."""

    error: str


class StreamReader(Protocol):
    """Reads spans of a stream. Each span must be the last one that was read, or a later one."""

    def read(self, span: StreamSpan, /) -> Any:
        """Return the records of a span, in the form of the sources."""

    def read_each(self, span: StreamSpan, /) -> Any:
        """Return the records of `read`, with marks for records that cannot be decoded."""

    def read_raw(self, span: StreamSpan, /) -> list[RawRecord]:
        """Return the raw bytes of the records of `read`."""


class TaskLimits(NamedTuple):
    """The limits of the size of a task, in bytes, and in records. Both may be set."""

    task_bytes: int | None = None
    task_records: int | None = None


@dataclass(frozen=True)
class StreamCut:
    """The plan for a source read in one pass: the span of each task in the decompressed bytes, and their format."""

    places: tuple[StreamSpan, ...]
    format: OffsetFormat


@dataclass(frozen=True)
class Cut:
    """A source divided into spans.

    Attributes:
        source: The source, with the properties found when its files were opened.
        spans: Half-open ranges in order, which together cover all records; empty for a source without records.
        stream: Set if the spans can only be read in one pass.
    """

    source: Source
    spans: list[tuple[int, int]]
    stream: StreamCut | None = None

    def tasks(self) -> list[Task]:
        """Return a task for each span, in order."""
        return [
            Task(self.source, start, stop, ((ordinal, len(self.spans)),))
            for ordinal, (start, stop) in enumerate(self.spans)
        ]


class Opened(Protocol):
    """An open source that is read by position."""

    @property
    def fetches(self) -> bool:
        """Whether `read_span` only fetches bytes, so that they are decoded later: then any thread may call it."""

    def read_span(self, start: int, stop: int) -> Any:
        """Return the records of a span of `SourceKind.cut`, in order: `RecordBlocks`, a list, or a `pyarrow.Table`."""

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the raw bytes of the records of `read_span`, in its order.

        The records of a pack have the URLs of their files. The raw records of a Shar shard are the lines of the cuts.

        Raises:
            UnsupportedShapeError: The items of a graph have no raw bytes.
        """

    def read_each(self, start: int, stop: int) -> Any:
        """Return the records of `read_span`, with an `Unreadable` for each record that cannot be decoded.

        Tables become a `PartialTable`. For `RecordBlocks`, which find such records themselves, it is not needed. It is
        slower than `read_span`, and raises the errors of whole spans too.
        """

    def close(self) -> None:
        """Close the source; a later read opens it again."""


class SourceKind(ABC):
    """Divides the sources of one kind into spans and reads them. Picklable."""

    counts_blanks: bool = False
    """Whether missing records of a span are blank lines, because each line of a span has a number."""

    any_part: bool = False
    """Whether any part of a span can be read alone, because its positions are numbers of records."""

    cut_waits: bool = False
    """Whether `cut` mostly waits for a store or disk, and any thread may call it. Then sources are cut in parallel."""

    def files(self, source: Source) -> list[FileInfo]:
        """Return the files that must not change while a span is read. Default: all listed files.

        Files known only by their content are not included: their content is checked when it is read.
        """
        return listed_files(source)

    @abstractmethod
    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a source into spans: a pure function of its content and the limits.

        Args:
            source: The listed source.
            limits: The limits of the size of a span.
            changed: Whether the source is known to have changed since the job read it: an index that seems to fit may
                belong to the old content.

        Raises:
            LedgerbeamError: It cannot be read.
        """

    @abstractmethod
    def open(self, source: Source) -> Opened:
        """Open a source for reading by position, after `cut` has divided it into spans."""

    def open_stream(self, source: Source, kind: OffsetFormat) -> AbstractContextManager[StreamReader]:
        """Open a source for reading as a stream, after `cut` has divided it into spans of a stream.

        Args:
            source: The source.
            kind: `StreamCut.format`.

        Raises:
            ChangedSourceError: The source changed since it was listed.
        """
        raise UnsupportedShapeError(
            f"{source.url}: {type(self).__name__} is read by position; it has no {kind.name} stream"
        )


class Sources(Protocol):
    """Opens the sources of a job. Picklable."""

    def kind_of(self, source: Source) -> SourceKind:
        """Return the kind of a source.

        Raises:
            NotIndexableError: It has a compression that cannot be read.
            UsageError: Its name has no suffix of a known format.
        """

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Check from their names that sources can be read.

        Args:
            urls: The listed URLs.
            by_position: Whether they must be readable by position, for example to be indexed.

        Raises:
            NotIndexableError, UsageError: See `kind_of`.
        """


def plan_spans(
    offsets: NDArray[np.uint64], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Divide N records into spans, as a pure function of the index: N+1 ascending byte offsets.

    A span has the records that start within one multiple of `task_bytes`, so at most one record exceeds it, and at most
    `task_records` records. Spans are half-open ranges in order, which together cover all records; empty for N = 0.
    """
    count = len(offsets) - 1
    cuts = [np.array([0, count], np.int64)]
    if task_bytes:
        start, stop = int(offsets[0]), int(offsets[-1])
        marks = np.arange(start, stop, task_bytes, dtype=np.uint64)
        cuts.append(np.searchsorted(offsets[:-1], marks).astype(np.int64))
    return _spans(cuts, count, task_records)


LEAST_ROW = 32  # least size of a row in bytes that is assumed, because even well compressed rows take memory


MOST_EXPANSION = 8  # largest assumed ratio of decoded bytes to bytes of a row group; above it, it counts as larger


def plan_rows(
    groups: Sequence[RowGroup], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Divide rows into spans like `plan_spans`, as a pure function of the row groups in their order.

    A span has as many whole row groups as fit into `task_bytes`. A larger row group is divided into parts with equal
    numbers of rows. A row counts at least `LEAST_ROW` bytes, and a row group at least its decoded bytes divided by
    `MOST_EXPANSION`.
    """
    first_rows = np.cumsum([0, *(group.rows for group in groups)])
    count = int(first_rows[-1])
    cuts = [np.array([0, count], np.int64)]
    if task_bytes:
        room = 0
        for number, group in enumerate(groups):
            size = max(group.size, group.rows * LEAST_ROW, group.plain_size // MOST_EXPANSION)
            if size > room:
                parts = max(1, min(-(-size // task_bytes), group.rows))
                cuts.append(first_rows[number] + np.arange(parts) * group.rows // parts)
                room = task_bytes
            room = room - size if size <= room else 0
    return _spans(cuts, count, task_records)


def _spans(cuts: list[NDArray[np.int64]], count: int, task_records: int | None) -> list[tuple[int, int]]:
    """Return the spans between the cuts, and at multiples of `task_records`."""
    if task_records:
        cuts = [*cuts, np.arange(0, count, task_records)]
    return list(pairwise(np.unique(np.concatenate(cuts)).tolist()))


def unreadable(found: Iterable[Any]) -> list[Any]:
    """Return records with an `Unreadable` in place of each `RecordError`."""
    return [Unreadable(message_of(record)) if isinstance(record, RecordError) else record for record in found]


def listed_file(file: Source) -> FileInfo:
    """Return the listed properties of an input object."""
    return FileInfo(file.url, file.size, file.stored or own_version(file.version), changed_ns=file.changed_ns)


def listed_files(source: Source) -> list[FileInfo]:
    """Return the listed properties of those input objects of a source that the store identifies by them."""
    return [listed_file(file) for file in source.members or (source,) if not lacks_store_version(file)]


def is_content(file: Source) -> bool:
    """Return whether an input object is identified by its content, as an output of another job is."""
    return checksum_of(file.version) is not None


def lacks_store_version(file: Source) -> bool:
    """Return whether an input object is known only by its content, because its store was not asked for it yet."""
    return not file.stored and is_content(file)


def current_file(file: Source, options: Options) -> FileInfo:
    """Return the listed properties of an input object, or its current ones if it is known only by its content.

    Raises StorageError, and ChangedSourceError if the size of the latter has changed.
    """
    listed = listed_file(file)
    if not lacks_store_version(file):
        return listed
    try:
        found = stat(file.url, options)
    except SourceNotFoundError as error:
        raise changed_error(listed, f"none ({error})") from error
    if found.size != file.size:
        raise changed_error(listed, f"{found.size} bytes")
    return found


_BLOCK = 4 * 2**20


def with_file_marks(source: Source, options: Options) -> Source:
    """Return a source with the marks that identify its files in their store, so that all its tasks read the same files.

    A local file that replaces another one may have the same size and modification time: it gets `changed_ns`. An
    object that is identified by its content is read and compared, and gets `stored`. Raises ChangedSourceError.
    """
    if source.members:
        return dataclasses.replace(source, members=tuple(with_file_marks(member, options) for member in source.members))
    if lacks_store_version(source):
        found = current_file(source, options)
        with SourceWatch([found]) as watch, RangeReader(source.url, options, listed=found) as reader:
            require_content(source, reader.blocks(_BLOCK))
        return dataclasses.replace(source, stored=found.version, changed_ns=watch.marks[0][2] if watch.marks else 0)
    marks = SourceWatch([listed_file(source)]).marks
    return dataclasses.replace(source, changed_ns=marks[0][2]) if marks else source


def require_content(file: Source, blocks: Iterable[bytes]) -> None:
    """Check all bytes of an input object that is identified by its content. Raises ChangedSourceError."""
    expected = checksum_of(file.version)
    if expected is not None and (found := content_checksum(blocks, like=expected)) != expected:
        raise ChangedSourceError(
            f"{file.url}: expected the content recorded by the job that wrote it, {expected}, found {found}: it was "
            "edited or damaged; delete it and run the same command again, which writes it again"
        )


OPEN_READERS = 16


class TaskReader:
    """Reads the records of tasks, and keeps the readers of the last few sources open. Thread-safe."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._open: OrderedDict[bytes, tuple[Marks, Opened]] = OrderedDict()
        self._opening = threading.Lock()

    def read(self, task: Task) -> Any:
        """Return the records of `task`, in order: one ranged read of the index, one of the data.

        They are `RecordBlocks`, a list, or a `pyarrow.Table`, by the form of the sources. Raises StorageError,
        ChangedSourceError, IndexError_, and SourceError for a record that cannot be decoded, but for `RecordBlocks`,
        where a pass raises it.
        """
        with self._watched(task) as opened:
            return opened.read_span(task.start, task.stop)

    def fetching(self, task: Task) -> Callable[[], Any] | None:
        """Return a function that reads like `read`, or returns None if this does more than fetch; None if local."""
        return None if all(map(is_local, task.source.urls)) else partial(self._fetch, task)

    def _fetch(self, task: Task) -> Any:
        with self._watched(task) as opened:
            return opened.read_span(task.start, task.stop) if opened.fetches else None

    def read_each(self, task: Task) -> Any:
        """Return the records of `task`, with a mark for each that cannot be decoded; see `read`, `Opened.read_each`."""
        with self._watched(task) as opened:
            return opened.read_each(task.start, task.stop)

    def read_raw(self, task: Task) -> list[RawRecord]:
        """Return the raw bytes of the records of `task`; see `read` and `Opened.read_raw`."""
        with self._watched(task) as opened:
            return opened.read_raw(task.start, task.stop)

    @contextmanager
    def _watched(self, task: Task) -> Iterator[Opened]:
        source = task.source
        kind = self._sources.kind_of(source)
        with SourceWatch(kind.files(source)) as watch:
            yield self._opened(kind, source, watch.marks)

    def _opened(self, kind: SourceKind, source: Source, marks: Marks) -> Opened:
        """Return the reader of a source. A reader that is open is reused if its local files have the same marks."""
        with self._opening:
            known, opened = self._open.pop(source.id, (None, None))
            if opened is None or known != marks:
                if opened is not None:
                    opened.close()
                opened = kind.open(source)
            self._open[source.id] = marks, opened
            if len(self._open) > OPEN_READERS:
                self._open.popitem(last=False)
            return opened


class RawSpan:
    """Reads the bytes from which the records of a task were decoded, on request: `Task.raw`.

    It uses the reader that read the records. A pickled `RawSpan` opens the source again, and reads a stream from
    its start. `streamed` has the span and the format of a task whose source is read in one pass.
    """

    def __init__(
        self,
        read: Callable[[], list[RawRecord]],
        sources: Sources,
        task: Task,
        streamed: tuple[StreamSpan, OffsetFormat] | None = None,
    ) -> None:
        self._read: Callable[[], list[RawRecord]] | None = read
        self._sources = sources
        self._task = task
        self._streamed = streamed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}

    def __call__(self) -> list[RawRecord]:
        """Return the raw bytes of the records; raises like `TaskReader.read_raw`."""
        if self._read is not None:
            return self._read()
        if self._streamed is None:
            return TaskReader(self._sources).read_raw(self._task)
        source, (span, kind) = self._task.source, self._streamed
        with self._sources.kind_of(source).open_stream(source, kind) as reader:
            return reader.read_raw(span)
