"""Parquet as a format: a record is a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from ledgerbeam.errors import UsageError
from ledgerbeam.io.formats.format import ShardFile
from ledgerbeam.io.parquet.reader import ParquetReader
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo

__all__ = ["ParquetFormat"]


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files, whose footer is their index.

    Attributes:
        columns: Names of the columns that are read; all for none.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")

    columns: tuple[str, ...] = ()

    def select(self, columns: Sequence[str]) -> Self:
        """Return this format reading only these columns; all for none."""
        return dataclasses.replace(self, columns=tuple(columns))

    def open_columns(
        self, url: str, options: Options | None = None, *, listed: FileInfo | None = None
    ) -> ParquetReader:
        """Open a file for random access; see `ColumnFormat`."""
        return ParquetReader(url, options, columns=self.columns, listed=listed)

    def open_bytes(self, data: bytes, url: str) -> ParquetReader:
        """Open a whole file that is in memory; see `ColumnFormat`."""
        return ParquetReader(url, columns=self.columns, data=data)

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode records as a file."""
        del records
        raise UsageError("parquet is not written yet; choose another --to")
