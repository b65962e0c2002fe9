"""Files with lists of some of their records. A job reads the listed records, the other records, or only the list."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io import OffsetFormat, publish_bytes
from ledgerbeam.io.exchange.merge import merged, read_tables
from ledgerbeam.io.exchange.slices import RunLayout, SliceTables, bucket_name
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.sources.files import FileSources
from ledgerbeam.sources.forms import PlacedRecords
from ledgerbeam.sources.kind import Cut, Opened, SourceKind, StreamReader, TaskLimits
from ledgerbeam.sources.listing import SourceListing

if TYPE_CHECKING:  # only jobs of flows need it at run time
    from ledgerbeam.sources.listing import RecordedListing


LIST_SCHEME = "drops://"  # of the URLs of lists of records; a list is the last member of a pack, after its files

_KEY_BYTES = 16


def file_key(url: str) -> bytes:
    """Return the hash of the URL of a file, which is the key of its list in run files."""
    return blake2b(url.encode("utf-8", "surrogateescape"), digest_size=_KEY_BYTES, person=b"lb.file").digest()


@dataclass(frozen=True)
class ListBuckets:
    """Buckets of lists. The URL of a file decides the bucket of its list. `url` is a JSON file with their versions."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def versions(self) -> list[str]:
        """Return the versions of the buckets, in order; empty for a bucket without records."""
        found: list[str] = orjson.loads(read_bytes(self.url, dict(self.storage_options)))["versions"]
        return found


def bucket_of(url: str, buckets: int) -> int:
    """Return the number of the bucket that has the list of a file."""
    return int.from_bytes(file_key(url)[:8], "big") * buckets >> 64


def with_lists(files: Iterable[Source], buckets: ListBuckets, pack_bytes: int | None) -> Iterator[Source]:
    """Yield a source for each file, or each pack of small files: the files and, as the last member, their lists."""
    versions = buckets.versions()
    for source in files if pack_bytes is None else pack_sources(files, target_bytes=pack_bytes):
        members = source.members or (source,)
        found = sorted({bucket_of(file.url, len(versions)) for file in members})
        version = blake2b("\n".join(versions[bucket] for bucket in found).encode(), digest_size=16).hexdigest()
        yield Source.pack([*members, Source(f"{LIST_SCHEME}{source.url}", 0, version)])


class FileList(NamedTuple):
    """The listed records of a file: their numbers in the file, ascending, and a note of each: the bytes in the list."""

    numbers: NDArray[np.uint64]
    notes: list[bytes]


class RemainingRecords(NamedTuple):
    """The records of a span that are not listed, with their places, and the number of listed records."""

    records: PlacedRecords
    dropped: int

    def __len__(self) -> int:
        return len(self.records)


class ListedSpan(NamedTuple):
    """The list of a span: how many records the span has, and for each listed one its place there and its bytes."""

    records: int
    places: NDArray[np.int64]
    notes: list[bytes]

    def __len__(self) -> int:
        return self.records


