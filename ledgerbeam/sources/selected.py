"""Random access to the records of one source that a condition over its columns selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from hashlib import blake2b
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io import Options, Reader
from ledgerbeam.io.any_source import Folders, open_any
from ledgerbeam.io.index.reader import NumberedRecords
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import Source
from ledgerbeam.sources.columns import ColumnFolder, Columns, ColumnSelection, conditioned
from ledgerbeam.sources.listing import stat_source
from ledgerbeam.sources.where import Where, read_where
from ledgerbeam.user_code.functions import reference_of

_MOST_TIMES = 1_000_000  # largest number of times that a weight selects a record


class SelectedRecords(NumberedRecords[Any]):
    """The records of a source for which a condition over its columns holds, in their order.

    Item `i` is the selected record number `i`, from 0. Only the columns are read to find the selected records.

    Args:
        reader: The reader of all records.
        columns: Files of the columns of the source, by folder, and the names to read.
        where: The condition.
        weights: Name of the column that has how often each record is selected; empty for once.
        options: Storage options of the columns.

    Attributes:
        url: URL of the source.
        numbers: Numbers of the selected records in the source, ascending.
        files: The source and the files of its columns, as they were listed.
    """

    is_indexed = True

    def __init__(
        self,
        reader: Reader,
        source: FileInfo,
        columns: Sequence[tuple[Sequence[Source], tuple[str, ...]]],
        where: Where,
        *,
        weights: str,
        options: Options,
    ) -> None:
        self.url = reader.url
        self._where = where
        self._weights = weights
        self.files = [source, *(FileInfo(file.url, file.size, file.version) for files, _ in columns for file in files)]
        self._reader = reader
        self._columns = columns
        self._options = dict(options or {})

    def __repr__(self) -> str:
        chosen = "".join(f", {name}={value!r}" for name, value in self.parameters().items())
        return f"SelectedRecords({self.url!r}{chosen})"

    def parameters(self) -> dict[str, Any]:
        """Return what decides which records are selected, and how often."""
        return {**self._where.parameters(), **({"weights": self._weights} if self._weights else {})}

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the selected records in the source, ascending; by its weight, a number is there several times."""
        columns = Columns(self._columns, self._options)
        with closing(ColumnSelection(columns, self._where, self._weights)) as selection:
            numbers, weights = selection.between(0, len(self._reader))
        if weights is None:
            return numbers
        try:
            return np.repeat(numbers, times_of(self.url, numbers, weights))
        except ValueError as error:
            raise RecordError(
                f"{self.url}: weights={self._weights!r}: expected numbers from 0 to {_MOST_TIMES:,}, or null, {error}; "
                "write the column again"
            ) from error

    def __len__(self) -> int:
        return len(self.numbers)

    def read_span(self, start: int, stop: int) -> list[Any]:
        """Read the selected records `[start, stop)` without blank lines; IndexMismatchError if there are fewer."""
        try:
            return super().read_span(start, stop)
        except RecordError:  # perhaps a blank line, which spans of the reader skip
            numbers = self.numbers[start:stop].tolist()
            return [record for number in numbers for record in self._reader.read_span(number, number + 1)]

    def _read(self, records: list[int]) -> list[Any]:
        return self._reader.read_many(self.numbers[records].tolist())

    def raw(self, index: int) -> bytes:
        """Return the bytes of one selected record. IndexError: the number is too large."""
        return self._reader.raw(int(self.numbers[self._number(index)]))

    def close(self) -> None:
        """Close the source; a later read opens it again."""
        self._reader.close()


def times_of(url: str, numbers: NDArray[np.int64], weights: Sequence[Any]) -> NDArray[np.int64]:
    """Return how often each record is selected: its weight, rounded up for a share of the records.

    The share is the rest of the weight. A hash of URL and number decides about a record.

    Raises:
        ValueError: A value is not a weight.
    """
    for weight in weights:
        if weight is not None and not (isinstance(weight, int | float) and 0 <= weight <= _MOST_TIMES):
            raise ValueError(f"found {weight!r:.40}")
    seed = int.from_bytes(blake2b(url.encode("utf-8", "surrogateescape"), digest_size=8).digest())
    mixed = (numbers.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    wanted = np.array([weight or 0 for weight in weights], np.float64)
    whole = np.floor(wanted)
    times: NDArray[np.int64] = (whole + ((mixed >> np.uint64(11)) * 2.0**-53 < wanted - whole)).astype(np.int64)
    return times


def open_selected(
    url: str | PathLike[str],
    with_: Folders,
    where: str | Callable[..., Any] | None,
    weights: str | None,
    storage_options: Options | None = None,
    **options: Any,
) -> SelectedRecords:
    """Open the records of a source for which a condition over its columns holds. `ledgerbeam.open` calls it.

    Raises:
        ChangedSourceError: The folder has columns of another version of the source.
        UsageError: A folder has no columns, or the condition does not fit them; also the errors of `ledgerbeam.open`.
    """
    given: Sequence[Any] = [with_] if isinstance(with_, (str, PathLike)) else with_
    folders = [ColumnFolder(canonical_url(one).rstrip("/"), storage_options or {}) for one in given]
    if not folders:
        raise UsageError(f"{url}: where needs columns; give the folder that ledgerbeam annotate wrote as with_")
    read = read_where(where, lambda function: Where(function=reference_of(function)))
    condition, needed = conditioned(folders, read, weights or "", "weights")
    reader = open_any(url, storage_options=storage_options, indexed=True, **options)
    found = stat_source(reader.url, storage_options)
    source = Source(found.url, found.size, found.version)
    by_url = {folder.url: folder for folder in folders}
    columns = [(by_url[one.folder].files_of(source), one.names) for one in needed]
    return SelectedRecords(reader, found, columns, condition, weights=weights or "", options=storage_options or {})
