"""Kinds of sources, which divide a source into spans and read them, and the reader of the records of tasks."""

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

BUCKET_SCHEME = "bucket://"  # of the URLs of buckets. No store has these URLs: run files hold the records


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a record that cannot be decoded. `error` has the position of the record in the source."""

    error: str


class StreamReader(Protocol):
    """Reads spans of a stream. A call may read the previous span again, or any later span."""

    def read(self, span: StreamSpan, /) -> Any:
        """Return the records of a span, as `Opened.read_span` does."""

    def read_each(self, span: StreamSpan, /) -> Any:
        """Return the records of a span, as `Opened.read_each` does."""

    def read_raw(self, span: StreamSpan, /) -> list[RawRecord]:
        """Return the raw bytes of the records of a span."""


class TaskLimits(NamedTuple):
    """The largest size of a task, in bytes and in records. None: no limit."""

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
        """Whether `read_span` only fetches bytes, which a pass decodes later. Then any thread may call `read_span`."""

    def read_span(self, start: int, stop: int) -> Any:
        """Return the records of a span, in order: `RecordBlocks`, a list, or a `pyarrow.Table`."""

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the raw bytes of the records of `read_span`, in its order.

        The records of a pack have the URLs of their files. The raw records of a Shar shard are the lines of the cuts.

        Raises:
            UnsupportedShapeError: The items of a graph have no raw bytes.
        """

    def read_each(self, start: int, stop: int) -> Any:
        """Return the records of `read_span`, with an `Unreadable` for each record that cannot be decoded.

        In place of a table, return a `PartialTable`. This method is slower than `read_span`. It raises errors that do
        not belong to one record, such as StorageError. Do not call it for `RecordBlocks`, but use their `marking`.
        """

    def close(self) -> None:
        """Close the source; a later read opens it again."""


class SelectableStream(StreamReader, Protocol):
    """A stream reader that returns some of the records of a span."""

    def read_some(self, span: StreamSpan, numbers: NDArray[np.int64], /, *, each: bool = False) -> Any:
        """Return some records of a span, as `Selectable.read_some` does."""


class Selectable(Opened, Protocol):
    """An open source that can read scattered records."""

    def read_some(self, numbers: NDArray[np.int64], *, each: bool = False) -> Any:
        """Return what `read_span`, or with `each` `read_each`, returns for some records, by ascending numbers."""


class SourceKind(ABC):
    """Divides the sources of one kind into spans and reads them. Picklable."""

    counts_blanks: bool = False
    """Whether each line has a number, so that records missing from a span are its blank lines."""

    any_part: bool = False
    """Whether any part of a span can be read alone, because the positions of spans are numbers of records."""

    cut_waits: bool = False
    """Whether `cut` mostly waits for a store or disk, and any thread may call it. Then sources are cut in parallel."""

    def files(self, source: Source) -> list[FileInfo]:
        """Return the files that must not change while a span is read. Default: all listed files.

        A file that is known only by its content is not included: its content is checked when it is read.
        """
        return listed_files(source)

    @abstractmethod
    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a source into spans. They depend only on the content of the source and the limits.

        Args:
            source: The listed source.
            limits: The limits of the size of a span.
            changed: Whether the source has changed after the job read it. Then its index may belong to the old content.

        Raises:
            LedgerbeamError: The source cannot be read.
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
            f"{source.url}: {type(self).__name__} is read by position, not as a stream of {kind.name}"
        )


class Sources(Protocol):
    """Opens the sources of a job. Picklable."""

    def kind_of(self, source: Source) -> SourceKind:
        """Return the kind of a source.

        Raises:
            NotIndexableError: The source has a compression that cannot be read.
            UsageError: The name of the source has no suffix of a known format.
        """

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Check the names of sources: whether sources with such names can be read.

        Args:
            urls: The listed URLs.
            by_position: Whether sources must be readable by position, for example to be indexed.

        Raises:
            NotIndexableError, UsageError: See `kind_of`.
        """


def plan_spans(
    offsets: NDArray[np.uint64], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Divide N records into spans: half-open ranges, in order, that together cover all records; none for N = 0.

    `offsets` are the N+1 ascending byte offsets of an index. The source is divided at multiples of `task_bytes`. A span
    has the records that start between two of them, and at most `task_records`. The result depends on nothing else.
    """
    count = len(offsets) - 1
    cuts = [np.array([0, count], np.int64)]
    if task_bytes:
        start, stop = int(offsets[0]), int(offsets[-1])
        marks = np.arange(start, stop, task_bytes, dtype=np.uint64)
        cuts.append(np.searchsorted(offsets[:-1], marks).astype(np.int64))
    return _spans(cuts, count, task_records)


