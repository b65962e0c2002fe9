"""Columns beside records: folders of files with one row for each record of a source, and the records that they select.

A folder has a catalog, the Arrow file ``_columns.arrow``. Its rows name a file with its checksum, and the source. So a
source's columns are found without a listing, and columns of another version of the source are refused. A second file
has the versions of the files in the store, such as times. A file without one, as in a copy of the folder, is compared
with its checksum before it is used.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import (
    ChangedSourceError,
    ColumnsNotFoundError,
    RecordError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import OffsetFormat, ParquetFormat, ShardFile, publish_bytes
from ledgerbeam.io.any_source import open_any
from ledgerbeam.io.columns.values import is_json, rows_at
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.index.reader import RawRecord, runs_of
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import index_again
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.model.identity import content_checksum, content_version
from ledgerbeam.sources.forms import PlacedRecords
from ledgerbeam.sources.kind import (
    Cut,
    Opened,
    Selectable,
    SelectableStream,
    SourceKind,
    Sources,
    StreamCut,
    StreamReader,
    TaskLimits,
    lacks_store_version,
    listed_file,
    with_file_marks,
)
from ledgerbeam.sources.where import NeededColumns, Where

if TYPE_CHECKING:
    from ledgerbeam.io.columns.reader import GroupedRows

CATALOG = "_columns.arrow"
VERSIONS = f"{MARKS_FOLDER}/columns.arrow"  # versions of the files in the store, in the order of the catalog
METADATA = b"ledgerbeam.columns"  # key in the metadata of a file of columns
_ROWS = 1 << 20  # number of records whose columns are in memory together
_FIRST = re.compile(r"-(\d{10,})\.parquet$")  # the number of the first record, in the name of a file of columns
_SMALL = 1 << 16  # size in bytes up to which a file may have no records, so that it needs no columns
_MOST_OPEN = 16  # largest number of files of columns that are open
_MOST_MADE = 32  # largest number of selections that are kept between dividing a source and reading it
_MOST_JOINED = 64  # largest number of spans that become one task because few of their records are selected

_SCHEMA = pa.schema(
    [
        ("id", pa.binary(16)),  # of the source, which covers its URL, size and version
        ("source", pa.binary()),  # in UTF-8, or as the file system has the name
        ("version", pa.string()),
        ("file", pa.binary()),  # relative to the folder
        ("size", pa.int64()),
        ("checksum", pa.string()),  # of the file
        ("records", pa.int64()),
    ]
)


class CatalogRow(NamedTuple):
    """A file of columns: its source, and its name, size and checksum."""

    id: bytes
    source: str
    version: str
    file: str
    size: int
    checksum: str
    records: int


def write_catalog(
    url: str, rows: Iterable[CatalogRow], stored: Sequence[str], names: Sequence[str], options: Mapping[str, Any]
) -> list[str]:
    """Write the catalog of a folder of columns, and return the URLs of its files.

    The rows of a source are adjacent, by their first record. `stored` has the version of each file in the store.
    """
    encoded = (row._replace(source=_encoded(row.source), file=_encoded(row.file)) for row in rows)  # type: ignore[arg-type]
    table = pa.Table.from_pylist([row._asdict() for row in encoded], _SCHEMA)
    catalog = _arrow_bytes(table, json.dumps([*names]))
    versions = _arrow_bytes(pa.table({"stored": [*stored]}), content_checksum([_encoded(url), catalog]))
    for name, data in ((VERSIONS, versions), (CATALOG, catalog)):
        publish_bytes(f"{url}/{name}", data, options)
    return [f"{url}/{VERSIONS}", f"{url}/{CATALOG}"]


def _arrow_bytes(table: pa.Table, metadata: str) -> bytes:
    table, data = table.replace_schema_metadata({METADATA: metadata.encode()}), io.BytesIO()
    with pa.ipc.new_file(data, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return data.getvalue()


def _stored_versions(url: str, catalog: bytes, options: Mapping[str, Any]) -> list[str] | None:
    """Return the versions of the files of a catalog in the store; None if they are not known for it at its place."""
    try:
        table = pa.ipc.open_file(read_bytes(f"{url}/{VERSIONS}", dict(options))).read_all()
    except (SourceNotFoundError, pa.ArrowInvalid):
        return None
    is_of_it = table.schema.metadata == {METADATA: content_checksum([_encoded(url), catalog]).encode()}
    return table["stored"].to_pylist() if is_of_it else None


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


_AGAIN = "run the ledgerbeam annotate that wrote the folder again, with this source"


def _lacking(folder: str, source: Source) -> str:
    return f"{folder}: has no columns for {source.url}; {_AGAIN}"


class ColumnFolder:
    """The catalog of a folder of columns.

    Raises:
        ColumnsNotFoundError: The folder has no catalog: no job has written it, or the job is not complete.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        try:
            data = read_bytes(f"{url}/{CATALOG}", dict(options))
        except SourceNotFoundError as error:
            raise ColumnsNotFoundError(
                f"--with {url}: expected a folder of columns, with the file {CATALOG}, found none; give the output "
                "of a complete ledgerbeam annotate"
            ) from error
        try:
            self._table = pa.ipc.open_file(data).read_all()
            self.names = tuple(json.loads(self._table.schema.metadata[METADATA]))
            self._ids: list[bytes] = self._table["id"].to_pylist()
            self._stored = _stored_versions(url, data, options) or [""] * len(self._ids)
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise SourceError(
                f"{url}/{CATALOG}: not the catalog of a folder of columns ({error}); run ledgerbeam annotate again"
            ) from error

    @cached_property
    def _places(self) -> dict[bytes, tuple[int, int]]:
        """The first row of each source, and the row after its last."""
        places: dict[bytes, tuple[int, int]] = {}
        for row, one in enumerate(self._ids):
            places[one] = (places.get(one, (row, row))[0], row + 1)
        return places

    @cached_property
    def _versions(self) -> dict[str, str]:
        return dict(
            zip(map(_decoded, self._table["source"].to_pylist()), self._table["version"].to_pylist(), strict=True)
        )

    def files_of(self, source: Source) -> list[Source]:
        """Return the files with the columns of a source, in the order of its records.

        A small source may have none: if it has records, `SelectedSources` raises the error.

        Raises:
            ChangedSourceError: The folder has columns of another version of the source.
            SourceNotFoundError: It has none.
        """
        if (place := self._places.get(source.id)) is None:
            known = self._versions.get(source.url)
            if known is None and source.size <= _SMALL:
                return []
            if known is None:
                raise SourceNotFoundError(_lacking(self.url, source))
            raise ChangedSourceError(
                f"{self.url}: has columns of {source.url} in version {known}, which is now in version "
                f"{source.version}; {_AGAIN}"
            )
        rows = self._table.slice(place[0], place[1] - place[0]).to_pylist()
        return [
            Source(f"{self.url}/{_decoded(row['file'])}", row["size"], content_version(row["checksum"]), stored=stored)
            for row, stored in zip(rows, self._stored[slice(*place)], strict=True)
            if row["records"]
        ]