@dataclass(frozen=True)
class WithEarlierFiles:
    """Lists the files of a job, then the files of earlier jobs that have records which the job also reads."""

    files: SourceListing | RecordedListing
    url: str  # a JSON file with the files of earlier jobs: ``of``, ``urls``, ``sizes`` and ``versions``
    state: str  # hash of the lists that decided these files; they are unknown if ``of`` is another hash
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.files.title

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List all files; see `SourceListing.pages`."""
        yield from self.files.pages(left_out)
        if earlier := self.earlier():
            yield earlier

    def earlier(self) -> Page | None:
        """Return the files of earlier jobs; None if `write` was not called for this `state`."""
        try:
            found = json.loads(read_bytes(self.url, dict(self.storage_options)))
        except SourceNotFoundError:
            return None
        return Page(found["urls"], found["sizes"], found["versions"]) if found["of"] == self.state else None

    def write(self, sources: Iterable[Source]) -> None:
        """Record the files of earlier jobs at `url`."""
        rows = [(source.url, source.size, source.version) for source in sources]
        urls, sizes, versions = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        named = {"of": self.state, "urls": urls, "sizes": sizes, "versions": versions}
        publish_bytes(self.url, json.dumps(named).encode(), dict(self.storage_options))  # names may not be UTF-8


@dataclass(frozen=True)
class ListedSources(ABC):
    """Opens the sources of `with_lists`. It reads files as `PlacedRecords`, and their lists from run files."""

    files: FileSources
    tables: SliceTables
    buckets: ListBuckets

    def kind_of(self, source: Source) -> SourceKind:
        return _ListedKind(self, self.files.kind_of(_files_of(source)))

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        self.files.check_names((url for url in urls if not url.startswith(LIST_SCHEME)), by_position=by_position)

    def has_tasks(self, lists: FileLists) -> bool:
        """Return whether a source has tasks."""
        return True

    @abstractmethod
    def taken(self, lists: FileLists, start: int, stop: int, read: Callable[[], PlacedRecords]) -> Sequence[Any]:
        """Return the input of a task for the records `[start, stop)` of a source. `read` returns these records."""


class RemainingSources(ListedSources):
    """Files without their listed records."""

    def taken(self, lists: FileLists, start: int, stop: int, read: Callable[[], PlacedRecords]) -> RemainingRecords:
        parts, dropped = [], 0
        for part in read().parts:
            gone = np.isin(part.numbers, lists.by_url[part.url].numbers, assume_unique=True)
            dropped += int(np.count_nonzero(gone))
            parts.append(part.some(~gone) if gone.any() else part)
        return RemainingRecords(PlacedRecords(parts), dropped)


class ChosenSources(ListedSources):
    """Only the listed records of files, with their notes."""

    def has_tasks(self, lists: FileLists) -> bool:
        return any(len(one.numbers) for one in lists.by_url.values())

    def taken(self, lists: FileLists, start: int, stop: int, read: Callable[[], PlacedRecords]) -> PlacedRecords:
        parts = []
        # A pack is one task.
        is_read = len(lists.by_url) > 1 or len(lists.of_span(start, stop).places) > 0
        for part in read().parts if is_read else ():
            listed = lists.by_url[part.url]
            chosen = part.some(np.isin(part.numbers, listed.numbers, assume_unique=True))
            parts.append(chosen.with_notes(listed.numbers.astype(np.int64), listed.notes))
        return PlacedRecords(parts)


class NotedSources(ListedSources):
    """Files, with the notes of the listed records."""

    def taken(
        self,
        lists: FileLists,
        start: int,
        stop: int,
        read: Callable[[], PlacedRecords],
    ) -> PlacedRecords:
        found = ((part, lists.by_url[part.url]) for part in read().parts)
        return PlacedRecords([part.with_notes(one.numbers.astype(np.int64), one.notes) for part, one in found])


class SourceLists(ListedSources):
    """Only the lists. The files, which are not packs, are not read."""

    def taken(self, lists: FileLists, start: int, stop: int, read: Callable[[], PlacedRecords]) -> ListedSpan:
        return lists.of_span(start, stop)


def _files_of(source: Source) -> Source:
    """Return the file, or the pack of files, of a source of `with_lists`, without the list."""
    files = source.members[:-1]
    return files[0] if len(files) == 1 else Source.pack(files)


@dataclass(frozen=True)
class _ListedKind(SourceKind):
    """The kind of a file or pack with a list. `inner` is the kind without the list."""

    sources: ListedSources
    inner: SourceKind

    def files(self, source: Source) -> list[FileInfo]:
        return self.inner.files(_files_of(source))

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        if not self.sources.has_tasks(FileLists(self.sources, _files_of(source))):
            return Cut(source, [])
        cut = self.inner.cut(_files_of(source), limits, changed=changed)
        found = cut.source.members or (cut.source,)
        return dataclasses.replace(cut, source=dataclasses.replace(source, members=(*found, source.members[-1])))

    def open(self, source: Source) -> Opened:
        files = _files_of(source)
        return _Opened(self.sources, self.inner.open(files), FileLists(self.sources, files))

    @contextmanager
    def open_stream(self, source: Source, kind: OffsetFormat) -> Iterator[StreamReader]:
        files = _files_of(source)
        with self.inner.open_stream(files, kind) as reader:
            yield _Stream(self.sources, reader, FileLists(self.sources, files))


class FileLists:
    """The list of records of each file of a source, which is a file or a pack. Lists are read on first use."""

    def __init__(self, sources: ListedSources, source: Source) -> None:
        self._sources = sources
        self._source = source

    def of_span(self, start: int, stop: int) -> ListedSpan:
        """Return the list of the records `[start, stop)` of a file."""
        (one,) = self.by_url.values()
        first, last = np.searchsorted(one.numbers, np.array([start, stop], np.uint64)).tolist()
        return ListedSpan(stop - start, one.numbers[first:last].astype(np.int64) - start, one.notes[first:last])

    @cached_property
    def by_url(self) -> dict[str, FileList]:
        """The list of each file, by URL."""
        versions = self._sources.buckets.versions()
        layout = self._sources.tables.layout()
        by_url = {file.url: file_key(file.url) for file in self._source.members or (self._source,)}
        found: dict[bytes, list[tuple[int, bytes]]] = {key: [] for key in by_url.values()}
        for bucket in {bucket_of(url, len(versions)) for url in by_url}:
            if versions[bucket]:
                self._take(layout, bucket, versions[bucket], found)
        return {url: _sorted_list(found[key]) for url, key in by_url.items()}

    def _take(self, layout: RunLayout, bucket: int, version: str, found: dict[bytes, list[tuple[int, bytes]]]) -> None:
        tables = self._sources.tables
        options = dict(tables.storage_options)
        slices = tables.slices(layout, bucket_name(bucket), version)
        for part in merged(slices, read_tables(slices, options), None, None, options):
            for key, _, number, note in part.rows():
                if key in found:
                    found[key].append((number, note))


def _sorted_list(rows: list[tuple[int, bytes]]) -> FileList:
    """Return the list of a file. The notes of a record that is in several lists are joined."""
    rows.sort()
    found = {number: b"".join(note for _, note in some) for number, some in groupby(rows, itemgetter(0))}
    return FileList(np.array([*found], np.uint64), [*found.values()])


class _Opened:
    fetches = False

    def __init__(self, sources: ListedSources, opened: Opened, lists: FileLists) -> None:
        self._sources = sources
        self._opened = opened
        self._lists = lists
        self.read_raw = opened.read_raw
        self.close = opened.close

    def read_span(self, start: int, stop: int) -> Any:
        return self._sources.taken(self._lists, start, stop, lambda: self._opened.read_span(start, stop))

    def read_each(self, start: int, stop: int) -> Any:
        return self.read_span(start, stop)


class _Stream:
    def __init__(self, sources: ListedSources, reader: StreamReader, lists: FileLists) -> None:
        self._sources = sources
        self._reader = reader
        self._lists = lists

    def read(self, span: StreamSpan) -> Any:
        stop = span.record + span.records
        return self._sources.taken(self._lists, span.record, stop, lambda: self._reader.read(span))

    def read_each(self, span: StreamSpan) -> Any:
        return self.read(span)

    def read_raw(self, span: StreamSpan) -> list[RawRecord]:
        return self._reader.read_raw(span)
