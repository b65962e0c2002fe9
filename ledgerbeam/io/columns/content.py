"""The bytes of a columnar file for pyarrow, and the limit of rows that are decoded at once.

A few bytes of a file can become many when they are decoded. A dictionary stores a text once for all rows that have it;
string views and run-end encoding reuse bytes too. So the size of such columns is found before they are decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from ledgerbeam.errors import LedgerbeamError, SourceError
from ledgerbeam.io.columns.values import items_of_lists
from ledgerbeam.io.storage.ranges import RangeReader, SizedFile

_NEXT = 64  # closer ranges are merged
_MOST_AT_ONCE = 16 * 2**20  # unless a single range is larger
_GAP = 64 * 1024
_MOST_WASTE = 0.1  # largest share of additional bytes that may be read to save requests
MOST_AT_ONCE = 256 * 2**20  # decoded bytes of rows that are read at once, in any case
_MOST_RATIO = 32  # the same limit, as a multiple of their bytes in the file
_POINTER = 8  # bytes of a reference in a list of Python objects, for values without bytes


def first_read(size: int) -> int:
    """Return how many bytes to read first at the end of a file of `size` bytes: enough for most footers."""
    return min(size, max(8 * 1024, min(64 * 1024, size // 100)))


class HeldBytes:
    """A whole source in memory, with the methods of `RangeReader`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`."""
        return self._data[start:stop]

    def read_many(self, starts: Sequence[int], stops: Sequence[int], *, gap: int | None = None) -> list[bytes]:
        """Return the bytes of many ranges."""
        del gap
        return [self._data[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def close(self) -> None:
        """Do nothing, since no file is open."""


Content: TypeAlias = RangeReader | HeldBytes  # positional reads of a source


class PlacedFile(SizedFile):
    """A file object over a source. Fetched ranges are served from memory; every other read is a read of the source.

    Args:
        content: The source.
        lends: Whether bytes in memory are returned as views, not as copies. A view keeps all data in memory that was
            fetched with it, so the caller should copy what it keeps.
    """

    def __init__(self, content: Content, *, lends: bool = False) -> None:
        super().__init__(content.size)
        self._content = content
        self._lends = lends
        self._starts: list[int] = []
        self._blocks: list[bytes] = []

    def hold(self, start: int, data: bytes) -> None:
        """Keep `data`, the bytes from `start` on, in memory for later reads."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._blocks.insert(at, data)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges, each with start and end, in few requests, and keep them in memory."""
        wanted: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if start >= stop:
                continue
            first, end = wanted[-1] if wanted else (0, -_NEXT)
            if not wanted or start > end + _NEXT:
                wanted.append((start, stop))
            elif max(stop, end) - first <= _MOST_AT_ONCE:
                wanted[-1] = first, max(stop, end)
            else:
                wanted[-1] = first, max(start, end)
                wanted.append((max(start, end), max(stop, end)))
        if not wanted:
            return
        most = int(sum(stop - start for start, stop in wanted) * _MOST_WASTE) // len(wanted)
        starts, stops = [start for start, _ in wanted], [stop for _, stop in wanted]
        for start, data in zip(starts, self._content.read_many(starts, stops, gap=min(_GAP, most)), strict=True):
            self.hold(start, data)

    def size(self) -> int:
        """Return the length of the file."""
        return self._size

    def read(self, size: int = -1) -> bytes | memoryview[int]:
        """Read `size` bytes, fewer at the end of the file. Bytes in memory are returned as a view if `lends` is set."""
        start = self._place
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if start >= stop:
            return b""
        self._place = stop
        return self.at(start, stop)

    def at(self, start: int, stop: int) -> bytes | memoryview[int]:
        """Return the bytes between two positions, from memory if possible."""
        held = self._held(start, stop)
        return self._content.read(start, stop) if held is None else held

    def _held(self, start: int, stop: int) -> bytes | memoryview[int] | None:
        """Return bytes from memory; None if some of them are not in memory."""
        parts: list[bytes | memoryview[int]] = []
        place, at = start, bisect_right(self._starts, start) - 1
        while 0 <= at < len(self._starts) and self._starts[at] <= place < stop:
            first, block = self._starts[at], self._blocks[at]
            if place >= first + len(block):
                break
            whole = place == first and stop >= first + len(block)
            source = memoryview(block) if self._lends else block
            parts.append(block if whole else source[place - first : stop - first])
            place += len(parts[-1])
            at += 1
        return None if place < stop else parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def damage_of(url: str, what: str) -> Iterator[None]:
    """Translate every exception of pyarrow to a `SourceError`. For the message, `what` names the part that is read."""
    try:
        yield
    except LedgerbeamError:
        raise
    except MemoryError as error:
        raise SourceError(
            f"{url}: {what} cannot be read: {_words(error)}; expected data that fits into memory. Write the file again "
            "with smaller row groups, or free memory"
        ) from error
    except Exception as error:
        raise SourceError(
            f"{url}: {what} cannot be read: {_words(error)}; if the file is damaged, write it again, or leave it out"
        ) from error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}".removesuffix(".")


def most_decoded(stored: int) -> int:
    """Return the largest accepted number of decoded bytes, given the number of the stored bytes in the file."""
    return max(MOST_AT_ONCE, _MOST_RATIO * stored)


class DecodedLimit:
    """Limit of the decoded bytes of rows that are read at once; `stored` is the number of their bytes in the file."""

    def __init__(self, place: str, stored: int) -> None:
        self._place = place
        self._stored = stored
        self._most = most_decoded(stored)
        self._taken = 0

    def add(self, rows: pa.Table) -> None:
        """Count the bytes of more rows.

        SourceError: all counted rows have too many bytes; the message names the column with most of them.
        """
        sizes = list(map(decoded_size, rows.columns))
        self._taken += sum(sizes)
        if self._taken > self._most:
            column = rows.column_names[sizes.index(max(sizes))]
            raise SourceError(too_large(f"{self._place}: column {column!r}", self._taken, self._stored))


def too_large(place: str, size: int, stored: int) -> str:
    """Return the error message for values of at least `size` decoded bytes, from `stored` bytes in the file."""
    return (
        f"{place}: expected at most {most_decoded(stored):,} bytes when decoded from the {stored:,} bytes in the file, "
        f"found {size:,} or more; use a smaller --task-bytes, read the other columns (--columns), or write the file "
        "again with smaller row groups and pages"
    )


def decoded_size(column: pa.Array | pa.ChunkedArray) -> int:
    """Return the number of bytes of a column when its dictionaries, views and runs become plain values."""
    if not _expands(column.type):
        return column.nbytes
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return sum(int(_sizes(chunk).sum()) for chunk in chunks)


def plain_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the types of a schema. In `rows`, some columns may be dictionaries, as in the file."""
    if rows.schema.types == schema.types:
        return rows
    columns = []
    for column, field in zip(rows.columns, schema, strict=True):
        if column.type != field.type and not isinstance(field.type, pa.BaseExtensionType):
            column = pa.chunked_array([_plain(chunk, field.type) for chunk in column.chunks], field.type)  # noqa: PLW2901
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_nested(kind):  # the cast of a slice of lists would cast the values of all lists
        array = array.take(pa.array(range(len(array)), pa.int64()))
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:  # a dictionary as views
        return array.dictionary_decode().cast(kind)


def _expands(kind: pa.DataType) -> bool:
    """Return whether values of a type may take more bytes than the arrays that hold them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _expands(kind.storage_type)
    shared = (types.is_dictionary, types.is_run_end_encoded, types.is_string_view, types.is_binary_view)
    others = (types.is_list_view, types.is_large_list_view, types.is_union, types.is_null)
    if any(is_of(kind) for is_of in (*shared, *others)):
        return True
    return any(_expands(kind.field(place).type) for place in range(kind.num_fields))


def _sizes(array: Any) -> NDArray[np.int64]:
    """Return the decoded bytes of each value of an array."""
    kind, count = array.type, len(array)
    if isinstance(kind, pa.BaseExtensionType):
        return _sizes(array.storage)
    if types.is_dictionary(kind):
        places = _filled(array.indices, len(array.dictionary))
        return np.append(_sizes(array.dictionary), _POINTER)[places]
    if types.is_run_end_encoded(kind):
        runs = np.searchsorted(array.run_ends.to_numpy(), np.arange(array.offset, array.offset + count), "right")
        return _sizes(array.values)[runs]
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1] or b"", np.int32)[4 * array.offset : 4 * (array.offset + count) : 4]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64) + _POINTER
    if types.is_struct(kind):
        return sum((_sizes(part) for part in array.flatten()), start=np.full(count, _POINTER, np.int64))
    if types.is_union(kind):
        return _union_sizes(array)
    if types.is_nested(kind):
        items, starts, stops = items_of_lists(array)
        if not count:
            return np.empty(0, np.int64)
        until = np.concatenate([[0], np.cumsum(_sizes(items))])
        return until[stops] - until[starts] + _POINTER
    if any(is_of(kind) for is_of in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)):
        return _filled(pc.binary_length(array), 0).astype(np.int64) + _POINTER
    width = _POINTER if types.is_null(kind) else max(1, kind.bit_width // 8)
    return np.broadcast_to(np.int64(width), count)


def _filled(array: pa.Array, value: int) -> NDArray[Any]:
    """Return integers as an array, with a value in place of nulls. Only with nulls may pyarrow import pandas."""
    return (array.fill_null(value) if array.null_count else array).to_numpy(zero_copy_only=False)


def _union_sizes(array: Any) -> NDArray[np.int64]:
    rows = slice(array.offset, array.offset + len(array))  # pyarrow returns codes and offsets without the slice
    _, codes, *rest = array.buffers()
    codes = np.frombuffer(codes or b"", np.int8)[rows]
    dense = array.type.mode == "dense"
    places = np.frombuffer(rest[0] or b"", np.int32)[rows] if dense else np.arange(len(array))
    found = np.zeros(len(array), np.int64)
    for number, code in enumerate(array.type.type_codes):
        if (is_of := codes == code).any():
            found[is_of] = _sizes(array.field(number))[places[is_of]]
    return found
