"""The format of Arrow IPC files: a record is a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledgerbeam.io.columns.arrow_reader import ArrowReader
from ledgerbeam.io.columns.format import ColumnFileFormat

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowFormat(ColumnFileFormat):
    """Arrow IPC files (also called Feather version 2); the footer is the index.

    A record batch corresponds to a row group of Parquet. The arguments are those of `ColumnFileFormat`.
    """

    name = "arrow"
    suffixes = (".arrow", ".feather")
    reader = ArrowReader

    def encode_table(self, table: pa.Table) -> bytes:
        """Return a table as a file."""
        from ledgerbeam.io.columns.arrow_encode import encode_arrow  # noqa: PLC0415 - only jobs of columns import pyarrow

        return encode_arrow(table, row_group_bytes=self.row_group_bytes)
