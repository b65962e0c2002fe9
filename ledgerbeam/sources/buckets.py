"""Buckets of an exchange as sources. The slices of a bucket in the run files determine its version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

import orjson

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import RunFileError
from ledgerbeam.io.exchange.hash_run import HashRows, leading_hashes, merged_hashes
from ledgerbeam.io.exchange.merge import Bound, Merged, SliceOf, cut_slices, merged, read_tables
from ledgerbeam.io.exchange.payloads import record_of
from ledgerbeam.io.exchange.run_file import RunBlock
from ledgerbeam.io.exchange.slices import RunFile, RunLayout, SliceTables, bucket_name
from ledgerbeam.io.index.reader import NO_BYTES, RawRecord
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.ledger import Source
from ledgerbeam.sources.forms import FILE_SHIFT, RecordBlocks
from ledgerbeam.sources.kind import BUCKET_SCHEME, Cut, SourceKind, TaskLimits

_BASE = f"{BUCKET_SCHEME}/"

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class BucketListing:
    """Lists the buckets of an exchange."""

    url: str  # a JSON file with the ``names``, ``sizes`` and ``versions`` of the buckets
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.url

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the buckets: one page."""
        del left_out  # no file is left out
        found = orjson.loads(read_bytes(self.url, self.storage_options))
        yield bucket_page(found["sizes"], found["versions"], found["names"])


def bucket_page(sizes: Sequence[int], versions: Sequence[str], names: Iterable[str] | None = None) -> Page:
    """Return the buckets of an exchange as a page of sources, in order, from their sizes in bytes and their versions.

    The version of a bucket without records is empty. Default of `names`: `bucket_name` of the number of each bucket.
    """
    every = map(bucket_name, range(len(sizes))) if names is None else names
    return Page([f"{_BASE}{name}" for name in every], list(sizes), list(versions))


@dataclass(frozen=True)
class BucketSources(SourceKind):
    """Opens the buckets of an exchange, which all are of this kind. A task reads a part of about `part_bytes`.

    A bucket is divided into numbered parts, and the span `[n, n + 1)` is part `n`.
    """

    tables: SliceTables
    part_bytes: int
    within_keys: bool = True  # a part may start in the middle of the records of a key
    beside: int = 0  # from this number of first jobs, a part can read all records of its first key; see `begun`

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_layout"}

    @cached_property
    def _layout(self) -> RunLayout:
        return self.tables.layout()

    @property
    def base(self) -> str:
        """The common prefix of the URLs of all buckets."""
        return _BASE

    def kind_of(self, source: Source) -> SourceKind:
        return self

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Do nothing: this module creates the names of buckets."""

    def files(self, source: Source) -> list[FileInfo]:
        """Return no files: the blocks of run files have checksums."""
        return []

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a bucket into parts of about equal size. Raises RunFileError, and the errors of reading run files."""
        del limits, changed  # all parts have the same size; a changed bucket is another source
        if not source.version:
            return Cut(source, [])
        return Cut(source, [(part, part + 1) for part in range(len(self.open(source).bounds) - 1)])

    def open(self, source: Source) -> OpenedBucket:
        name = source.url.removeprefix(_BASE)
        runs = self._layout.cells[name].runs
        slices = self.tables.slices(self._layout, name, source.version)
        return OpenedBucket(self, source, slices, self._layout.runs[runs.start : runs.stop])


