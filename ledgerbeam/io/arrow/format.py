"""Arrow IPC files as a format: a record is a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from ledgerbeam.errors import UsageError
from ledgerbeam.io.arrow.reader import ArrowReader
from ledgerbeam.io.formats.format import ShardFile
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo

__all__ = ["ArrowFormat"]


@dataclass(frozen=True)
class ArrowFormat:
    """Arrow IPC files (Feather version 2 is another name of them), whose footer is their index.

    Attributes:
        columns: Names of the columns that are read; all for none.
    """

    name = "arrow"
    suffixes = (".arrow", ".feather")

    columns: tuple[str, ...] = ()

    def select(self, columns: Sequence[str]) -> Self:
        """Return this format reading only these columns; all for none."""
        return dataclasses.replace(self, columns=tuple(columns))

    def open_columns(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> ArrowReader:
        """Open a file for random access; see `ColumnFormat`."""
        return ArrowReader(url, options, columns=self.columns, listed=listed)

    def open_bytes(self, data: bytes, url: str) -> ArrowReader:
        """Open a whole file that is in memory; see `ColumnFormat`."""
        return ArrowReader(url, columns=self.columns, data=data)

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode records as a file."""
        del records
        raise UsageError("arrow is not written yet; choose another --to")
