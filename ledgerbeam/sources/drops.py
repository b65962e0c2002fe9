"""Files of which some records are left out: which ones, run files say that have the records by their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.io import FileInfo, OffsetFormat, RawRecord, StreamSpan, read_bytes
from ledgerbeam.io.exchange.merge import merged, read_tables
from ledgerbeam.io.exchange.slices import RunFile, SliceTables
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.packing import pack_sources
from ledgerbeam.sources.files import FileSources
from ledgerbeam.sources.kind import Cut, Opened, SourceKind, StreamReader, TaskLimits
from ledgerbeam.sources.placed import PlacedPart, PlacedRecords

__all__ = ["DROPS_SCHEME", "DropBuckets", "FilteredSources", "RemainingRecords", "file_key", "with_drops"]

DROPS_SCHEME = "drops://"
"""The scheme of URLs of lists of records: a member of a pack with the file that they are of."""

KEY_BYTES = 16


def file_key(url: str) -> bytes:
    """Return the key of the records of a file among what is dropped."""
    return blake2b(url.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES, person=b"lb.file").digest()


@dataclass(frozen=True)
class DropBuckets:
    """The buckets of what is dropped, by hashes of the names of files.

    Attributes:
        url: The file that lists their versions, JSON.
        storage_options: Passed to fsspec unchanged.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def versions(self) -> list[str]:
        """Return their versions, in order; empty for one without records."""
        found: list[str] = orjson.loads(read_bytes(self.url, dict(self.storage_options)))["versions"]
        return found


def bucket_of(url: str, buckets: int) -> int:
    """Return which bucket has what is dropped of a file."""
    return int.from_bytes(file_key(url)[:8], "big") * buckets >> 64


def with_drops(files: Iterable[Source], buckets: DropBuckets, pack_bytes: int | None) -> Iterator[Source]:
    """Make a source of each file, or pack of files, together with what is dropped of it.

    Args:
        files: As they are listed.
        buckets: Of what is dropped.
        pack_bytes: Size of a pack of small files; None packs nothing.
    """
    versions = buckets.versions()
    for source in files if pack_bytes is None else pack_sources(files, target_bytes=pack_bytes):
        members = source.members or (source,)
        found = sorted({bucket_of(file.url, len(versions)) for file in members})
        version = blake2b("\n".join(versions[bucket] for bucket in found).encode(), digest_size=16).hexdigest()
        yield Source.pack([*members, Source(f"{DROPS_SCHEME}{source.url}", 0, version)])


class RemainingRecords(NamedTuple):
    """What is left of the records of a span.

    Attributes:
        records: With their places.
        dropped: How many are not among them.
    """

    records: PlacedRecords
    dropped: int

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class FilteredSources:
    """Opens what `with_drops` makes.

    Attributes:
        files: Opens the files, in the form ``placed``.
        tables: Of the run files of what is dropped.
        buckets: How many buckets they have.
        versions: Of the buckets.
    """

    files: FileSources
    tables: SliceTables
    buckets: DropBuckets

    def kind_of(self, source: Source) -> SourceKind:
        """Return the kind of a source."""
        return _FilteredKind(self, self.files.kind_of(_files_of(source)))

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Check by their names that sources can be read; see `Sources`."""
        self.files.check_names((url for url in urls if not url.startswith(DROPS_SCHEME)), by_position=by_position)


def _files_of(source: Source) -> Source:
    """Return the file, or the pack of files, of a source."""
    files = source.members[:-1]
    return files[0] if len(files) == 1 else Source.pack(files)


@dataclass(frozen=True)
class _FilteredKind(SourceKind):
    """A file without what is dropped of it."""

    sources: FilteredSources
    inner: SourceKind

    def files(self, source: Source) -> list[FileInfo]:
        return self.inner.files(_files_of(source))

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        cut = self.inner.cut(_files_of(source), limits, changed=changed)
        found = cut.source.members or (cut.source,)
        return dataclasses.replace(cut, source=dataclasses.replace(source, members=(*found, source.members[-1])))

    def open(self, source: Source) -> Opened:
        return _Filtered(self.inner.open(_files_of(source)), _Dropped(self.sources, _files_of(source)))

    def open_stream(self, source: Source, kind: OffsetFormat) -> AbstractContextManager[StreamReader]:
        return self._stream(source, kind)

    @contextmanager
    def _stream(self, source: Source, kind: OffsetFormat) -> Iterator[StreamReader]:
        files = _files_of(source)
        with self.inner.open_stream(files, kind) as reader:
            yield _FilteredStream(reader, _Dropped(self.sources, files))


class _Dropped:
    """What is dropped of the files of a source; read when it is asked for the first time."""

    def __init__(self, sources: FilteredSources, source: Source) -> None:
        self._sources = sources
        self._source = source
        self._numbers: dict[str, NDArray[np.uint64]] | None = None

    def remaining(self, records: PlacedRecords) -> RemainingRecords:
        """Return records without those that are dropped."""
        if self._numbers is None:
            self._numbers = self._read()
        parts, dropped = [], 0
        for part in records.parts:
            gone = np.isin(part.numbers, self._numbers[part.url], assume_unique=True)
            dropped += int(np.count_nonzero(gone))
            parts.append(_without(part, gone) if gone.any() else part)
        return RemainingRecords(PlacedRecords(parts), dropped)

    def _read(self) -> dict[str, NDArray[np.uint64]]:
        versions = self._sources.buckets.versions()
        runs = self._sources.tables.runs()
        by_url = {file.url: file_key(file.url) for file in self._source.members or (self._source,)}
        found: dict[bytes, list[int]] = {key: [] for key in by_url.values()}
        for bucket in {bucket_of(url, len(versions)) for url in by_url}:
            if versions[bucket]:
                self._take(runs, bucket, versions[bucket], found)
        return {url: np.array(found[key], np.uint64) for url, key in by_url.items()}

    def _take(self, runs: Sequence[RunFile], bucket: int, version: str, found: dict[bytes, list[int]]) -> None:
        tables = self._sources.tables
        options = dict(tables.storage_options)
        slices = tables.slices(runs, bucket, version)
        for part in merged(slices, read_tables(slices, options), None, None, options):
            for key, number in zip(part.keys, part.numbers, strict=True):
                if key in found:
                    found[key].append(number)


def _without(part: PlacedPart, gone: NDArray[np.bool_]) -> PlacedPart:
    kept = np.flatnonzero(~gone).tolist()
    values = None if part.values is None else [part.values[place] for place in kept]
    lines = None if part.lines is None else [part.lines[place] for place in kept]
    return dataclasses.replace(part, numbers=part.numbers[kept], values=values, lines=lines)


class _Filtered:
    fetches = False

    def __init__(self, opened: Opened, dropped: _Dropped) -> None:
        self._opened = opened
        self._dropped = dropped
        self.read_raw = opened.read_raw
        self.close = opened.close

    def read_span(self, start: int, stop: int) -> RemainingRecords:
        return self._dropped.remaining(self._opened.read_span(start, stop))

    def read_each(self, start: int, stop: int) -> RemainingRecords:
        return self.read_span(start, stop)


class _FilteredStream:
    def __init__(self, reader: StreamReader, dropped: _Dropped) -> None:
        self._reader = reader
        self._dropped = dropped

    def read(self, span: StreamSpan) -> RemainingRecords:
        return self._dropped.remaining(self._reader.read(span))

    def read_each(self, span: StreamSpan) -> RemainingRecords:
        return self.read(span)

    def read_raw(self, span: StreamSpan) -> list[RawRecord]:
        return self._reader.read_raw(span)
