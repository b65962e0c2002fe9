"""Merge slices of run files in bounded memory: the records of a bucket by key, run file ("run") and number in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io.exchange.run_file import BlockTable, RunBlock, decode_block, parse_table
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.client import Options, filesystem
from ledgerbeam.io.storage.fetch import fetch_many
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.urls import is_local, split_scheme

HELD_BYTES = 128 * 1024 * 1024
"""Limit of the decompressed bytes of blocks in memory, of all slices together. Each slice has its share, but at least
one block. So a part of at most this size needs one request for each of its slices."""

_AT_ONCE = 256  # ranges of one round of requests
_NOTHING = RunBlock.concatenated([])


class Bound(NamedTuple):
    """A boundary in the order of a bucket's records, such as the start of a part. Only lesser records are before it."""

    key: bytes  # key of the record
    run: int = 0  # position of its run file among all run files of the exchange
    number: int = 0  # number of the record in its run file


@dataclass(frozen=True)
class SliceOf:
    """The records of one bucket in one run file."""

    url: str  # the URL of the run file
    run: int  # position of the run file among all run files of the exchange
    entry: Any  # the entry of the bucket, of type `run_file.ENTRY`


def read_ranges(ranges: Sequence[tuple[str, int, int]], options: Options | None) -> list[bytes]:
    """Return the bytes of each range (URL, start, end), in the given order. Remote ranges are read concurrently.

    Raises:
        ChangedSourceError: A file ends before its range.
        SourceNotFoundError: A file does not exist; also StorageError.
    """
    by_store = groupby(ranges, key=lambda one: split_scheme(one[0])[0])
    return [data for _, some in by_store for data in _read_from_store(list(some), options)]


def _read_from_store(ranges: Sequence[tuple[str, int, int]], options: Options | None) -> list[bytes]:
    found: list[bytes] = []
    if is_local(ranges[0][0]):
        for url, start, stop in ranges:
            with RangeReader(url, options) as reader:
                found.append(reader.read(start, stop))
        return found
    store = filesystem(ranges[0][0], options)
    for first in range(0, len(ranges), _AT_ONCE):
        urls, starts, stops = map(list, zip(*ranges[first : first + _AT_ONCE], strict=True))
        for url, start, stop, data in zip(urls, starts, stops, fetch_many(store, urls, starts, stops), strict=True):
            if len(data) != stop - start:  # the file is cut off; this read raises the error
                with RangeReader(url, options) as reader:
                    data = reader.read(start, stop)  # noqa: PLW2901
            found.append(data)
    return found


def read_tables(slices: Sequence[SliceOf], options: Options | None) -> list[BlockTable]:
    """Return the table of blocks of each slice, in order. Each table takes one request."""
    places = [(one.url, int(one.entry["start"]), int(one.entry["table"])) for one in slices]
    found = read_ranges([(url, start, start + size) for url, start, size in places], options)
    return [parse_table(data, one.entry, one.url) for data, one in zip(found, slices, strict=True)]


def cut_slices(
    slices: Sequence[SliceOf], tables: Sequence[BlockTable], part_bytes: int, *, within_keys: bool, together: int = 0
) -> list[Bound]:
    """Divide a bucket into parts of about `part_bytes`; return the start of each part except the first.

    The result depends only on the arguments. If `within_keys`, the records of a key may be in several parts,
    but all its records in the first `together` run files are in the first of these parts.
    """
    blocks = sorted(
        (Bound(key, one.run, number), size)
        for one, table in zip(slices, tables, strict=True)
        for key, number, size in zip(table.keys, table.numbers, table.sizes, strict=True)
    )
    total = sum(size for _, size in blocks)
    parts = round(total / part_bytes)
    bounds: list[Bound] = []
    passed = 0
    for bound, size in blocks:
        if passed * parts >= total * (len(bounds) + 1):  # never after the last block, since every block has bytes
            place = bound if within_keys and bound.run >= together else Bound(bound.key)
            if place > (bounds[-1] if bounds else Bound(blocks[0][0].key)):
                bounds.append(place)
        passed += size
    return bounds


