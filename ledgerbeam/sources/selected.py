"""Random access to the records of one source that a condition over its columns selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import UsageError
from ledgerbeam.io import Options, Reader
from ledgerbeam.io.any_source import Folders, open_any
from ledgerbeam.io.index.reader import NumberedRecords
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import Source
from ledgerbeam.sources.columns import ColumnFolder, Columns, SelectedNumbers, conditioned
from ledgerbeam.sources.kind import listed_file
from ledgerbeam.sources.listing import stat_source
from ledgerbeam.sources.where import IS_FUNCTION, Where
from ledgerbeam.user_code.functions import reference_of


class SelectedRecords(NumberedRecords[Any]):
    """The records of a source for which a condition over its columns holds, in their order.

    Item `i` is the selected record number `i`, from 0. Only the columns are read to find the selected records.

    Args:
        reader: The reader of all records.
        columns: Files of the columns of the source, by folder.
        where: The condition.
        options: Storage options of the columns.

    Attributes:
        url: URL of the source.
        numbers: Numbers of the selected records in the source, ascending.
        files: The source and the files of its columns, as they were listed.
    """

    is_indexed = True

    def __init__(
        self, reader: Reader, source: FileInfo, columns: Sequence[Sequence[Source]], where: Where, options: Options
    ) -> None:
        self.url = reader.url
        self.where = where
        self.files = [source, *(listed_file(file) for files in columns for file in files)]
        self._reader = reader
        self._columns = columns
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"SelectedRecords({self.url!r}, where={self.where.name!r})"

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the selected records in the source, ascending."""
        columns = Columns(self._columns, self.where.columns, self._options)
        with closing(SelectedNumbers(columns, self.where)) as selection:
            return selection.numbers(0, len(self._reader))

    def __len__(self) -> int:
        return len(self.numbers)

    def _read(self, records: list[int]) -> list[Any]:
        return self._reader.read_many(self.numbers[records].tolist())

    def raw(self, index: int) -> bytes:
        """Return the bytes of one selected record. IndexError: the number is too large."""
        return self._reader.raw(int(self.numbers[self._number(index)]))

    def close(self) -> None:
        """Close the source; a later read opens it again."""
        self._reader.close()


def open_selected(
    url: str | PathLike[str],
    with_: Folders,
    where: str | Callable[..., Any],
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
    is_function = callable(where) or IS_FUNCTION.fullmatch(where)
    condition, needed = conditioned(folders, Where(function=reference_of(where)) if is_function else str(where))
    reader = open_any(url, storage_options=storage_options, indexed=True, **options)
    found = stat_source(reader.url, storage_options)
    source = Source(found.url, found.size, found.version)
    columns = [folder.files_of(source) for folder in folders if folder.url in needed]
    return SelectedRecords(reader, found, columns, condition, storage_options or {})
