"""Shards of Shar datasets as sources. A shard has several files, whose records at the same position form a sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import NotIndexableError, RecordError, SourceError
from ledgerbeam.io import Reader, TarFormat
from ledgerbeam.io.datasets.shar.format import HeldRecords, SharSamples, group_shards, require_shard, shard_field
from ledgerbeam.io.formats.streamed import split_source_raw
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.index.reader import runs_of
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.ledger import Source
from ledgerbeam.sources.files import FileSources
from ledgerbeam.sources.kind import (
    Cut,
    Opened,
    SourceKind,
    TaskLimits,
    Unreadable,
    listed_file,
    plan_spans,
    with_file_marks,
)
from ledgerbeam.user_code.guards import message_of


@dataclass(frozen=True)
class SharSources:
    """Opens shards of Shar datasets. A source is a pack of the files of one shard: the cuts, then the fields."""

    index: IndexLocation = field(default_factory=IndexLocation)
    build_index: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def require_name(url: str) -> None:
        """Raise the error of `require_shard` unless a name belongs to a file of a shard."""
        require_shard(url)

    @staticmethod
    def group(files: Iterable[Source]) -> list[Source]:
        """Return a source for each shard; see `group_shards`."""
        by_url: Mapping[str, Source] = {file.url: file for file in files}
        return [Source.pack([by_url[url] for url in urls]) for urls in group_shards(by_url)]

    def kind_of(self, source: Source) -> SourceKind:
        return SharShard(FileSources((TarFormat("pairs"),), self.index, self.build_index, self.storage_options))

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Do nothing: files with other names are skipped when the listing is grouped into shards."""


@dataclass(frozen=True)
class SharShard(SourceKind):
    """A shard of a Shar dataset."""

    files_of: FileSources

    cut_waits = True

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a shard into spans. The size of a sample is the sum of its records in all files.

        Raises the errors of `FileSources.load_index`; SourceError if the files have different numbers of records;
        NotIndexableError if a tar is compressed.
        """
        source = with_file_marks(source, self.files_of.storage_options)
        total: NDArray[np.uint64] | None = None
        for file in source.members:
            offsets = self._offsets(file, changed=changed)
            if total is not None and len(total) != len(offsets):
                raise SourceError(
                    f"{file.url}: expected {len(total) - 1} records, as many as cuts in {source.url}, found "
                    f"{len(offsets) - 1}; write the shard again"
                )
            offsets = offsets - offsets[0]
            total = offsets if total is None else total + offsets
        return Cut(source, plan_spans(np.zeros(1, np.uint64) if total is None else total, **limits._asdict()))

    def open(self, source: Source) -> Opened:
        cuts, *fields = map(self._open_file, source.members)
        named = {(shard_field(records.url) or ("", ""))[1]: records for records in fields}
        return _OpenedShard(cuts, named)

    def _offsets(self, file: Source, *, changed: bool) -> NDArray[np.uint64]:
        found = self.files_of.type_of(file.url)
        if found.compression is None:
            return self.files_of.load_index(file, changed=changed)
        if found.format.name == "tar":
            raise NotIndexableError(f"{file.url}: a compressed tar of a shard cannot be read; decompress it")
        return self.files_of.scan(file).offsets

    def _open_file(self, file: Source) -> HeldRecords | Reader:
        if self.files_of.type_of(file.url).compression is None:
            return self.files_of.open_file(file)
        data = read_bytes(file.url, self.files_of.storage_options, listed_file(file))
        return HeldRecords(file.url, self.files_of.type_of(file.url).in_one_pass(), split_source_raw(data, file.url))


class _OpenedShard(SharSamples):
    fetches = False

    def read_some(self, numbers: NDArray[np.int64], *, each: bool = False) -> list[Any]:
        """Return some samples; see `Selectable`."""
        read = self.read_each if each else self.read_span
        return [sample for start, stop in runs_of(numbers) for sample in read(start, stop)]

    def read_each(self, start: int, stop: int) -> list[Any]:
        """Return the samples of a span, with an `Unreadable` for each that cannot be decoded."""
        try:
            return list(self.read_span(start, stop))
        except RecordError as error:
            if stop - start == 1:
                return [Unreadable(message_of(error))]
        middle = (start + stop) // 2
        return self.read_each(start, middle) + self.read_each(middle, stop)
