"""The leaf over files of columns."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgerbeam.io.columns.files import ColumnFiles
from ledgerbeam.io.formats.held import CACHE_BYTES
from ledgerbeam.io.storage.client import Options
from ledgerbeam.iterators.identity import describe_source
from ledgerbeam.iterators.ordered import WINDOW, ShuffleBy
from ledgerbeam.iterators.sources.indexed import Records

__all__ = ["IndexedParquet"]


class IndexedParquet(Records):
    """The rows of Parquet files, or of Arrow IPC files, as dicts. Its tokens are their numbers across all files.

    A row is read with its row group. `shuffle=True` goes through all rows in one order, so it reads a row group for
    almost every row, if not all of them fit into `cache_bytes`. `shuffle="blocks"` reads each row group once.

    Args:
        urls: The files, or one of them, in the order of their rows.
        columns: Names of the columns that are read; all for none.
        options: Storage options.
        shuffle: In a new order each epoch. With `"blocks"`: row groups come in a random order, `window` of them are
            in memory at once, decoded, and each place takes a random row of the next of these.
        seed: Chooses the orders.
        window: How many row groups are mixed; best a multiple of the number of shards.
        cache_bytes: How many bytes of decoded row groups are held in memory, if they are not more by `window`.

    Raises:
        SourceError: A file is damaged or encrypted.
        UsageError: No file, or one that is not of columns, or lacks one of the columns.
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

    def parameters(self) -> dict[str, Any]:
        data = {"files": [describe_source(info) for info in self.records.files], "columns": list(self.records.columns)}
        return {"data": data, **self.order_parameters()}