def conditioned(
    folders: Sequence[ColumnFolder], where: str | Where, notes: str = "", option: str = "--cut"
) -> tuple[Where, tuple[NeededColumns, ...]]:
    """Return a condition over the columns of folders, and the columns that it needs.

    `where` is SQL, or a condition with a function, which needs all columns. `notes` names a column that is also needed,
    for an option.

    Raises:
        UsageError: Two folders have one name of a column, or the condition does not fit the columns.
    """
    known: dict[str, str] = {}
    for folder in folders:
        for name in folder.names:
            if (other := known.setdefault(name, folder.url)) != folder.url:
                raise UsageError(
                    f"--with: {other} and {folder.url} both have a column {name!r}; write one under another name"
                )
    if notes and notes not in known:
        raise ColumnsNotFoundError(f"{option}: no column {notes!r}; the columns are {', '.join(sorted(known))}")
    if isinstance(where, Where):
        condition, needed = where, set() if where.selects_all else set(known)
    else:
        condition = Where.of_sql(where, tuple(known))
        needed = {*condition.columns}
    found = (NeededColumns(one.url, tuple(name for name in one.names if name in needed | {notes})) for one in folders)
    return condition, tuple(one for one in found if one.names)


def with_columns(
    sources: Iterable[Source], needed: Sequence[NeededColumns], options: Mapping[str, Any]
) -> Iterator[Source]:
    """Yield each source together with the files of its columns. It raises the errors of `ColumnFolder`."""
    opened = [ColumnFolder(one.folder, options) for one in needed]
    for source in sources:
        columns = [file for folder in opened for file in folder.files_of(source)]
        yield Source.pack([*(source.members or (source,)), *columns])


