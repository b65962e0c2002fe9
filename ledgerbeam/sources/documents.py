"""Lengths and places of the documents of Megatron datasets as the records of tasks. No tokens are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import SourceError, UnsupportedShapeError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.datasets.megatron.index import MegatronIndex
from ledgerbeam.io.datasets.megatron.packs import packed_ranges
from ledgerbeam.io.datasets.megatron.reader import MegatronReader
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.ledger import Source
from ledgerbeam.sources.kind import Cut, SourceKind, TaskLimits, listed_file, listed_files, with_file_marks
from ledgerbeam.sources.listing import index_of

_ASKED = 16  # number of documents whose last token is compared with the end-of-document token


@dataclass(frozen=True, eq=False)
class DocumentLengths:
    """Documents of a dataset.

    Attributes:
        numbers: Their numbers, ascending: i64, shape `(documents,)`.
        lengths: Their lengths in tokens: i64.
        offsets: Their first tokens in the `.bin`, in tokens: i64.
        dtype: Name of the dtype of the tokens.
    """

    numbers: NDArray[np.int64]
    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]
    dtype: str

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class DocumentSources:
    """Opens Megatron datasets as sources of `DocumentLengths`.

    Attributes:
        eod: Token that will be added to each document; a dataset whose documents end with it is refused.
        packs: Folder that may have earlier packs of the datasets.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    eod: int | None = None
    packs: str | None = None

    @cached_property
    def packed(self) -> dict[str, tuple[list[int], int]]:
        """The earlier ranges of the datasets; see `packed_ranges`."""
        return {} if self.packs is None else packed_ranges(self.packs, dict(self.storage_options))

    def kind_of(self, source: Source) -> SourceKind:
        self.check_names([source.url])
        return _DocumentFile(self)

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        del by_position
        for url in urls:
            if recognize(url).plain().name != "megatron":
                raise UsageError(f"{url}: expected the .bin of a Megatron dataset; make one with ledgerbeam tokenize")


@dataclass(frozen=True)
class _DocumentFile(SourceKind):
    sources: DocumentSources

    cut_waits = True

    def files(self, source: Source) -> list[FileInfo]:
        index = index_of(source.url, source.version)
        return listed_files(source) + ([] if index is None else [index])

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Divide a dataset at multiples of `task_bytes` of the `.bin`.

        In a dataset that has grown, the earlier documents stay divided as they were packed.
        """
        source = with_file_marks(source, self.sources.storage_options)
        index = self._index(source)
        index.check_ends(source.size)
        count = index.layout.documents
        if index.layout.dtype.kind not in "iu":
            raise SourceError(f"{source.url}: expected tokens that are integers, found {index.layout.dtype}")
        self._refuse_second_end(source, count)
        marks = np.arange(0, source.size, limits.task_bytes or max(1, source.size))
        first = index.documents[:-1].searchsorted(index.pointers.searchsorted(marks)) if count else marks[:0]
        kept = self._kept_bounds(source, index) if changed else [0]
        return Cut(source, list(pairwise(np.unique([*kept, *first[first > kept[-1]], count]).tolist())))

    def _kept_bounds(self, source: Source, index: MegatronIndex) -> list[int]:
        """Return the bounds of the earlier ranges of packed documents, or only 0.

        No range is kept if no document starts at the byte where the dataset ended then.
        """
        ranges, end = self.sources.packed.get(source.url, ([], 0))
        sequence = index.pointers.searchsorted(end)
        added = int(index.documents.searchsorted(sequence))  # first document after the earlier ones
        begin = source.size if sequence == len(index.pointers) else index.pointers[sequence]
        is_longer = begin == end and index.documents[added] == sequence
        return [0, *ranges, added] if ranges and is_longer and ranges[-1] < added else [0]

    def open(self, source: Source) -> _OpenDocuments:
        return _OpenDocuments(self._index(source))

    def _index(self, source: Source) -> MegatronIndex:
        options: Options = dict(self.sources.storage_options)
        return MegatronIndex(source.url, options, listed=index_of(source.url, source.version))

    def _refuse_second_end(self, source: Source, count: int) -> None:
        """Raise SourceError if documents end with the end-of-document token already."""
        if self.sources.eod is None:
            return
        options, index = dict(self.sources.storage_options), index_of(source.url, source.version)
        with MegatronReader(source.url, options, listed=listed_file(source), index_listed=index, check=False) as reader:
            for number in np.linspace(0, count - 1, min(count, _ASKED)).astype(int).tolist():
                last = [tokens[-1] for tokens in reader.document(number) if len(tokens)][-1:]
                if last == [self.sources.eod]:
                    raise SourceError(
                        f"{source.url}: document {number} ends with token {self.sources.eod} already; leave --eod out"
                    )


class _OpenDocuments:
    fetches = False

    def __init__(self, index: MegatronIndex) -> None:
        self._index = index

    def read_span(self, start: int, stop: int) -> DocumentLengths:
        index = self._index
        first = index.document_bounds(start)[0]
        ends = index.document_ends(start, stop)
        index.check_document_ends(ends, start, first)
        rows, width = index.rows(first, int(ends[-1])), index.layout.dtype.itemsize
        place = int(rows.pointers[0]) if len(rows.pointers) else 0
        if len(rows.lengths):
            index.check_rows(rows, first, place)
        if place % width:
            raise index.mismatch(f"expected sequences at multiples of {width} bytes, found one at byte {place}")
        before = np.concatenate(([0], np.cumsum(rows.lengths, dtype=np.int64)))
        edges = before[np.concatenate(([first], ends)) - first]
        numbers = np.arange(start, stop, dtype=np.int64)
        return DocumentLengths(numbers, np.diff(edges), place // width + edges[:-1], index.layout.dtype.name)

    read_each = read_span

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        raise UnsupportedShapeError(f"{self._index.url}: documents {start} to {stop} are read as lengths, not as bytes")

    def close(self) -> None:
        self._index.close()
