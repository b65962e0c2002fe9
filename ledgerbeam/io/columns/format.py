"""The formats Parquet and Arrow IPC, and their base class. A record is a row; the footer of a file is its index."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ledgerbeam._base.extensions import load_reference
from ledgerbeam.io.formats.format import ShardFile
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa

    from ledgerbeam.io.columns.reader import GroupedRows
    from ledgerbeam.io.columns.schema import JobSchema
    from ledgerbeam.io.columns.tables import TableMaker


ROW_GROUP_BYTES = 128 * 2**20  # default size of a row group in memory
PAGE_BYTES = 2**20  # default size of a page before compression


@dataclass(frozen=True)
class ColumnFileFormat(ABC):
    """A format whose files are tables, with the footer as the index."""

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    _reader: ClassVar[str]  # reference of the class of readers, which is imported on first use: it imports numpy

    columns: tuple[str, ...] = ()  # names of the columns to read; all if empty
    schema: JobSchema | pa.Schema | None = None  # of the outputs. Default: inferred from the records of each file
    row_group_bytes: int = ROW_GROUP_BYTES  # approximate size of a row group in memory

    @abstractmethod
    def encode_table(self, table: pa.Table) -> bytes:
        """Return a table as a file."""

    def select(self, columns: Sequence[str]) -> Self:
        """Return this format for only these columns; an empty list selects all."""
        return dataclasses.replace(self, columns=tuple(columns))

    def open_columns(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> GroupedRows:
        """Open a file for random access; see `ColumnFormat`."""
        rows: GroupedRows = load_reference(self._reader)(url, options, columns=self.columns, listed=listed)
        return rows

    def open_bytes(self, data: bytes, url: str) -> GroupedRows:
        """Open a whole file in memory; see `ColumnFormat`."""
        rows: GroupedRows = load_reference(self._reader)(url, columns=self.columns, data=data)
        return rows

    def written(self, route: str = "") -> TableMaker | None:
        """Return the object that makes the tables to write for a route; see `ColumnFormat`."""
        from ledgerbeam.io.columns.schema import maker_for  # noqa: PLC0415 - only jobs of columns import pyarrow

        return maker_for(self.schema, route)

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode records or a `pyarrow.Table` as a file; the bytes depend only on the records and the schema."""
        from ledgerbeam.io.columns.schema import written_table  # noqa: PLC0415

        table = written_table(records, self.schema)
        return [ShardFile(self.suffixes[0], self.encode_table(table), table.num_rows)]


@dataclass(frozen=True)
class ParquetFormat(ColumnFileFormat):
    """Parquet files. `ColumnFileFormat` describes the other arguments.

    Attributes:
        page_bytes: Approximate size of a page before compression.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")
    _reader = "ledgerbeam.io.columns.parquet_reader:ParquetReader"

    page_bytes: int = PAGE_BYTES

    def encode_table(self, table: pa.Table) -> bytes:
        """Return a table as a file."""
        from ledgerbeam.io.columns.encode import encode_parquet  # noqa: PLC0415 - only jobs of columns import pyarrow

        return encode_parquet(table, row_group_bytes=self.row_group_bytes, page_bytes=self.page_bytes)


@dataclass(frozen=True)
class ArrowFormat(ColumnFileFormat):
    """Arrow IPC files, also called Feather version 2. The arguments are described in `ColumnFileFormat`.

    A record batch corresponds to a row group of Parquet.
    """

    name = "arrow"
    suffixes = (".arrow", ".feather")
    _reader = "ledgerbeam.io.columns.arrow_reader:ArrowReader"

    def encode_table(self, table: pa.Table) -> bytes:
        """Return a table as a file."""
        from ledgerbeam.io.columns.encode import encode_arrow  # noqa: PLC0415 - only jobs of columns import pyarrow

        return encode_arrow(table, row_group_bytes=self.row_group_bytes)
