"""Files as sources: with an index, columnar, as a compressed stream, or many small files in a pack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import (
    IndexMismatchError,
    IndexNotFoundError,
    LedgerbeamError,
    NotIndexableError,
    RecordError,
    UsageError,
)
from ledgerbeam.io import ColumnFormat, ColumnReader, Format, OffsetFormat, Reader, recognize
from ledgerbeam.io.formats.format import HeldGroups, StreamAdvisor, StreamedRecords, StreamSpan, is_columnar
from ledgerbeam.io.formats.registry import FileType, formats, require_no_columns
from ledgerbeam.io.formats.streamed import SpanReader, decompressed_source, raw_of, scan_stream, split_source_raw
from ledgerbeam.io.index.file import IndexFile, IndexLocation, index_bytes, is_outdated
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.fetch import takes_ranges
from ledgerbeam.io.storage.files import read_many_files
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, changed_error, require_listed
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import Source
from ledgerbeam.sources.forms import FORMS, Form, RecordForm
from ledgerbeam.sources.kind import (
    Cut,
    Opened,
    SourceKind,
    StreamCut,
    StreamReader,
    TaskLimits,
    Unreadable,
    current_file,
    is_content,
    lacks_store_version,
    listed_file,
    listed_files,
    plan_rows,
    plan_spans,
    require_content,
    with_file_marks,
)
from ledgerbeam.sources.listing import index_of
from ledgerbeam.user_code.guards import message_of

_log = library_logger(__name__)

_LOOKED_AT = 8  # largest number of footers that are read to find the chosen columns
_READ_BESIDE = 8 << 20  # largest size of a file that is read completely in parallel with others, in bytes

_one_large = threading.Lock()


@dataclass(frozen=True)
class FileSources:
    """Opens files as sources.

    Attributes:
        formats: Formats with options, such as `Tar("key")`. They replace registered formats with the same names, and
            need not be registered.
        index: Location of the indexes.
        build_index: Whether to build and publish the index of a source that has none.
        storage_options: Passed to fsspec unchanged.
        columns: Columns to read from columnar files. Default: all.
        form: Form of the records: ``records``, a list; or ``arrow``, a `pyarrow.Table`.
        keys: Keys of records that the job needs, a.b for a nested value. If `columns` is empty, only the columns with
            these keys are read from columnar files. Other files are read completely.
    """

    formats: tuple[Format, ...] = ()
    index: IndexLocation = field(default_factory=IndexLocation)
    build_index: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    form: RecordForm = "records"
    keys: tuple[str, ...] = ()

    @property
    def reading(self) -> Form:
        """The object that reads records in `form`."""
        return FORMS[self.form]

    @property
    def configured(self) -> tuple[Format, ...]:
        """The formats with options, including columnar formats with the chosen columns."""
        columns = self.columns or (() if self._keys_may_be_nested else self.keys)
        if not columns:
            return self.formats
        known = {kind.name: kind for kind in (*formats().values(), *self.formats)}
        return (*self.formats, *(kind.select(columns) for kind in known.values() if is_columnar(kind)))

    def type_of(self, url: str) -> FileType:
        """Return the type of a file from its name; raises the errors of `recognize`."""
        return recognize(url, self.configured)

    def kind_of(self, source: Source) -> SourceKind:
        if source.members:
            return PackedFiles(self)
        found = self.type_of(source.url)
        columns = found.columns()
        if columns is not None:
            return ColumnFile(self, columns)
        if found.compression is None:
            return IndexedFile(self, found)
        found.in_one_pass()
        return CompressedFile(self, found)

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        by_ending = {url.rpartition("/")[2].partition(".")[2]: url for url in urls}  # few endings for millions of names
        for url in by_ending.values():
            found = recognize(url, self.formats)
            _ = found.by_position() if by_position else found.readable()
            if found.columns() is None:
                require_no_columns(url, self.columns)
        for url in by_ending.values():
            self.reading.require(self.type_of(url).format, url)

    def check_columns(self, sources: Iterable[Source]) -> None:
        """Raise UsageError if none of the first columnar files has the chosen columns. A name may be misspelt."""
        found = ((source, self.type_of(source.url).columns()) for source in sources)
        lacking: UsageError | None = None
        for source, kind in islice(((source, kind) for source, kind in found if kind is not None), _LOOKED_AT):
            try:
                self.open_columns(source, kind).close()
            except UsageError as error:
                lacking = lacking or error
            except LedgerbeamError:  # the tasks of this file report it
                continue
            else:
                return
        if lacking is not None:
            raise lacking

    def load_index(self, source: Source, *, changed: bool = False) -> NDArray[np.uint64]:
        """Return the offsets of the records of an uncompressed source, from its index.

        The index is checked. A missing index is built and published, unless `build_index` is false. An index that is
        older than its source is rebuilt, with a warning. If the source has `changed`, its index is rebuilt in any case,
        because an old index may seem to fit. The index of a recorded output is rebuilt only if it does not fit. A file
        that is not an index is not replaced.

        Raises ChangedSourceError; SourceError if the source cannot be indexed; IndexNotFoundError if there is no index,
        and none is built; IndexMismatchError if the index does not fit the source, or may be old.
        """
        url, listed = source.url, self.found(source)
        kind = self.type_of(url).plain()
        index = self._index_file(source, kind)
        builds = self.build_index and kind.is_indexable
        with SourceWatch([listed, *filter(None, [index_of(url, source.version)])]):
            found, load = _with_index(listed, index, self.storage_options)
            was_written_too = is_content(source) and self.index.root is None
            try:
                if not (changed and kind.is_indexable) or was_written_too:
                    offsets = load()
                    if not (builds and is_outdated(index, offsets, found)):
                        kind.check_index(index, found)
                        return offsets
                    _log.warning("%s: its index is older than the file; indexing it again", url)
                elif builds:
                    _log.warning("%s: changed since this job read it; indexing it again", url)
                else:
                    raise IndexMismatchError(
                        f"{index.url}: this index may belong to the old content of {url}, which changed after this "
                        "job read it; run the job once without --no-index"
                    )
            except IndexNotFoundError:
                if not builds:
                    raise
            except IndexMismatchError:  # an output may be restored from a copy; its content was compared
                if not (was_written_too and builds):
                    raise
            with _reading_whole(listed):
                offsets = kind.build_index(url, self.storage_options, listed=listed)
        self.index.publish(index.url, index_bytes(offsets), self.storage_options, not_before_ns=found.modified_ns)
        return offsets

    def scan(self, source: Source) -> StreamedRecords:
        """Read a file once and find its records. Raises ChangedSourceError and the errors of `scan_stream`."""
        url, listed = source.url, self.found(source)
        with SourceWatch([listed]), _reading_whole(listed):
            return scan_stream(url, self.storage_options, self.type_of(url).in_one_pass(), listed)

    def found(self, source: Source) -> FileInfo:
        """Return the size and version that a file must have while it is read; see `current_file`."""
        return current_file(source, self.storage_options)

    def open_file(self, source: Source) -> Reader:
        """Open a file for reading by position. `SourceKind.cut` has checked its index."""
        url = source.url
        found = self.type_of(url)
        columns = found.columns()
        if columns is not None:
            return self.open_columns(source, columns)
        kind = found.by_position()
        index = self._index_file(source, kind)
        # A second check would cost each task two requests.
        return kind.open(url, index, self.storage_options, check=False, listed=self.found(source))

    def open_columns(self, source: Source, kind: ColumnFormat) -> ColumnReader:
        """Open a columnar file; see `ColumnFormat.open_columns`."""
        listed = self.found(source)
        reader = kind.open_columns(source.url, self.storage_options, listed=listed)
        if not self.columns and self._keys_may_be_nested:
            with closing(reader):  # its schema shows whether a.b is a column, or a value in the column a
                names = reader.schema.names
            columns = [key if key in names else key.partition(".")[0] for key in self.keys]
            reader = kind.select(columns).open_columns(source.url, self.storage_options, listed=listed)
        reader.held = HeldGroups(0)  # tasks read each row group once; two tasks may share one
        return reader

    def _index_file(self, source: Source, kind: OffsetFormat) -> IndexFile:
        index = kind.index_file(source.url, self.index, self.storage_options)
        listed = index_of(source.url, source.version)
        return index if listed is None else index.as_listed(listed)

    @property
    def _keys_may_be_nested(self) -> bool:
        return any("." in key for key in self.keys)


def _reading_whole(listed: FileInfo) -> AbstractContextManager[object]:
    """Return a context manager for reading a whole file. Large files are read one at a time, to limit memory."""
    return nullcontext() if listed.size <= _READ_BESIDE else _one_large


def _with_index(
    listed: FileInfo, index: IndexFile, options: Mapping[str, Any]
) -> tuple[FileInfo, Callable[[], NDArray[np.uint64]]]:
    """Return the current properties of a source, and a function that loads its index. Remote requests are parallel."""
    if is_local(index.url):
        return require_listed(listed, options), index.load
    with ThreadPoolExecutor(1, "ledgerbeam-index") as threads:
        loading = threads.submit(index.load)
        return require_listed(listed, options), loading.result


@dataclass(frozen=True)
class _OffsetFile(SourceKind):
    """A file that stores its records one after the other, in the order of their offsets."""

    sources: FileSources
    type: FileType

    counts_blanks = True
    cut_waits = True

    def open(self, source: Source) -> Opened:
        reader, kind, form = self.sources.open_file(source), self.type.by_position(), self.sources.reading
        some = partial(_some_of_offsets, form, kind, reader)
        return _OpenedFile(reader, partial(form.span, kind, reader), some, fetches=form.fetches(kind, reader))

    @contextmanager
    def open_stream(self, source: Source, kind: OffsetFormat) -> Iterator[StreamReader]:
        """Open a file to read it in one pass. One block of the file and one span are in memory."""
        listed, options = self.sources.found(source), self.sources.storage_options
        watch = SourceWatch([listed])
        with SpanReader(listed.url, options, kind, listed=listed) as reader:
            yield _WatchedStream(reader, kind, watch, self.sources.reading)

    def _cut_stream(self, source: Source, found: StreamedRecords, limits: TaskLimits) -> Cut:
        """Divide a file into spans of the records that one pass over it has found."""
        spans = plan_spans(found.offsets, **limits._asdict())
        places = tuple(
            StreamSpan(start, stop - start, int(found.offsets[start]), int(found.offsets[stop]))
            for start, stop in spans
        )
        return Cut(source, spans, StreamCut(places, found.format))


@dataclass(frozen=True)
class IndexedFile(_OffsetFile):
    """A file that is read by position, with its index; on a web server without byte ranges, in one pass."""

    any_part = True

    def files(self, source: Source) -> list[FileInfo]:
        """Return the file, and its index if that is a part of its content."""
        index = index_of(source.url, source.version)
        return listed_files(source) + ([] if index is None else [index])

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a file by its index, which is built if necessary."""
        source = with_file_marks(source, self.sources.storage_options)
        if self.type.by_offsets().is_streamable and not takes_ranges(source.url, self.sources.storage_options):
            return self._cut_stream(source, self.sources.scan(source), limits)
        return Cut(source, plan_spans(self.sources.load_index(source, changed=changed), **limits._asdict()))


