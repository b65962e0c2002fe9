"""Random access to the rows of a Parquet file. Its footer is read with one or two requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import Content, HeldBytes, PlacedFile, damage_of, first_read, most_decoded, too_large
from ledgerbeam.io.columns.parquet_pages import (
    DecodedChunk,
    Footer,
    LeafColumn,
    decoded_chunk,
    dictionary_size,
    has_dictionary,
    has_prefixes,
    parse_footer,
)
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.storage.content_kind import HEAD, require_columns

_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_FOOTER_END = 8  # bytes after the footer: its length and the magic
_MOST_FOOTER = 256 * 2**20  # largest size of a footer; a larger one is treated as damage


def _footer_bytes(content: Content, url: str) -> bytes:
    """Read the footer of a file, and all bytes after it. SourceError: no Parquet file, or cut off, or encrypted."""
    size = content.size
    if size < len(_MAGIC) + _FOOTER_END:
        raise SourceError(f"{url}: expected a Parquet file, found {size} bytes; it is cut off, write it again")
    start = size - first_read(size)
    data = content.read(start, size)
    if data[-4:] == _ENCRYPTED:
        raise SourceError(f"{url}: the file is encrypted, and its footer too; decrypt it, then read it")
    if data[-4:] != _MAGIC:
        require_columns(content.read(0, min(HEAD, size)), url, _MAGIC)
        raise SourceError(
            f"{url}: expected {_MAGIC!r} at the end, found {data[-4:]!r}; it is cut off or no Parquet file, write it "
            "again"
        )
    length = int.from_bytes(data[-_FOOTER_END:-4], "little")
    begin = size - _FOOTER_END - length
    if begin < len(_MAGIC) or length > _MOST_FOOTER:
        raise SourceError(
            f"{url}: by its last bytes, the footer has {length:,} bytes; expected at most "
            f"{min(size - _FOOTER_END - len(_MAGIC), _MOST_FOOTER):,}. The file is damaged, write it again"
        )
    return data[begin - start :] if begin >= start else content.read(begin, start) + data


def _leaves_of(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves_of(kind.storage_type)
    if types.is_map(kind):
        return _leaves_of(kind.key_type) + _leaves_of(kind.item_type)
    if types.is_dictionary(kind) or not types.is_nested(kind):
        return 1
    return sum(_leaves_of(kind.field(i).type) for i in range(kind.num_fields))


MOST_DECODED = 128 * 2**20  # bytes; a larger row group is read in parts, and none of it is kept in memory
MOST_ROWS = 4_000_000  # the same limit in rows, since many rows can have few bytes before they are decoded
_PART, _PART_ROWS = 16 * 2**20, 65_536  # bytes and rows of a part
_BUFFER = 4 * 2**20  # bytes of a column that are read at once
_BYTES_AHEAD = 16 * 2**20  # of small columns, which are read as a whole when their row group is read in parts
_FEW_ROWS = 64  # of a part, if a text may be as long as its page
_FIRST = 2**20  # bytes of a column that are read at once if only the first rows are needed: usually a page

# Limits for the parser of footers, far above those of real files.
_LIMITS = {"thrift_string_size_limit": 256 * 2**20, "thrift_container_size_limit": 10_000_000}


class _Cursor:
    """A position in a row group that is read in batches from its beginning to its end."""

    def __init__(self, group: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.group = group
        self.place = 0
        self._batches = batches
        self._rest: pa.RecordBatch = None

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Read the rows `[start, stop)` of the row group, fewer at its end; `start` must not be before the position."""
        while self.place < stop:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                break
            skipped = min(max(start - self.place, 0), batch.num_rows)
            taken = min(stop - self.place - skipped, batch.num_rows - skipped)
            self.place += skipped + taken
            self._rest = batch.slice(skipped + taken) if skipped + taken < batch.num_rows else None
            if taken:
                yield batch.slice(skipped, taken)


