"""Arrow IPC files as a format: a record is a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ledgerbeam.io.arrow.reader import ArrowReader
from ledgerbeam.io.columns.groups import ROW_GROUP_BYTES
from ledgerbeam.io.formats.format import ShardFile
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa

    from ledgerbeam.io.columns.schema import JobSchema
    from ledgerbeam.io.columns.tables import TableMaker

__all__ = ["ArrowFormat"]


@dataclass(frozen=True)
class ArrowFormat:
    """Arrow IPC files (Feather version 2 is another name of them), whose footer is their index.

    Attributes:
        columns: Names of the columns that are read; all for none.
        schema: The schemas of what is written, or one for all of it. Default: each file has that of its own records.
        row_group_bytes: Bytes of a record batch in memory, about.
    """

    name = "arrow"
    suffixes = (".arrow", ".feather")

    columns: tuple[str, ...] = ()
    schema: JobSchema | pa.Schema | None = None
    row_group_bytes: int = ROW_GROUP_BYTES

    def select(self, columns: Sequence[str]) -> Self:
        """Return this format reading only these columns; all for none."""
        return dataclasses.replace(self, columns=tuple(columns))

    def open_columns(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> ArrowReader:
        """Open a file for random access; see `ColumnFormat`."""
        return ArrowReader(url, options, columns=self.columns, listed=listed)

    def open_bytes(self, data: bytes, url: str) -> ArrowReader:
        """Open a whole file that is in memory; see `ColumnFormat`."""
        return ArrowReader(url, columns=self.columns, data=data)

    def written(self, route: str = "") -> TableMaker | None:
        """Return what makes tables of what is written; see `ColumnFormat`."""
        from ledgerbeam.io.columns.schema import maker_for  # noqa: PLC0415 - only jobs of columns import pyarrow

        return maker_for(self.schema, route)

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode records, or a `pyarrow.Table`, as a file: the same bytes for the same records and schema."""
        from ledgerbeam.io.arrow.encode import encode_arrow  # noqa: PLC0415
        from ledgerbeam.io.columns.schema import written_table  # noqa: PLC0415

        table = written_table(records, self.schema)
        data = encode_arrow(table, row_group_bytes=self.row_group_bytes)
        return [ShardFile(self.suffixes[0], data, table.num_rows)]
