"""The leaf over columnar files."""

# ruff: noqa: ARG002, D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgerbeam.io.columns.files import ColumnFiles
from ledgerbeam.io.formats.held import CACHE_BYTES
from ledgerbeam.io.storage.client import Options
from ledgerbeam.iterators.node import Positions
from ledgerbeam.iterators.ordered import WINDOW, ShuffleBy
from ledgerbeam.iterators.sources.indexed import Records


class IndexedParquet(Records):
    """The rows of Parquet or Arrow IPC files, as dicts. The tokens are their numbers across all files.

    A row is read with its row group. `shuffle=True` shuffles all rows together, so it reads a row group for almost
    every row, unless all of them fit into `cache_bytes`. `shuffle="blocks"` reads each row group once.

    Args:
        urls: One file, or several in the order of their rows.
        columns: Names of the columns to read. Default: all.
        options: Storage options.
        shuffle: Whether to use a new order in each epoch. With `"blocks"` the row groups have a random order, `window`
            decoded row groups are in memory at once, and the rows are drawn from them in turn, at random.
        seed: Chooses the orders.
        window: Number of row groups that are mixed, preferably a multiple of the number of shards.
        cache_bytes: Limit of the decoded row groups in memory; `window` row groups are kept in any case.

    Raises:
        SourceError: A file is damaged or encrypted.
        UsageError: There is no file, or one that is not columnar or lacks one of the columns.
    """

    records: ColumnFiles

    def __init__(
        self,
        urls: str | Sequence[str],
        columns: Sequence[str] = (),
        options: Options | None = None,
        *,
        shuffle: ShuffleBy = False,
        seed: int = 0,
        window: int = WINDOW,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        files = ColumnFiles([urls] if isinstance(urls, str) else urls, columns, options, cache_bytes=cache_bytes)
        super().__init__(files, shuffle=shuffle, seed=seed, window=window)

    @property
    def record_bytes(self) -> float:
        return self.records.size / max(1, len(self))

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        return self.records.read_many(numbers)

    def describe_data(self) -> dict[str, Any]:
        return {**super().describe_data(), "columns": list(self.records.columns)}