class OpenedBucket:
    """Reads the parts of a bucket. Part `n` is between `bounds[n]` and `bounds[n + 1]`; None is an end of the bucket.

    The records of a key may be in several parts. All of them in the first `beside` run files are in the first of these
    parts, and `begun` reads them for each other part. `tables` has the table of blocks of each slice.
    """

    fetches = False

    def __init__(self, sources: BucketSources, source: Source, slices: list[SliceOf], runs: Sequence[RunFile]) -> None:
        self.number = int(source.url.removeprefix(_BASE).split("-")[1])
        self.slices = slices
        self.runs = runs
        self.beside = sum(0 <= run.side < sources.beside for run in runs)
        self.options = dict(sources.tables.storage_options)
        self.tables = read_tables(slices, self.options)
        bounds: list[Bound] = []
        if source.size > _MOST_PARTS_BYTES * sources.part_bytes:
            size, within_keys = sources.part_bytes, sources.within_keys
            bounds = cut_slices(slices, self.tables, size, within_keys=within_keys, together=self.beside)
        self.bounds: list[Bound | None] = [None, *bounds, None]

    def read_span(self, start: int, stop: int) -> GatheredRecords:
        """Return the records of the parts `[start, stop)`. Each pass over the result reads them from the run files."""
        return GatheredRecords(self, self.bounds[start], self.bounds[stop])

    def read_each(self, start: int, stop: int) -> GatheredRecords:
        """Return the result of `read_span`: every record can be decoded, unless its run file is damaged."""
        return self.read_span(start, stop)

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the records of the parts `[start, stop)` as bytes of run files, with their places in the sources."""
        records = self.read_span(start, stop)
        return [
            RawRecord(*records.place(run, number), NO_BYTES, NO_BYTES, data)
            for part in records.merged()
            for _, run, number, data in part.rows()
        ]

    def close(self) -> None:
        """Do nothing: no file is open."""


_MOST_PARTS_BYTES = 1.5  # smallest ratio of the sizes of a bucket and a part at which the bucket is divided


class GatheredRecords(RecordBlocks):
    """The records of a part of a bucket. Each pass reads and merges them in order, and never holds all in memory.

    A pass raises RunFileError for a damaged run file, and the errors of reading the store.
    """

    def __init__(self, bucket: OpenedBucket, start: Bound | None, stop: Bound | None) -> None:
        super().__init__(())
        self._bucket = bucket
        self._start, self._stop = start, stop

    def __iter__(self) -> Iterator[list[Any]]:
        """Start a pass: yield the records in their order, decoded, in lists."""
        for part in self.merged():
            yield list(map(record_of, part.payloads))

    def marking(self) -> Self:
        """Return this object: every record can be decoded, unless its run file is damaged."""
        return self

    def merged(self) -> Iterator[Merged]:
        """Start a pass: yield the records in their order, in groups, with their keys and places."""
        bucket = self._bucket
        parts = merged(bucket.slices, bucket.tables, self._start, self._stop, bucket.options)
        return self._counted(parts, lambda part: len(part.payloads))

    def _counted(self, parts: Iterator[_Part], length: Callable[[_Part], int]) -> Iterator[_Part]:
        passed = 0
        for part in parts:
            passed += length(part)
            yield part
        self.passed = passed

    @property
    def beside(self) -> int:
        """Number of first run files whose records `begun` reads; see `OpenedBucket`."""
        return self._bucket.beside

    @property
    def earlier(self) -> int:
        """Number of run files that earlier jobs have written. They are before all others."""
        return sum(run.is_earlier for run in self._bucket.runs)

    def begun(self) -> Iterator[Merged]:
        """Yield the records before this part that have its first key and are in the first `beside` run files."""
        bucket, start = self._bucket, self._start
        if start is None or start.run < bucket.beside:
            return
        begin, end = Bound(start.key), Bound(start.key, bucket.beside)
        count = sum(one.run < bucket.beside for one in bucket.slices)
        yield from merged(bucket.slices[:count], bucket.tables[:count], begin, end, bucket.options)

    def hashes(self, held_rows: int) -> Iterator[HashRows]:
        """Yield records whose keys are hashes, in their order, as columns; see `merged_hashes`."""
        bucket = self._bucket
        options = bucket.options
        rows = merged_hashes(bucket.slices, bucket.tables, self._start, self._stop, options, held_rows=held_rows)
        return self._counted(rows, len)

    @property
    def cut_keys(self) -> list[bytes]:
        """The keys, at most two, whose records are divided between this part and a neighbouring part."""
        bounds = (bound for bound in (self._start, self._stop) if bound is not None)
        return sorted({bound.key for bound in bounds if (bound.run, bound.number) > (0, 0)})

    def leading_of_cut_keys(self) -> HashRows:
        """Return the records of the bucket that have a hash of `cut_keys` and a number below `hash_run.LEADING`."""
        bucket = self._bucket
        return leading_hashes(bucket.slices, bucket.tables, self.cut_keys, bucket.options)

    def unmerged(self) -> Iterator[bytes]:
        """Yield the records of a whole bucket as bytes, one run file after the other."""
        bucket = self._bucket
        alone = zip(bucket.slices, bucket.tables, strict=True)
        parts = (part for one, table in alone for part in merged([one], [table], None, None, bucket.options))
        for part in self._counted(parts, lambda part: len(part.payloads)):
            yield from part.payloads

    @property
    def bucket(self) -> int:
        """The number of the bucket."""
        return self._bucket.number

    def renumbered(self) -> Iterator[RunBlock]:
        """Yield the records in order, in groups, with their keys and the numbers that they have in a merged run file.

        Raises RunFileError if the run files have more than 2^24 source files.
        """
        runs = self._bucket.runs
        files = len(runs[0].sources.followed_by(runs[-1].sources))
        if files >> (64 - FILE_SHIFT):
            raise RunFileError(
                f"{runs[0].name}: expected at most 2^24 source files in one merge, found {files:,}; join small sources "
                "first, with ledgerbeam repartition or convert --pack"
            )
        firsts = np.array([(run.sources.start - runs[0].sources.start) << FILE_SHIFT for run in runs], np.uint64)
        for part in self.merged():
            yield RunBlock(part.keys, firsts[part.runs] + part.numbers, part.payloads)

    def place(self, run: int, number: int) -> tuple[str, int]:
        """Return the URL of the source file of a record of a run file, and its number in that file."""
        name, _, urls, *_ = self._bucket.runs[run]
        file, within = divmod(number, 1 << FILE_SHIFT)
        if file >= len(urls):
            raise RunFileError(f"{name}: expected the number of a file below {len(urls)}, found {file}")
        return urls[file], within
