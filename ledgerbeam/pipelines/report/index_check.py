"""Checks of indexes against their sources, and of the footers of column files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ledgerbeam.errors import IndexMismatchError, LedgerbeamError
from ledgerbeam.io import ColumnFormat, OffsetFormat, Options, TarFormat, build_index, recognize
from ledgerbeam.io.formats.registry import require_no_columns
from ledgerbeam.io.index.file import IndexFile
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import index_again
from ledgerbeam.io.tar.grouping import Grouping

DEEP_CHUNK_RECORDS = 10_000
PAGE_SOURCES = 1_000


@dataclass(frozen=True)
class IndexCheck:
    """A check of the indexes of sources, several at a time.

    Attributes:
        location: Location of the indexes.
        group: Grouping of tar members to samples.
        options: Storage options.
        deep: Whether to scan the sources again and decode every record.
        columns: Columns to read of column files; empty for all.
    """

    location: IndexLocation
    group: Grouping
    options: Options
    deep: bool = False
    columns: tuple[str, ...] = ()

    def run(self, pages: Iterator[Page]) -> Iterator[tuple[str, int | str]]:
        """Check the sources of a listing.

        Yields:
            The URL of each source with its number of records, or with the problem if the check fails.
        """
        sources = (url for page in pages for url in page.urls)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            while chunk := list(islice(sources, PAGE_SOURCES)):
                yield from zip(chunk, pool.map(self._outcome, chunk), strict=True)

    def _outcome(self, url: str) -> int | str:
        try:
            return self.check(url)
        except LedgerbeamError as error:
            return str(error)

    def check(self, url: str) -> int:
        """Check one source's index and return its number of records.

        Raises:
            IndexNotFoundError: The source has no index.
            IndexMismatchError: The index does not match the source. A deep check also compares its offsets with a
                fresh scan.
            SourceError: A deep check finds a record that cannot be decoded.
        """
        found = recognize(url, [TarFormat(self.group)])
        columns = found.columns()
        if columns is not None:
            return self._check_columns(columns.select(self.columns), url)
        require_no_columns(url, self.columns)
        kind = found.by_position()
        source = stat(url, self.options)
        index = kind.index_file(source.url, self.location, self.options)
        kind.check_index(index, source, deep=self.deep)
        if self.deep:
            self._check_content(kind, index, source)
        return index.count

    def _check_columns(self, kind: ColumnFormat, url: str) -> int:
        """Check the footer of a column file; a deep check also decodes every row."""
        with closing(kind.open_columns(url, self.options)) as reader:
            count = len(reader)
            start = 0
            for group in reader.groups if self.deep else ():
                for begin in range(start, start + group.rows, DEEP_CHUNK_RECORDS):
                    reader.read_span(begin, min(begin + DEEP_CHUNK_RECORDS, start + group.rows))
                start += group.rows
            return count

    def _check_content(self, kind: OffsetFormat, index: IndexFile, source: FileInfo) -> None:
        if kind.is_indexable:
            self._check_offsets(kind, index, source)
        reader = kind.open(source.url, index, self.options, check=False)
        for start in range(0, index.count, DEEP_CHUNK_RECORDS):
            reader.read_span(start, min(start + DEEP_CHUNK_RECORDS, index.count))

    def _check_offsets(self, kind: OffsetFormat, index: IndexFile, source: FileInfo) -> None:
        found = index.load()
        expected = build_index(source.url, self.options, configured=[kind])
        # The last offset may be anywhere in the padding at the end of a tar file; check_index has checked it.
        if not np.array_equal(expected[:-1], found[:-1]):
            shared = min(len(expected), len(found)) - 1
            differs = np.flatnonzero(expected[:shared] != found[:shared])
            first = int(differs[0]) if len(differs) else shared
            raise IndexMismatchError(
                f"{index.url}: does not match {source.url}: record {first} of {len(found) - 1:,} has another offset in "
                f"a fresh scan of {len(expected) - 1:,} records; index it again with: {index_again(source.url)}"
            )
