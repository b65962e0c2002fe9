"""Random access to the rows of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import PlacedFile, damage_of
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.parquet.footer import chunk_range, footer_bytes, leaves_of

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa

__all__ = ["ParquetReader"]


class ParquetReader(GroupedRows):
    """Random access to the rows of a Parquet file; see `GroupedRows` for arguments and methods."""

    _metadata: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_metadata": None}

    def facts(self) -> Mapping[str, Any]:
        """Return the number of row groups, what wrote the file, and its columns with their types."""
        self._load()
        return {
            "row_groups": len(self._groups),
            "created_by": self._metadata.created_by,
            "columns": {field.name: str(field.type) for field in self.schema},
        }

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only jobs that read columns import it

        start, data = footer_bytes(self._content, self.url)
        file = PlacedFile(self._content)
        file.hold(start, data)
        opened = pq.ParquetFile(file, pre_buffer=False)
        metadata, schema = opened.metadata, opened.schema_arrow
        self._metadata = metadata
        # Of names that occur twice or are lacking, `_chosen` says more.
        chosen = [not self.columns or field.name in self.columns for field in schema]
        counts = [leaves_of(field.type) for field in schema]
        if sum(counts) != metadata.num_columns:
            raise SourceError(f"{self.url}: its schema has {metadata.num_columns} columns, found {sum(counts)}")
        self._leaves = [
            leaf
            for is_chosen, end, count in zip(chosen, accumulate(counts), counts, strict=True)
            if is_chosen
            for leaf in range(end - count, end)
        ]
        groups = [self._group(number) for number in range(metadata.num_row_groups)]
        if sum(group.rows for group in groups) != metadata.num_rows:
            raise SourceError(
                f"{self.url}: its footer says {metadata.num_rows} rows, its row groups have "
                f"{sum(group.rows for group in groups)}; it is damaged, write it again"
            )
        return schema, groups

    def _group(self, number: int) -> RowGroup:
        rows = self._metadata.row_group(number).num_rows
        if rows < 0:
            raise SourceError(f"{self.url}: row group {number} has {rows} rows; it is damaged, write it again")
        return RowGroup(rows, sum(stop - start for start, stop in self._ranges(number)))

    def _ranges(self, number: int) -> list[tuple[int, int]]:
        group, size = self._metadata.row_group(number), self._content.size
        return [chunk_range(group.column(leaf), size) for leaf in self._leaves]

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq  # noqa: PLC0415

        with damage_of(self.url, "the footer"):
            file = PlacedFile(self._content)
            file.fetch([span for number in numbers for span in self._ranges(number)])
            opened = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True)
        names = self.schema.names
        for number in numbers:
            table = opened.read_row_group(number, columns=names, use_threads=False)
            yield table if table.column_names == names else table.select(names)