@dataclass(frozen=True)
class ColumnsFormat(ParquetFormat):
    """Parquet files of columns, whose metadata name the source and the span of a task."""

    facts: str = ""  # the metadata, as JSON

    def of_task(self, task: Task) -> ColumnsFormat:
        """Return the format of the file of a task."""
        source = task.source
        facts = {"source": without_secrets(source.url), "size": source.size, "version": source.version}
        return replace(self, facts=json.dumps({**facts, "first": task.start, "records": task.stop - task.start}))

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode a row for each record of the task."""
        from ledgerbeam.io.columns.schema import written_table  # noqa: PLC0415

        table, expected = written_table(records, self.schema), json.loads(self.facts or "{}")
        if expected and len(table) != expected["records"]:  # an audit encodes any records
            raise RecordError(
                f"{expected['source']}: expected a row of columns for each of {expected['records']:,} records from "
                f"{expected['first']:,} on, found {len(table):,}; return one row for each record"
            )
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), METADATA: self.facts.encode()})
        return [ShardFile(self.suffixes[0], self.encode_table(table), table.num_rows)]


class Columns:
    """The columns of one source, as tables of rows by record number.

    Args:
        files: The files of each folder, in the order of the records, and the columns to read; no names for all.
    """

    def __init__(self, files: Iterable[tuple[Sequence[Source], tuple[str, ...]]], options: Mapping[str, Any]) -> None:
        self._files = [(list(map(_first, some)), some, names) for some, names in files if some]
        self._options = dict(options)
        self._open: dict[str, GroupedRows] = {}  # the last used files

    def rows(self, start: int, stop: int) -> pa.Table:
        """Return the columns of the records `[start, stop)`, a row for each. SourceError: a file has other rows."""
        columns: dict[str, Any] = {}
        if not self._files:
            raise SourceNotFoundError(f"records {start} to {stop - 1} have no columns; {_AGAIN}")
        for firsts, files, names in self._files:
            parts = []
            for place in range(max(0, bisect_right(firsts, start) - 1), len(files)):
                if firsts[place] >= stop:
                    break
                reader, first = self._opened(files[place], names), firsts[place]
                parts.append(reader.read_batch(max(start - first, 0), min(stop - first, len(reader))))
            table = pa.concat_tables(parts) if parts else pa.table({})
            if len(table) != stop - start:
                raise SourceError(
                    f"{files[0].url}: expected a row for each of the records {start} to {stop - 1}, found "
                    f"{len(table)}; run ledgerbeam annotate again"
                )
            columns |= {name: _plain(column) for name, column in zip(table.column_names, table.columns, strict=True)}
        return pa.table(columns)

    @property
    def records(self) -> int:
        """Number of records of the source; 0 without columns."""
        if not self._files:
            return 0
        firsts, files, names = self._files[0]
        return firsts[-1] + len(self._opened(files[-1], names))

    def close(self) -> None:
        """Close the files."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def _opened(self, file: Source, names: tuple[str, ...]) -> GroupedRows:
        if (reader := self._open.get(file.url)) is None:
            kind = ParquetFormat(columns=names)
            listed = listed_file(with_file_marks(file, self._options) if lacks_store_version(file) else file)
            reader = self._open[file.url] = kind.open_columns(file.url, self._options, listed=listed)
            if len(self._open) > _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
        return reader


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as its values; JSON null is null."""
    if not is_json(column.type):
        return column
    chunks = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
    texts = pa.chunked_array(chunks, pa.string())
    return pc.if_else(pc.equal(texts, "null"), pa.scalar(None, pa.string()), texts)


def _first(file: Source) -> int:
    found = _FIRST.search(file.url)
    if found is None:
        raise SourceError(f"{file.url}: not the name of a file of columns; run ledgerbeam annotate again")
    return int(found[1])


@dataclass(frozen=True)
class SelectedSources:
    """Opens the sources of `with_columns` to read only their selected records.

    Attributes:
        inner: Opens the sources alone.
        needed: The columns to read.
        where: The condition that selects records.
        notes: Name of the column whose values are the notes of the records; empty for no notes.
    """

    inner: Sources
    needed: tuple[NeededColumns, ...]
    where: Where
    notes: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    # Selections that this process has made to divide sources, for reading them; the last ones, by the sources' IDs.
    _made: dict[bytes, Chosen] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def kind_of(self, source: Source) -> SourceKind:
        return _SelectedKind(self, self.inner.kind_of(self.parts(source)[0]))

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        self.inner.check_names(urls, by_position=by_position)

    def group(self, files: Iterable[Source]) -> list[Source]:
        """Return the sources of listed files, with their columns. It raises the errors of `ColumnFolder`."""
        group = getattr(self.inner, "group", list)  # of shards of Shar
        return [*with_columns(group(files), self.needed, self.storage_options)]

    def counted(self, source: Source) -> tuple[int, int, int]:
        """Return the numbers of selected records, of all records, and of runs of selected records of a source."""
        plain, columns = self.parts(source)
        if plain.size and not all(columns):
            records: Any = open_any(plain.url, storage_options=self.storage_options)
            if any(True for _ in records):
                self.require_columns(plain, columns)
        with closing(self.selection(source)) as selection:
            total = selection.records
            numbers = selection.between(0, total).numbers
        return len(numbers), total, sum(1 for _ in runs_of(numbers))

    def require_columns(self, plain: Source, columns: Sequence[Sequence[Source]]) -> None:
        """Raise SourceNotFoundError if a folder has no columns for a source with records."""
        for needed, files in zip(self.needed, columns, strict=True):
            if not files:
                raise SourceNotFoundError(_lacking(needed.folder, plain))

    def parts(self, source: Source) -> tuple[Source, list[list[Source]]]:
        """Return a source without its columns, and the files of its columns by folder."""
        folders = [one.folder for one in self.needed]
        columns: list[list[Source]] = [[] for _ in folders]
        files: list[Source] = []
        for member in source.members:
            is_named = _FIRST.search(member.url) is not None
            of = [place for place, url in enumerate(folders) if is_named and member.url.startswith(f"{url}/")]
            (columns[max(of, key=lambda place: len(folders[place]))] if of else files).append(member)
        return files[0] if len(files) == 1 else Source.pack(files), columns

    def selection(self, source: Source) -> ColumnSelection:
        """Return the selection of the records of a source."""
        files = zip(self.parts(source)[1], (one.names for one in self.needed), strict=True)
        return ColumnSelection(Columns(files, self.storage_options), self.where, self.notes)

    def made(self, source: Source, chosen: Chosen | None = None) -> Chosen | None:
        """Return the selection that this process has made for a source, if it still has it. `chosen` is kept as one."""
        if chosen is not None and len(chosen.numbers) < _ROWS:
            self._made[source.id] = chosen
            if len(self._made) > _MOST_MADE:
                self._made.pop(next(iter(self._made)), None)
        return self._made.get(source.id)


class Chosen(NamedTuple):
    """Selected records of a source: their numbers, ascending, and their notes, if any."""

    numbers: NDArray[np.int64]
    notes: list[Any] | None

    def between(self, start: int, stop: int) -> Chosen:
        """Return those with numbers in `[start, stop)`."""
        first, last = np.searchsorted(self.numbers, [start, stop]).tolist()
        return Chosen(self.numbers[first:last], self.notes and self.notes[first:last])

    def noted(self, records: Any) -> Any:
        """Return these records, which a reader has read, with their notes."""
        if self.notes is None:
            return records
        return PlacedRecords([part.with_notes(self.numbers, self.notes) for part in records.parts])


class ColumnSelection:
    """The selected records of one source. `notes` names the column with their notes; empty for no notes."""

    def __init__(self, columns: Columns, where: Where, notes: str = "") -> None:
        self._columns = columns
        self._where = where
        self._notes = notes

    @property
    def records(self) -> int:
        """Number of records of the source."""
        return self._columns.records

    def between(self, start: int, stop: int) -> Chosen:
        """Return the selected records in `[start, stop)`."""
        numbers, notes = [np.zeros(0, np.int64)], list[Any]()
        for first in range(start, stop, _ROWS):
            rows = self._columns.rows(first, min(first + _ROWS, stop))
            places = self._where.selected(rows)
            numbers.append(places + first)
            if self._notes:
                notes += rows_at(rows[self._notes], places).to_pylist()
        return Chosen(np.concatenate(numbers), notes if self._notes else None)

    def close(self) -> None:
        """Close the files of columns."""
        self._columns.close()


@dataclass(frozen=True)
class _SelectedKind(SourceKind):
    """The kind of a source with columns. `inner` is the kind without them."""

    sources: SelectedSources
    inner: SourceKind

    cut_waits = True

    @property
    def any_part(self) -> bool:  # type: ignore[override]
        return self.inner.any_part

    def files(self, source: Source) -> list[FileInfo]:
        plain, columns = self.sources.parts(source)
        return [*self.inner.files(plain), *(listed_file(file) for files in columns for file in files)]

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a source into spans with about as many selected bytes as the limits allow."""
        del changed  # a change may be one of columns; the job that wrote these has read this version with its index
        plain, columns = self.sources.parts(source)
        cut = self.inner.cut(plain, limits)
        if cut.spans:
            self.sources.require_columns(plain, columns)
        marked = [with_file_marks(file, self.sources.storage_options) for files in columns for file in files]
        whole = replace(source, members=(*(cut.source.members or (cut.source,)), *marked))
        records = cut.spans[-1][1] if cut.spans else 0
        with closing(self.sources.selection(whole)) as selection:
            if records != (rows := selection.records):
                problem = f"expected a record for each of {rows:,} rows of columns, found {records:,}"
                raise SourceError(f"{plain.url}: {problem}; run {index_again(plain.url)}, or write the columns again")
            chosen = selection.between(0, records)
        self.sources.made(whole, chosen)
        shares = [len(chosen.between(*span).numbers) / max(1, span[1] - span[0]) for span in cut.spans]
        # A span of a stream is read whole.
        groups = list(_groups(shares)) if cut.stream is None else [(at, at) for at, share in enumerate(shares) if share]
        spans = [(cut.spans[first][0], cut.spans[last][1]) for first, last in groups]
        if cut.stream is None:
            return Cut(whole, spans)
        places = cut.stream.places
        joined = tuple(
            StreamSpan(places[first].record, stop - start, places[first].start, places[last].stop)
            for (first, last), (start, stop) in zip(groups, spans, strict=True)
        )
        return Cut(whole, spans, StreamCut(joined, cut.stream.format))

    def open(self, source: Source) -> Opened:
        opened = cast(Selectable, self.inner.open(self.sources.parts(source)[0]))
        return _Selected(opened, self.sources.made(source), self.sources.selection(source))

    @contextmanager
    def open_stream(self, source: Source, kind: OffsetFormat) -> Iterator[StreamReader]:
        plain = self.sources.parts(source)[0]
        with (
            self.inner.open_stream(plain, kind) as reader,
            closing(self.sources.selection(source)) as selection,
        ):
            yield _SelectedStream(cast(SelectableStream, reader), self.sources.made(source) or selection)


