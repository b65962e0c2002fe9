"""Random access to the rows of several columnar files as one sequence."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import UsageError
from ledgerbeam.io.formats.format import CACHE_BYTES, ColumnFormat, ColumnReader, GroupKey, HeldGroups
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.reader import numbers_of, read_by_part
from ledgerbeam.io.storage.client import CONCURRENCY, Options, map_ahead
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url


class ColumnFiles:
    """Random access to the rows of several columnar files, which are numbered as one sequence.

    Picklable, safe to share between threads and to use after a fork. The footers are read concurrently at creation. A
    pickled object keeps the numbers of rows, and opens a file again when a row of it is read. The files may have
    different formats. `cache_bytes` limits the decoded row groups in memory, for all files together.

    Raises:
        SourceError: A file is damaged, encrypted, or not of the format that its name shows.
        SourceNotFoundError: There is no such source; also `ChangedSourceError` and StorageError.
        UsageError: There is no file, or a file is not columnar or lacks one of the columns.
    """

    def __init__(
        self,
        urls: Sequence[str],
        columns: Sequence[str] = (),
        options: Options | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not urls:
            raise UsageError("expected at least one file of columns, found none")
        self.columns = tuple(columns)
        self.options = options
        self.held = HeldGroups(cache_bytes)
        self._formats = [_format_of(url) for url in urls]
        self.files: list[FileInfo] = stat_many([canonical_url(url) for url in urls], options)
        self._readers: dict[int, ColumnReader] = {}
        groups = list(map_ahead(lambda file: list(self._reader(file).groups), range(len(urls)), CONCURRENCY))
        self._group_ends = np.cumsum([group.rows for of_file in groups for group in of_file], dtype=np.int64)
        self._group_bounds = np.cumsum([0, *map(len, groups)])  # groups of each file
        self._row_bounds = np.cumsum([0, *(sum(group.rows for group in of_file) for of_file in groups)])
        self.size = sum(group.size for of_file in groups for group in of_file)

    def __repr__(self) -> str:
        chosen = f", columns={self.columns!r}" if self.columns else ""
        return f"ColumnFiles({self.url!r}{f' and {len(self.files) - 1} more' if self.files[1:] else ''}{chosen})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    @property
    def url(self) -> str:
        """The first file."""
        return self.files[0].url

    @property
    def blocks(self) -> list[int]:
        """Number of rows of each row group, in order."""
        return np.diff(self._group_ends, prepend=0).tolist()

    def hold(self, blocks: int) -> None:
        """Keep at least the `blocks` most recently used row groups in memory, decoded, at any size."""
        self.held.least = blocks

    def __len__(self) -> int:
        return int(self._row_bounds[-1])

    def __getitem__(self, number: int, /) -> dict[str, Any]:
        return self.read_many([operator.index(number)])[0]

    def read_many(self, indices: Sequence[int] | NDArray[np.int64]) -> list[dict[str, Any]]:
        """Read records by number, in any order; negative ones count from the end.

        A call reads each row group that is not in memory once. After `hold(N)`, a row group stays in memory at least
        until N other row groups were used.

        Raises:
            IndexError: A number is out of range.
            RecordError: A record cannot be decoded. A SourceError: the file is damaged.
        """
        numbers = numbers_of(indices, len(self), repr(self))
        groups = self._group_ends.searchsorted(numbers, "right")
        found: list[dict[str, Any]] = []
        for start, stop in _turns(groups, self.held.least):
            # Before the read, so that the cache keeps these; after it, so that their order is that of the last use.
            keys = self._keys(groups[start:stop])
            self.held.use(keys)
            found += read_by_part(
                numbers[start:stop], self._row_bounds, lambda file, rows: self._reader(file).read_many(rows)
            )
            self.held.use(keys)
        return found

    def close(self) -> None:
        """Close the files and drop the row groups in memory; a later read opens the files again."""
        for reader in list(self._readers.values()):
            reader.close()
        self.held.clear()

    def _keys(self, groups: NDArray[np.int64]) -> list[GroupKey]:
        """Return the keys of row groups, ordered by their last use."""
        distinct, last = np.unique(groups[::-1], return_index=True)
        ordered = distinct[np.argsort(-last)]
        files = self._group_bounds.searchsorted(ordered, "right") - 1
        inside = (ordered - self._group_bounds[files]).tolist()
        return [(self.files[file].url, group) for file, group in zip(files.tolist(), inside, strict=True)]

    def _reader(self, file: int) -> ColumnReader:
        if (reader := self._readers.get(file)) is None:
            info = self.files[file]
            reader = self._formats[file].select(self.columns).open_columns(info.url, self.options, listed=info)
            reader.held = self.held
            self._readers[file] = reader
        return reader


def _format_of(url: str) -> ColumnFormat:
    found = recognize(url)
    if (columns := found.columns()) is None:
        raise UsageError(f"{url}: expected a file of columns (Parquet, Arrow), found {found.format.name}")
    return columns


def _turns(groups: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of consecutive pieces of `groups` with at most `most` different row groups. 0: no limit."""
    if not most or len(np.unique(groups)) <= most:
        yield 0, len(groups)
        return
    start, seen = 0, set[int]()
    for place, group in enumerate(groups.tolist()):
        if group not in seen and len(seen) == most:
            yield start, place
            start, seen = place, set()
        seen.add(group)
    yield start, len(groups)