LEAST_ROW = 32  # bytes; a smaller row counts as this size, because even well compressed rows take memory


MOST_EXPANSION = 8  # ratio of decoded to stored bytes above which the size of a row group is decoded bytes / ratio


def plan_rows(
    groups: Sequence[RowGroup], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Divide the rows of row groups into spans like `plan_spans`.

    A span has as many whole row groups as fit into `task_bytes`. A larger row group is divided into parts with equal
    numbers of rows. The size of a row group is its stored bytes, but at least `LEAST_ROW` for each row, and at least
    its decoded bytes divided by `MOST_EXPANSION`.
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
    """Return the spans between the cuts. Spans are also divided at multiples of `task_records`."""
    if task_records:
        cuts = [*cuts, np.arange(0, count, task_records)]
    return list(pairwise(np.unique(np.concatenate(cuts)).tolist()))


def unreadable(found: Iterable[Any]) -> list[Any]:
    """Return the records, with an `Unreadable` in place of each RecordError among them."""
    return [Unreadable(message_of(record)) if isinstance(record, RecordError) else record for record in found]


def listed_file(file: Source) -> FileInfo:
    """Return the size and version that an input object had when it was listed."""
    return FileInfo(file.url, file.size, file.stored or own_version(file.version), changed_ns=file.changed_ns)


def listed_files(source: Source) -> list[FileInfo]:
    """Return the listed properties of the input objects of a source, except those that `lacks_store_version`."""
    return [listed_file(file) for file in source.members or (source,) if not lacks_store_version(file)]


def is_content(file: Source) -> bool:
    """Return whether an input object is identified by its content, as an output of another job is."""
    return checksum_of(file.version) is not None


def lacks_store_version(file: Source) -> bool:
    """Return whether only the content identifies an input object: no version of its store is recorded yet."""
    return not file.stored and is_content(file)


def current_file(file: Source, options: Options) -> FileInfo:
    """Return the listed properties of an input object, or its current ones if only its content identifies it.

    Raises StorageError; ChangedSourceError if the store has it with another size, or not at all.
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
    """Return a source with marks of its files, by which its tasks notice that a file was replaced.

    The mark of a local file is `changed_ns`, since another file may have the same size and modification time. A file
    that only its content identifies is read, and gets its store's version (`stored`). ChangedSourceError: it differs.
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
    """Reads the records of tasks, and keeps the last `OPEN_READERS` sources open. Thread-safe."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._open: OrderedDict[bytes, tuple[Marks, Opened]] = OrderedDict()
        self._opening = threading.Lock()

    def read(self, task: Task) -> Any:
        """Return the records of `task`, in order: `RecordBlocks`, a list, or a `pyarrow.Table`.

        A source with an index takes two ranged reads: of the index, and of the data. Raises StorageError,
        ChangedSourceError and IndexError_. A record that cannot be decoded raises SourceError: here, or if the result
        is `RecordBlocks`, in a pass over it.
        """
        with self._watched(task) as opened:
            return opened.read_span(task.start, task.stop)

    def fetching(self, task: Task) -> Callable[[], Any] | None:
        """Return None for local files; else a function that does `read` if that only fetches bytes, or returns None."""
        return None if all(map(is_local, task.source.urls)) else partial(self._fetch, task)

    def _fetch(self, task: Task) -> Any:
        with self._watched(task) as opened:
            return opened.read_span(task.start, task.stop) if opened.fetches else None

    def read_each(self, task: Task) -> Any:
        """Return the records of `task`, with an `Unreadable` for each record that cannot be decoded."""
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
        """Return the open source. It is opened again if its local files have changed, as their `marks` show."""
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
    """Reads the raw bytes of the records of a task when they are needed: `Task.raw`.

    `read` is a method of the open reader. A copy in another process opens the source again, and reads a stream from
    its start. `streamed` is the span and the format of a source that is read in one pass.
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
