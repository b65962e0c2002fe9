"""Random access to the rows of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import HeldBytes, PlacedFile, damage_of
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.parquet.footer import FOOTER_END, footer_bytes, leaves_of
from ledgerbeam.io.parquet.thrift import Footer, parse_footer

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa

__all__ = ["MOST_DECODED", "MOST_ROWS", "ParquetReader"]

MOST_DECODED = 128 * 2**20
"""A row group of more bytes when decompressed is read in parts, and none of it is held."""

MOST_ROWS = 4_000_000
"""The same for a row group of more rows, which may be small before they are decoded."""

_PART, _PART_ROWS = 16 * 2**20, 65_536  # bytes and rows of a part
_BUFFER = 4 * 2**20  # of each column, so much is read at once
_FIRST = 2**20  # the same where only the first rows are wanted: a page, and some more of it if that is not all

_LIMITS = {"thrift_string_size_limit": 256 * 2**20, "thrift_container_size_limit": 10_000_000}
"""Of what a footer may claim, far more than real ones have."""


class _Cursor:
    """Reads a row group from its beginning to its end, and stands somewhere in it.

    Args:
        group: The row group.
        batches: Its rows.
    """

    def __init__(self, group: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.group = group
        self.place = 0
        self._batches = batches
        self._rest: pa.RecordBatch = None

    def read(self, start: int, stop: int) -> list[pa.RecordBatch]:
        """Read the rows `[start, stop)`, which do not begin before this place; fewer where there are no more."""
        parts = []
        while self.place < stop:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                break
            skipped = min(max(start - self.place, 0), batch.num_rows)
            taken = min(stop - self.place - skipped, batch.num_rows - skipped)
            parts.append(batch.slice(skipped, taken))
            self.place += skipped + taken
            self._rest = batch.slice(skipped + taken) if skipped + taken < batch.num_rows else None
        return parts


class ParquetReader(GroupedRows):
    """Random access to the rows of a Parquet file; see `GroupedRows` for arguments and methods."""

    _metadata: Any = None
    _footer: Footer
    _leaves: list[int]
    _has_int96: bool = False
    _cursor: _Cursor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_metadata": None,
            "_footer": None,
            "_leaves": [],
            "_cursor": None,
        }

    def close(self) -> None:
        """Close what is open, and forget what is held; a later read opens it again."""
        self._cursor = None
        super().close()

    def _facts(self) -> dict[str, Any]:
        return {"row_groups": len(self.groups), "created_by": self._footer.created_by}

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only jobs that read columns import it

        data = footer_bytes(self._content, self.url)
        self._footer = parse_footer(data[:-FOOTER_END])
        # As a file of nothing else: pyarrow would read more of the end than there may be of the footer.
        opened = pq.ParquetFile(PlacedFile(HeldBytes(data[-4:] + data)), pre_buffer=False, **_LIMITS)
        schema = opened.schema_arrow
        self._metadata = opened.metadata
        self._check(opened.metadata)
        counts = [leaves_of(field.type) for field in schema]
        if sum(counts) != opened.metadata.num_columns:
            raise self._damaged(f"{opened.metadata.num_columns} columns in its schema", f"{sum(counts)}")
        # Of names that occur twice or are lacking, `GroupedRows` says more.
        self._leaves = [
            leaf
            for field, end, count in zip(schema, accumulate(counts), counts, strict=True)
            if not self.columns or field.name in self.columns
            for leaf in range(end - count, end)
        ]
        self._has_int96 = any(opened.schema.column(leaf).physical_type == "INT96" for leaf in self._leaves)
        size = self._content.size
        return schema, [
            RowGroup(group.rows, sum(min(max(0, group.chunks[leaf].size), size) for leaf in self._leaves))
            for group in self._footer.groups
        ]

    def _check(self, metadata: Any) -> None:
        """Compare what the two readers of the footer found in it, and its numbers of rows with each other."""
        footer = self._footer
        if len(footer.groups) != metadata.num_row_groups or footer.rows != metadata.num_rows:
            raise self._damaged(
                f"{metadata.num_row_groups} row groups of {metadata.num_rows} rows",
                f"{len(footer.groups)} of {footer.rows}",
            )
        for number, group in enumerate(footer.groups):
            if group.rows < 0 or len(group.chunks) != metadata.num_columns:
                raise self._damaged(
                    f"{metadata.num_columns} columns in row group {number}",
                    f"{len(group.chunks)} of {group.rows} rows",
                )
        rows = sum(group.rows for group in footer.groups)
        if rows != footer.rows and footer.groups:
            raise self._damaged(f"{footer.rows} rows, as its footer says", f"{rows} in its row groups")

    def _damaged(self, expected: str, found: str) -> SourceError:
        return SourceError(f"{self.url}: expected {expected}, found {found}; it is damaged, write it again")

    def _ranges(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield where the chosen columns of a row group lie."""
        size = self._content.size
        for leaf in self._leaves:
            chunk = self._footer.groups[number].chunks[leaf]
            if chunk.is_encrypted:
                raise SourceError(
                    f"{self.url}: the column {self._metadata.schema.column(leaf).path!r} is encrypted; decrypt it, or "
                    "read others (--columns)"
                )
            if chunk.file:
                raise SourceError(
                    f"{self.url}: a column of row group {number} lies in another file, {chunk.file!r}; read that one"
                )
            if not 0 <= chunk.start <= chunk.start + chunk.size <= size:
                raise self._damaged(
                    f"the columns of row group {number} in {size} bytes",
                    f"one at [{chunk.start}, {chunk.start + chunk.size})",
                )
            yield chunk.start, chunk.start + chunk.size

    def _is_streamed(self, group: int) -> bool:
        if self._has_int96:
            return False
        found = self._footer.groups[group]
        return found.rows > MOST_ROWS or sum(found.chunks[leaf].plain_size for leaf in self._leaves) > MOST_DECODED

    def _read_part(self, group: int, start: int, stop: int) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415

        # Taken, so that no other thread goes on with it; it is left behind again for the next part.
        cursor, self._cursor = self._cursor, None
        if cursor is None or cursor.group != group or cursor.place > start:
            cursor = self._opened_at(group)
        parts = cursor.read(start, stop)
        if (found := sum(part.num_rows for part in parts)) != stop - start:
            raise self._damaged(f"{self._groups[group].rows} rows in row group {group}", f"{start + found}")
        self._cursor = cursor
        return pa.Table.from_batches(parts).select(self.schema.names)

    def _read_first(self, group: int, rows: int) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        if self._has_int96 or not rows:
            return super()._read_first(group, rows)
        file = PlacedFile(self._content)
        file.fetch([(start, min(stop, start + _FIRST)) for start, stop in self._ranges(group)])
        opened = pq.ParquetFile(
            file, metadata=self._metadata, buffer_size=_FIRST, pre_buffer=False, page_checksum_verification=True
        )
        names = self.schema.names
        batch = next(opened.iter_batches(rows, row_groups=[group], columns=names, use_threads=False))
        return pa.Table.from_batches([batch]).select(names)

    def _opened_at(self, group: int) -> _Cursor:
        import pyarrow.parquet as pq  # noqa: PLC0415

        _ = list(self._ranges(group))  # which checks them
        rows, chunks = self._groups[group].rows, self._footer.groups[group].chunks
        size = sum(chunks[leaf].plain_size for leaf in self._leaves)
        opened = pq.ParquetFile(
            PlacedFile(self._content),
            metadata=self._metadata,
            buffer_size=_BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        batches = opened.iter_batches(
            max(1, min(_PART_ROWS, rows * _PART // max(1, size))),
            row_groups=[group],
            columns=self.schema.names,
            use_threads=False,
        )
        return _Cursor(group, batches)

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq  # noqa: PLC0415

        names = self.schema.names
        file = PlacedFile(self._content)
        file.fetch([span for number in numbers for span in self._ranges(number)])
        with damage_of(self.url, "the footer"):
            opened = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True)
        for number in numbers:
            table = opened.read_row_group(number, columns=names, use_threads=False)
            if self._has_int96:
                self._check_int96(file, number, table)
            yield table if table.column_names == names else table.select(names)

    def _check_int96(self, file: PlacedFile, number: int, table: pa.Table) -> None:
        """Compare timestamps of 96 bits with what they are in microseconds: those in nanoseconds may have wrapped."""
        import pyarrow.parquet as pq  # noqa: PLC0415

        opened = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False, coerce_int96_timestamp_unit="us")
        other = opened.read_row_group(number, columns=self.schema.names, use_threads=False)
        if not table.cast(other.schema, safe=False).equals(other):
            raise SourceError(
                f"{self.url}: row group {number} has timestamps of 96 bits outside of the years 1678 to 2261, which "
                "nanoseconds do not hold; write them as timestamps in microseconds, or read other columns (--columns)"
            )