class Merged(NamedTuple):
    """Consecutive records of a bucket, in order."""

    keys: ByteRows  # keys of the records
    runs: NDArray[np.int64]  # for each record the position of its run
    numbers: NDArray[np.uint64]  # numbers of the records in their runs
    payloads: ByteRows  # the records

    def rows(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Yield key, position of the run file, number and bytes of each record."""
        return zip(self.keys, self.runs.tolist(), self.numbers.tolist(), self.payloads, strict=True)


def merged(
    slices: Sequence[SliceOf],
    tables: Sequence[BlockTable],
    start: Bound | None,
    stop: Bound | None,
    options: Options | None,
    *,
    held_bytes: int | None = None,
) -> Iterator[Merged]:
    """Yield the records of a part of a bucket in order, some at a time. None as a bound is an end of the bucket.

    `slices` are in the order of their runs, and `tables` are their tables of blocks. `held_bytes` limits the bytes in
    memory. Default: `HELD_BYTES`. RunFileError: a run file is damaged; also the errors of `read_ranges`.
    """
    cursors = [_SliceCursor(one, table, start, stop) for one, table in zip(slices, tables, strict=True)]
    cursors = [cursor for cursor in cursors if cursor.has_more]
    share = (held_bytes or HELD_BYTES) / max(1, sum(cursor.size for cursor in cursors))
    while cursors:
        # All records of a block may precede the part. Only loading the block shows this.
        while empty := [cursor for cursor in cursors if cursor.has_more and not cursor.loaded]:
            wanted = [cursor.next_blocks(share) for cursor in empty]
            ranges = [cursor.range_of(blocks) for cursor, blocks in zip(empty, wanted, strict=True)]
            data = read_ranges(ranges, options)
            data.reverse()
            for cursor, blocks in zip(empty, wanted, strict=True):
                cursor.load(blocks, data.pop())  # frees the compressed bytes before the next slice is decoded
        # A slice with more blocks may have records that come before loaded records of other slices.
        ends = [cursor.bound(-1) for cursor in cursors if cursor.has_more]
        limit = min(ends) if ends else None
        yield _merge_blocks([(cursor.run, cursor.take(limit)) for cursor in cursors])
        cursors = [cursor for cursor in cursors if cursor.loaded or cursor.has_more]


class SliceBlocks:
    """The blocks of one slice. A block is named by its position in the table of blocks."""

    def __init__(self, one: SliceOf, table: BlockTable) -> None:
        self.run, self._url, self._table = one.run, one.url, table
        self._firsts = [Bound(key, one.run, number) for key, number in zip(table.keys, table.numbers, strict=True)]

    def between(self, start: Bound | None, stop: Bound | None) -> range:
        """Return the blocks that may have records of a part."""
        first = 0 if start is None else max(0, bisect_right(self._firsts, start) - 1)
        return range(first, len(self._firsts) if stop is None else bisect_left(self._firsts, stop))

    def range_of(self, blocks: range) -> tuple[str, int, int]:
        """Return the URL of the run file, and the start and the end of blocks in it, in bytes."""
        return self._url, self._table.starts[blocks.start], self._table.starts[blocks.stop]

    def divide(self, blocks: range, data: bytes) -> Iterator[tuple[bytes, BlockTable, int, str]]:
        """Yield the arguments of `open_block` for each of some blocks, whose bytes are `data`."""
        starts, first = self._table.starts, self._table.starts[blocks.start]
        for block in blocks:
            yield data[starts[block] - first : starts[block + 1] - first], self._table, block, self._url


class _SliceCursor(SliceBlocks):
    """The position of the merge in one slice."""

    def __init__(self, one: SliceOf, table: BlockTable, start: Bound | None, stop: Bound | None) -> None:
        super().__init__(one, table)
        self._start, self._stop = start, stop
        blocks = self.between(start, stop)
        self._next, self._end = blocks.start, blocks.stop
        self.size = sum(table.plain[self._next : self._end])  # decompressed bytes of its blocks
        self._block = _NOTHING
        self._position = 0

    @property
    def has_more(self) -> bool:
        return self._next < self._end

    @property
    def loaded(self) -> bool:
        return self._position < len(self._block)

    def next_blocks(self, share: float) -> range:
        """Return the blocks to load next: at least one, and at most `share` of the bytes of all blocks of the slice."""
        plain, stop = self._table.plain, self._next + 1
        left = share * self.size - plain[self._next]
        while stop < self._end and plain[stop] <= left:
            left -= plain[stop]
            stop += 1
        return range(self._next, stop)

    def load(self, blocks: range, data: bytes) -> None:
        """Decode the bytes of blocks. Called only after `take` has removed all loaded records."""
        self._next = blocks.stop
        whole = RunBlock.concatenated([decode_block(*one) for one in self.divide(blocks, data)])
        low = 0 if self._start is None else self._place(whole, self._start)
        high = len(whole) if self._stop is None else self._place(whole, self._stop)
        self._block = whole.at(slice(low, high))
        self._position = 0

    def take(self, limit: Bound | None) -> RunBlock:
        """Remove and return the loaded records up to and including the record at `limit`; all of them for None."""
        block, first = self._block, self._position
        if not self.loaded or (limit is not None and limit < self.bound(first)):
            return _NOTHING
        self._position = len(block)
        if limit is not None:
            self._position = max(first, self._place(block, limit._replace(number=limit.number + 1)))
        return block.at(slice(first, self._position))

    def bound(self, place: int) -> Bound:
        return Bound(self._block.keys[place], self.run, int(self._block.numbers[place]))

    def _place(self, block: RunBlock, bound: Bound) -> int:
        """Return the number of records of a block that are before a bound in the order."""
        low = bisect_left(block.keys, bound.key)
        if bound.run < self.run:
            return low
        high = bisect_right(block.keys, bound.key, low)
        return high if bound.run > self.run else bisect_left(block.numbers, bound.number, low, high, key=int)


def _merge_blocks(parts: Iterable[tuple[int, RunBlock]]) -> Merged:
    """Merge the records of several run files, given in the order of the files."""
    some = [(run, block) for run, block in parts if len(block)]
    whole = RunBlock.concatenated([block for _, block in some])
    runs = np.repeat(np.array([run for run, _ in some], np.int64), [len(block) for _, block in some])
    if len(some) > 1:
        order = whole.keys.order()
        whole, runs = whole.at(order), runs[order]
    return Merged(whole.keys, runs, whole.numbers, whole.payloads)