@dataclass(frozen=True)
class CompressedFile(_OffsetFile):
    """A compressed file: read by position if it has an index and seek points, else in one pass."""

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a file by its index, or by the records found in one pass over it."""
        source = with_file_marks(source, self.sources.storage_options)
        offsets = None if changed and not is_content(source) else self._load_index(source)
        if offsets is not None:
            return Cut(source, plan_spans(offsets, **limits._asdict()))
        found = self.sources.scan(source)
        cut = self._cut_stream(source, found, limits)
        kind, compression = self.type.format, self.type.compression
        if len(cut.spans) > 1 and compression is not None and isinstance(kind, StreamAdvisor):
            listed, options = self.sources.found(source), self.sources.storage_options
            if advice := kind.stream_advice(compression.name, listed, options, int(found.offsets[1])):
                _log.warning("%s: %s", source.url, advice)
        return cut

    def _load_index(self, source: Source) -> NDArray[np.uint64] | None:
        """Return the offsets in the decompressed bytes; None if there is no index, or it does not fit."""
        url, listed = source.url, self.sources.found(source)
        try:
            kind = self.type.by_position()
            index = kind.index_file(url, self.sources.index, self.sources.storage_options)
            with SourceWatch([listed]):
                found, load = _with_index(listed, index, self.sources.storage_options)
                offsets = load()
                kind.check_index(index, found)
                return offsets if takes_ranges(url, self.sources.storage_options) else None
        except (IndexNotFoundError, NotIndexableError):
            return None
        except IndexMismatchError as error:
            _log.warning("%s: one worker reads this file in one pass, since its index does not fit (%s)", url, error)
            return None


@dataclass(frozen=True)
class ColumnFile(SourceKind):
    """A columnar file, whose footer lists its row groups."""

    sources: FileSources
    format: ColumnFormat

    cut_waits = True

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a file between row groups, and divide row groups that are larger than a task."""
        del changed  # the footer is a part of the file
        source = with_file_marks(source, self.sources.storage_options)
        with SourceWatch([listed_file(source)]), closing(self.sources.open_columns(source, self.format)) as reader:
            return Cut(source, plan_rows(reader.groups, **limits._asdict()))

    def open(self, source: Source) -> Opened:
        reader = self.sources.open_columns(source, self.format)
        form = self.sources.reading

        def some(numbers: NDArray[np.int64], *, each: bool = False) -> Any:
            return form.of_table(reader, numbers, reader.read_rows(numbers), each=each)

        return _OpenedFile(reader, partial(form.rows, reader), some)