class ParquetReader(GroupedRows):
    """Random access to the rows of a Parquet file; see `GroupedRows` for the arguments and methods."""

    _metadata: Any = None
    _footer: Footer
    _leaves: dict[int, LeafColumn]
    _has_int96: bool = False
    _cursor: _Cursor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_metadata": None, "_footer": None, "_leaves": {}, "_cursor": None}

    def close(self) -> None:
        """Close the source and drop the row groups in memory; a later read opens the source again."""
        self._cursor = None
        super().close()

    def _facts(self) -> dict[str, Any]:
        return {"row_groups": len(self.groups), "created_by": self._footer.created_by}

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        data = _footer_bytes(self._content, self.url)
        self._footer = parse_footer(data[:-_FOOTER_END])
        # As a file with only the footer, since pyarrow would read more of the end of the real file.
        opened = pq.ParquetFile(PlacedFile(HeldBytes(data[-4:] + data)), pre_buffer=False, **_LIMITS)
        schema = opened.schema_arrow
        self._metadata = opened.metadata
        self._check(opened.metadata)
        counts = [_leaves_of(field.type) for field in schema]
        if sum(counts) != opened.metadata.num_columns:
            raise self._damaged(f"{opened.metadata.num_columns} columns in its schema", f"{sum(counts)}")
        # `GroupedRows` reports duplicate and missing names.
        self._leaves = {
            leaf: LeafColumn(
                (column := opened.schema.column(leaf)).path,
                field.name,
                column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(column.physical_type),
                (column.max_repetition_level > 0, column.max_definition_level > 0),
            )
            for field, end, count in zip(schema, accumulate(counts), counts, strict=True)
            if not self.columns or field.name in self.columns
            for leaf in range(end - count, end)
        }
        self._has_int96 = any(opened.schema.column(leaf).physical_type == "INT96" for leaf in self._leaves)
        size = self._content.size
        return schema, [
            RowGroup(
                group.rows,
                sum(min(max(0, group.chunks[leaf].size), size) for leaf in self._leaves),
                self._plain_size(number),
            )
            for number, group in enumerate(self._footer.groups)
        ]

    def _plain_size(self, group: int) -> int:
        """Return the least decoded size of a row group, by the footer: it counts a text of a dictionary only once."""
        chunks = self._footer.groups[group].chunks
        return sum(
            max(chunks[number].plain_size, chunks[number].values * (leaf.width or 1))
            for number, leaf in self._leaves.items()
        )

    def _check(self, metadata: Any) -> None:
        """Raise SourceError unless `metadata` of pyarrow fits the parsed footer, and the row groups have all rows."""
        footer = self._footer
        if len(footer.groups) != metadata.num_row_groups or footer.rows != metadata.num_rows:
            raise self._damaged(
                f"{metadata.num_row_groups} row groups of {metadata.num_rows} rows",
                f"{len(footer.groups)} row groups of {footer.rows} rows",
            )
        for number, group in enumerate(footer.groups):
            if group.rows < 0 or len(group.chunks) != metadata.num_columns:
                raise self._damaged(
                    f"{metadata.num_columns} columns in row group {number}", f"{len(group.chunks)} in {group.rows} rows"
                )
        rows = sum(group.rows for group in footer.groups)
        if rows != footer.rows and footer.groups:
            raise self._damaged(f"{footer.rows} rows in the row groups", f"{rows} rows")

    def _damaged(self, expected: str, found: str) -> SourceError:
        return SourceError(f"{self.url}: expected {expected}, found {found}; the file is damaged, write it again")

    def _ranges(self, number: int) -> Iterator[tuple[int, int]]:
        size = self._content.size
        for leaf in self._leaves:
            chunk = self._footer.groups[number].chunks[leaf]
            if chunk.is_encrypted:
                raise SourceError(
                    f"{self.url}: the column {self._metadata.schema.column(leaf).path!r} is encrypted; decrypt it, or "
                    "read other columns (--columns)"
                )
            if chunk.file:
                raise SourceError(
                    f"{self.url}: a column of row group {number} is in another file, {chunk.file!r}; read that file"
                )
            if not 0 <= chunk.start <= chunk.start + chunk.size <= size:
                raise self._damaged(
                    f"the columns of row group {number} in a file of {size} bytes",
                    f"a column at bytes [{chunk.start}, {chunk.start + chunk.size})",
                )
            yield chunk.start, chunk.start + chunk.size

    def _is_streamed(self, group: int) -> bool:
        if self._has_int96:
            return False
        return self._footer.groups[group].rows > MOST_ROWS or self._plain_size(group) > MOST_DECODED

    def _read_part(self, group: int, start: int, stop: int) -> Iterator[pa.Table]:
        # The cursor is taken, so that no other thread uses it, and put back for the next part.
        cursor, self._cursor = self._cursor, None
        if cursor is None or cursor.group != group or cursor.place > start:
            cursor = self._opened_at(group)
        for part in cursor.read(start, stop):
            yield pa.Table.from_batches([part]).select(self.schema.names)
        if cursor.place != stop:
            raise self._damaged(f"{self._groups[group].rows} rows in row group {group}", f"{cursor.place}")
        self._cursor = cursor

    def _read_first(self, group: int, rows: int) -> Iterator[pa.Table]:
        if self._has_int96 or not rows:
            yield from super()._read_first(group, rows)
            return
        file = PlacedFile(self._content)
        file.fetch([(start, min(stop, start + _FIRST)) for start, stop in self._ranges(group)])
        chunks = self._footer.groups[group].chunks
        self._long_words(
            file, group, [number for number in self._leaves if chunks[number].size <= _FIRST], in_parts=True
        )
        words = [
            leaf.path for number, leaf in self._leaves.items() if leaf.width is None and has_dictionary(chunks[number])
        ]
        for part in self._cursor_at(file, group, words, _FIRST, min(rows, _FEW_ROWS)).read(0, rows):
            yield pa.Table.from_batches([part]).select(self.schema.names)

    def _opened(self, file: PlacedFile, *, words: Sequence[str] = (), buffer_size: int = 0) -> Any:
        """Open the file. Columns whose paths are in `words` will be read as dictionaries."""
        return pq.ParquetFile(
            file,
            metadata=self._metadata,
            buffer_size=buffer_size,
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=list(words),
        )

    def _opened_at(self, group: int) -> _Cursor:
        file = PlacedFile(self._content)
        chunks = self._footer.groups[group].chunks
        _ = list(self._ranges(group))  # raises if one of them is not valid
        small = [number for number in self._leaves if chunks[number].size <= _BYTES_AHEAD // len(self._leaves)]
        texts = [
            number
            for number, leaf in self._leaves.items()
            if number not in small and leaf.width is None and has_dictionary(chunks[number])
        ]
        file.fetch(
            [(chunks[number].start, chunks[number].start + chunks[number].size) for number in small]
            + [(chunks[number].start, chunks[number].data_start) for number in texts]
        )
        words = self._long_words(file, group, small, in_parts=True) + [
            self._leaves[number].path
            for number in texts
            if dictionary_size(file.at(chunks[number].start, chunks[number].data_start), chunks[number]) > MOST_DECODED
        ]
        rows, size = self._groups[group].rows, self._plain_size(group)
        stored = self._groups[group].size // rows
        for number, leaf in self._leaves.items():
            of_row = max(chunks[number].plain_size, chunks[number].values * (leaf.width or 1)) // rows
            if of_row > most_decoded(stored):
                place = f"{self.url}: row group {group}: the rows of column {leaf.column!r}"
                raise SourceError(too_large(place, of_row, stored))
        most = _FEW_ROWS if any(has_prefixes(chunks[number]) for number in self._leaves) else _PART_ROWS
        return self._cursor_at(file, group, words, _BUFFER, max(1, min(most, rows * _PART // max(1, size))))

    def _cursor_at(self, file: PlacedFile, group: int, words: Sequence[str], buffer: int, rows: int) -> _Cursor:
        """Return a cursor over a row group that reads batches of `rows`; see `_opened`."""
        opened, names = self._opened(file, words=words, buffer_size=buffer), self.schema.names
        return _Cursor(group, opened.iter_batches(rows, row_groups=[group], columns=names, use_threads=False))

    def _long_words(self, file: PlacedFile, group: int, numbers: Iterable[int], *, in_parts: bool) -> list[str]:
        """Return the paths of the columns to read as dictionaries, because they would be too large as plain texts.

        `file` has all bytes of the columns `numbers`. SourceError: a column, or with `in_parts` a page, is too large
        even without its values from dictionaries.
        """
        chunks, stored = self._footer.groups[group].chunks, self._groups[group].size
        found: dict[int, DecodedChunk] = {}
        for number in numbers:
            found[number] = one = decoded_chunk(file.at, chunks[number], self._leaves[number], MOST_DECODED // 2)
            if max(one.page, 0 if in_parts else one.size) > most_decoded(stored):
                place = f"{self.url}: row group {group}: column {self._leaves[number].column!r}"
                raise SourceError(too_large(place, max(one.page, one.size), stored))
        left = sum(one.size + one.words for one in found.values())
        words: list[str] = []
        for number in sorted(found, key=lambda number: found[number].words, reverse=True):
            if left <= MOST_DECODED or not found[number].words:
                break
            words.append(self._leaves[number].path)
            left -= found[number].words
        return words

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        names = self.schema.names
        file = PlacedFile(self._content, lends=True)
        file.fetch([span for number in numbers for span in self._ranges(number)])
        with damage_of(self.url, "the footer"):
            opened = self._opened(file)
        for number in numbers:
            words = self._long_words(file, number, self._leaves, in_parts=False)
            table = (self._opened(file, words=words) if words else opened).read_row_group(
                number, columns=names, use_threads=False
            )
            if self._has_int96:  # values that overflowed differ when they are read as nanoseconds and as microseconds
                micros = pq.ParquetFile(
                    file, metadata=self._metadata, pre_buffer=False, coerce_int96_timestamp_unit="us"
                ).read_row_group(number, columns=names, use_threads=False)
                if not table.cast(micros.schema, safe=False).equals(micros):
                    raise SourceError(
                        f"{self.url}: row group {number} has timestamps of 96 bits outside the years 1678 to 2261, the "
                        "range of nanoseconds; write them as timestamps in microseconds, or read other columns "
                        "(--columns)"
                    )
            yield table if table.column_names == names else table.select(names)


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value of each physical type, except the types of variable length."""