def _groups(shares: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of neighbouring spans that together have as many selected records as one span.

    `shares` has the share of the selected records of each span. Spans without any join their neighbours.
    """
    first, held = None, 0.0
    for place, share in enumerate(shares):
        if first is not None and (held + share > 1 or place - first == _MOST_JOINED):
            yield first, place - 1
            first, held = None, 0.0
        if first is None and share:
            first = place
        held += share
    if first is not None:
        yield first, len(shares) - 1


class _Selected:
    fetches = False

    def __init__(self, opened: Selectable, made: Chosen | None, selection: ColumnSelection) -> None:
        self._opened = opened
        self._selection = selection
        self.between = (made or selection).between
        self.read_some = opened.read_some

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.between(start, stop).numbers

    def read_span(self, start: int, stop: int) -> Any:
        chosen = self.between(start, stop)
        return chosen.noted(self.read_some(chosen.numbers))

    def read_each(self, start: int, stop: int) -> Any:
        return self.read_some(self.numbers(start, stop), each=True)

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        runs = runs_of(self.numbers(start, stop))
        return [raw for first, last in runs for raw in self._opened.read_raw(first, last)]

    def close(self) -> None:
        self._selection.close()
        self._opened.close()


class _SelectedStream:
    def __init__(self, reader: SelectableStream, selection: Chosen | ColumnSelection) -> None:
        self._reader = reader
        self._selection = selection
        self.read_some = reader.read_some

    def read(self, span: StreamSpan) -> Any:
        chosen = self._chosen(span)
        return chosen.noted(self.read_some(span, chosen.numbers))

    def read_each(self, span: StreamSpan) -> Any:
        return self.read_some(span, self._chosen(span).numbers, each=True)

    def read_raw(self, span: StreamSpan) -> list[RawRecord]:
        wanted = set(self._chosen(span).numbers.tolist())
        return [raw for raw in self._reader.read_raw(span) if raw.record in wanted]

    def _chosen(self, span: StreamSpan) -> Chosen:
        return self._selection.between(span.record, span.record + span.records)