@dataclass(frozen=True)
class PackedFiles(SourceKind):
    """A pack of small files. One task reads the whole pack; its span counts files, not records."""

    sources: FileSources

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        del limits, changed  # the size of a pack is limited when it is created
        return Cut(source, [(0, len(source.members))])

    def open(self, source: Source) -> Opened:
        """Return the reader of the files, which keeps none of them open."""
        return _Pack(source, self.sources)


class _OpenedFile:
    def __init__(
        self, reader: Reader, read: Callable[..., Any], some: Callable[..., Any], *, fetches: bool = False
    ) -> None:
        self.fetches = fetches
        self.read_span, self.read_each = read, partial(read, each=True)
        self.read_some = some
        self.read_raw, self.close = reader.read_raw, reader.close


def _some_of_offsets(
    form: Form, kind: OffsetFormat, reader: Reader, numbers: NDArray[np.int64], *, each: bool = False
) -> Any:
    if kind.ends_at_newlines:
        return form.of_raw(kind, reader.url, raw_of(reader, numbers), each=each)
    records = numbers.tolist()
    try:
        return form.of_values(reader, numbers, reader.read_many(records))
    except RecordError:
        if not each:
            raise
    return form.of_values(reader, numbers, [_or_unreadable(reader, record) for record in records])


