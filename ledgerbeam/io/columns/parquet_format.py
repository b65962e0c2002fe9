"""The format Parquet: a record is a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledgerbeam.io.columns.format import ColumnFileFormat
from ledgerbeam.io.columns.groups import PAGE_BYTES
from ledgerbeam.io.columns.parquet_reader import ParquetReader

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa


@dataclass(frozen=True)
class ParquetFormat(ColumnFileFormat):
    """Parquet files; the footer is the index. The other arguments are those of `ColumnFileFormat`.

    Attributes:
        page_bytes: Approximate size of a page before compression.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")
    reader = ParquetReader

    page_bytes: int = PAGE_BYTES

    def encode_table(self, table: pa.Table) -> bytes:
        """Return a table as a file."""
        from ledgerbeam.io.columns.parquet_encode import encode_parquet  # noqa: PLC0415 - only jobs of columns import pyarrow

        return encode_parquet(table, row_group_bytes=self.row_group_bytes, page_bytes=self.page_bytes)