def _or_unreadable(reader: Reader, record: int) -> Any:
    try:
        return reader[record]
    except RecordError as error:
        return Unreadable(message_of(error))


class _WatchedStream:
    def __init__(self, reader: SpanReader, kind: OffsetFormat, watch: SourceWatch, form: Form) -> None:
        self._reader = reader
        self._watch = watch
        self._kind = kind
        self._form = form

    def read(self, span: StreamSpan, *, each: bool = False) -> Any:
        with self._watch:
            return self._form.split(self._kind, self._reader.read_data(span), self._reader.url, span, each=each)

    def read_some(self, span: StreamSpan, numbers: NDArray[np.int64], *, each: bool = False) -> Any:
        wanted = set(numbers.tolist())
        raw = [one for one in self.read_raw(span) if one.record in wanted]
        return self._form.of_raw(self._kind, self._reader.url, raw, each=each)

    def read_each(self, span: StreamSpan) -> Any:
        return self.read(span, each=True)

    def read_raw(self, span: StreamSpan) -> list[RawRecord]:
        with self._watch:
            return self._reader.read_raw(span)


class _Pack:
    fetches = False

    def __init__(self, source: Source, sources: FileSources) -> None:
        self._files = source.members
        self._sources = sources
        self._form = sources.reading

    def read_span(self, start: int, stop: int) -> Any:
        return self._form.joined([self._records(url, data) for url, data in self._read(start, stop)])

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        configured = self._sources.configured
        return [raw for url, data in self._read(start, stop) for raw in split_source_raw(data, url, configured)]

    def read_each(self, start: int, stop: int) -> Any:
        parts = []
        for url, data in self._read(start, stop):
            try:
                parts.append(self._records(url, data))
            except RecordError:
                parts.append(self._records(url, data, each=True))
        return self._form.joined(parts)

    def _records(self, url: str, data: bytes, *, each: bool = False) -> Any:
        form = self._form
        kind, plain = decompressed_source(data, url, self._sources.configured)
        if is_columnar(kind):
            reader = kind.open_bytes(plain, url)
            return form.rows(reader, 0, len(reader), each=each)
        return form.split(kind, plain, url, each=each)

    def _read(self, start: int, stop: int) -> Iterator[tuple[str, bytes]]:
        """Yield the URL and the content of each file of a span."""
        files = self._files[start:stop]
        listed = None if any(map(lacks_store_version, files)) else list(map(listed_file, files))
        contents = read_many_files([file.url for file in files], self._sources.storage_options, listed)
        for file, data in zip(files, contents, strict=True):
            if len(data) != file.size:
                raise changed_error(listed_file(file), f"{len(data)} bytes")
            require_content(file, [data])
            yield file.url, data

    def close(self) -> None:
        """Do nothing: no file is open."""
