"""Run files whose keys are hashes of 16 bytes. NumPy encodes, decodes and merges their records, as columns.

The files have the format of `run_file`. A task may have many hashes for one record, such as the bands of a document.
Each hash becomes an entry, with the number and the payload of the record.

Connected components of a graph of hashes are found in rounds. Each part of a round reads only some of the edges. The
rounds follow R. Kiveris, S. Lattanzi, V. Mirrokni, V. Rastogi and S. Vassilvitskii, "Connected Components in MapReduce
and Beyond", Proceedings of the ACM Symposium on Cloud Computing, 2014. Nodes are ordered. A large star connects all
later neighbours of a node with its least neighbour. A small star connects a node and its earlier neighbours with the
least of them. Both keep the components. When neither changes an edge, each component is a star around its least node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.exchange.merge import Bound, SliceBlocks, SliceOf, cut_slices, read_ranges
from ledgerbeam.io.exchange.run_file import (
    BLOCK_BYTES,
    LEVEL,
    NO_TASK,
    RECORD_BYTES,
    BlockColumns,
    BlockTable,
    Cuts,
    SortedRecords,
    damaged,
    open_block,
    write_run,
)
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.client import Options

HASH_BYTES = 16

LEADING = 1 << 32
"""Records with a number below this one are leading records. If the records of one hash are divided among parts, each of
these parts can also read all leading records of the hash."""

_KEY = np.dtype(">u8")
_U64 = np.uint64


class Hashes(NamedTuple):
    """Hashes of 16 bytes as two columns."""

    high: NDArray[np.uint64]  # the upper 8 bytes
    low: NDArray[np.uint64]  # the lower 8 bytes


def hash_order(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the positions of hashes in sorted order. Equal hashes keep their order."""
    order = np.argsort(high, kind="stable")
    upper, lower = high[order], low[order]
    # Hashes with equal upper halves are nearly always equal.
    if ((upper[1:] == upper[:-1]) & (lower[1:] < lower[:-1])).any():
        return np.lexsort((low, high))
    return order


class _SortedHashes(SortedRecords):
    def __init__(self, hashes: Hashes, numbers: NDArray[np.uint64], payloads: Sequence[bytes] | None) -> None:
        self._width = hashes.high.shape[1] if hashes.high.ndim > 1 else 1
        self._high, self._low = hashes.high.reshape(-1), hashes.low.reshape(-1)
        self._order = hash_order(self._high, self._low)
        self._sorted = self._high[self._order]
        self._numbers = numbers
        self._payloads = None if payloads is None else ByteRows.of(payloads)
        none = np.broadcast_to(np.int64(0), len(self._order))
        sizes = none if self._payloads is None else self._payloads.lengths[self._order // self._width]
        super().__init__(sizes, HASH_BYTES)

    def bound(self, cut: bytes, first: int) -> int:
        upper, lower = _split_key(cut)
        start = int(np.searchsorted(self._sorted, upper, "left"))
        stop = int(np.searchsorted(self._sorted, upper, "right"))
        place = start + int(np.searchsorted(self._low[self._order[start:stop]], lower, "left"))
        return max(first, place)

    def first(self, place: int) -> tuple[int, bytes]:
        row = int(self._order[place])
        return int(self._numbers[row // self._width]), _encode_keys(self._high[row : row + 1], self._low[row : row + 1])

    def block(self, start: int, stop: int) -> bytes:
        rows = self._order[start:stop]
        each = rows // self._width
        return b"".join(
            [
                self._numbers[each].astype("<u8").tobytes(),
                np.full(len(rows), HASH_BYTES, "<u4").tobytes(),
                self.sizes[start:stop].astype("<u4").tobytes(),
                _encode_keys(self._high[rows], self._low[rows]),
                b"" if self._payloads is None else self._payloads.at(each).joined(),
            ]
        )


def encode_hashes(
    hashes: Hashes,
    numbers: NDArray[np.uint64],
    payloads: Sequence[bytes] | None,
    cuts: Cuts,
    block_bytes: int = BLOCK_BYTES,
    *,
    mark: bytes = NO_TASK,
    level: int = LEVEL,
) -> bytes:
    """Return a run file of records as bytes; see `encode_run`.

    `hashes` has one hash, or a row of hashes, for each record. `payloads` is None if all are empty.
    """
    return write_run(_SortedHashes(hashes, numbers, payloads), cuts, block_bytes, mark=mark, level=level)


def _split_key(key: bytes) -> tuple[np.uint64, np.uint64]:
    upper, lower = np.frombuffer(key.ljust(HASH_BYTES, b"\0")[:HASH_BYTES], _KEY).astype(_U64)
    return upper, lower


def _encode_keys(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> bytes:
    found = np.empty((len(high), 2), _KEY)
    found[:, 0], found[:, 1] = high, low
    return found.tobytes()


def _begins(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each hash, of hashes in sorted order, whether it differs from the previous one."""
    found = np.ones(len(high), np.bool_)
    found[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return found


@dataclass(frozen=True)
class HashRows:
    """Records in the order of hash, run file and number in the run file."""

    high: NDArray[np.uint64]  # the upper halves of the hashes
    low: NDArray[np.uint64]  # the lower halves
    runs: NDArray[np.uint32]  # for each record the position of its run
    numbers: NDArray[np.uint64]  # numbers of the records in their runs
    payloads: NDArray[np.object_] | None  # the records; None if all are empty

    def __len__(self) -> int:
        return len(self.high)

    def at(self, places: Any) -> HashRows:
        """Return the records at some positions."""
        payloads = None if self.payloads is None else self.payloads[places]
        return HashRows(self.high[places], self.low[places], self.runs[places], self.numbers[places], payloads)

    @classmethod
    def concatenated(cls, parts: Sequence[HashRows]) -> HashRows:
        """Return the records of all parts, one part after the other."""
        payloads = None
        if any(part.payloads is not None for part in parts):
            payloads = np.concatenate(
                [np.full(len(part), b"", object) if part.payloads is None else part.payloads for part in parts]
            )
        high, low = (np.concatenate([getattr(part, half) for part in parts]) for half in Hashes._fields)
        runs, numbers = (np.concatenate([getattr(part, name) for part in parts]) for name in ("runs", "numbers"))
        return cls(high, low, runs, numbers, payloads)

    def followed_by(self, rows: HashRows) -> HashRows:
        """Return these records and then the records of `rows`."""
        return self.concatenated([self, rows])

    def begin_groups(self) -> NDArray[np.bool_]:
        """Return for each record whether it is the first one with its hash."""
        return _begins(self.high, self.low)

    def come_before(self, bound: Bound) -> NDArray[np.bool_]:
        """Return for each record whether it is before a bound in the order."""
        upper, lower = _split_key(bound.key)
        same = (self.high == upper) & (self.low == lower)
        earlier = (self.runs < bound.run) | ((self.runs == bound.run) & (self.numbers < _U64(bound.number)))
        return (self.high < upper) | ((self.high == upper) & (self.low < lower)) | (same & earlier)


def merged_hashes(
    slices: Sequence[SliceOf],
    tables: Sequence[BlockTable],
    start: Bound | None,
    stop: Bound | None,
    options: Options | None,
    *,
    held_rows: int,
) -> Iterator[HashRows]:
    """Yield the records of a part of a bucket in order, about `held_rows` at a time; see `merged`.

    The records of one hash may be in several results.
    """
    found = [_HashSlice(one, table) for one, table in zip(slices, tables, strict=True)]
    bounds: list[Bound] = []
    if sum(one.count(one.between(start, stop)) for one in found) > 2 * held_rows:  # one hash may have any number
        bounds = [
            bound
            for bound in cut_slices(slices, tables, held_rows, within_keys=True)
            if (start is None or bound > start) and (stop is None or bound < stop)
        ]
    for first, last in pairwise([start, *bounds, stop]):
        wanted = [(one, blocks) for one in found if (blocks := one.between(first, last))]
        data = read_ranges([one.range_of(blocks) for one, blocks in wanted], options)
        parts = [part for (one, blocks), some in zip(wanted, data, strict=True) for part in one.rows(blocks, some)]
        yield _join_sorted([_select_between(part, first, last) for part in parts])


def leading_hashes(
    slices: Sequence[SliceOf], tables: Sequence[BlockTable], keys: Sequence[bytes], options: Options | None
) -> HashRows:
    """Return the records of the hashes `keys`, ascending, with numbers below `LEADING`. Errors as in `merged`."""
    parts: list[HashRows] = []
    for key in keys:
        wanted = []
        for one in (_HashSlice(*both) for both in zip(slices, tables, strict=True)):
            first, last = Bound(key, one.run), Bound(key, one.run, LEADING)
            if blocks := one.between(first, last):
                wanted.append((one, blocks, first, last))
        data = read_ranges([one.range_of(blocks) for one, blocks, _, _ in wanted], options)
        for (one, blocks, first, last), some in zip(wanted, data, strict=True):
            parts += [_select_between(rows, first, last) for rows in one.rows(blocks, some)]
    return _join_sorted(parts)


class _HashSlice(SliceBlocks):
    """The records of one bucket in one run file."""

    def count(self, blocks: range) -> int:
        return sum(self._table.records[blocks.start : blocks.stop])

    def rows(self, blocks: range, data: bytes) -> Iterator[HashRows]:
        for one in self.divide(blocks, data):
            yield _decode_rows(open_block(*one), self.run, self._url)


def _decode_rows(block: BlockColumns, run: int, url: str) -> HashRows:
    """Return the records of a block; raises RunFileError if a key has another length than a hash."""
    plain, numbers, key_ends, ends = block
    count = len(numbers)
    begin = RECORD_BYTES * count
    if (np.diff(key_ends, prepend=begin) != HASH_BYTES).any():
        raise damaged(url, f"expected keys of {HASH_BYTES} bytes each")
    keys = np.frombuffer(plain, _KEY, 2 * count, begin).reshape(count, 2).astype(np.uint64)
    stop = begin + HASH_BYTES * count
    payloads = None
    if len(plain) > stop:
        payloads = np.array([plain[first:last] for first, last in pairwise([stop, *ends.tolist()])], object)
    return HashRows(keys[:, 0], keys[:, 1], np.full(count, run, np.uint32), numbers, payloads)


def _select_between(rows: HashRows, first: Bound | None, last: Bound | None) -> HashRows:
    kept = np.ones(len(rows), np.bool_)
    if first is not None:
        kept &= ~rows.come_before(first)
    if last is not None:
        kept &= rows.come_before(last)
    return rows if kept.all() else rows.at(kept)


def _join_sorted(parts: Sequence[HashRows]) -> HashRows:
    """Merge the records of several run files, given in the order of the files."""
    if not parts:
        none = np.zeros(0, _U64)
        return HashRows(none, none, np.zeros(0, np.uint32), none, None)
    whole = HashRows.concatenated(parts)
    return whole.at(hash_order(whole.high, whole.low))


CHANGES = "edges that are no stars yet"  # statistic: changed edges of a round; decides whether another one is needed
Places = NDArray[np.int64]


class Edges(NamedTuple):
    """Edges between nodes. A node is its position among all nodes in order."""

    of: Places  # for each edge one node
    to: Places  # for each edge the other node


def hash_rows(hashes: Hashes) -> ByteRows:
    """Return hashes as rows of 16 bytes."""
    return ByteRows.consecutive(_encode_keys(*hashes), HASH_BYTES * np.arange(1, len(hashes.high) + 1))


def hashes_in(data: bytes) -> Hashes:
    """Return the hashes in bytes, 16 for each, as two columns."""
    halves = np.frombuffer(data, _KEY).reshape(-1, 2).astype(np.uint64)
    return Hashes(halves[:, 0].copy(), halves[:, 1].copy())


def ranked(*some: Hashes) -> tuple[Hashes, list[Places]]:
    """Return the distinct hashes, sorted, as nodes; and for each argument the positions of its hashes among them."""
    high, low = (np.concatenate([getattr(one, half) for one in some]) for half in Hashes._fields)
    order = hash_order(high, low)
    high, low = high[order], low[order]
    begins = _begins(high, low)
    places = np.empty(len(high), np.int64)
    places[order] = np.cumsum(begins) - 1
    return Hashes(high[begins], low[begins]), np.split(places, np.cumsum([len(one.high) for one in some])[:-1])


def large_star(edges: Edges, count: int, own: NDArray[np.bool_]) -> tuple[Edges, int]:
    """Connect all later neighbours of each node with its least neighbour, or with the node itself if it is less.

    There are `count` nodes. `edges` has all earlier neighbours of each node. Only the edges in the mask `own` are
    processed here; other parts of the round process the others.

    Return the new edges, distinct, each of a node to an earlier one; and the number of edges that do not form stars
    yet. It is 0 if each node has either only later neighbours, or exactly one neighbour, an earlier one.
    """
    least = _least(edges, count)
    behind, before = own & (edges.to > edges.of), own & (edges.to < edges.of)
    of = edges.of[behind]
    changes = np.count_nonzero(least[of] != of) + np.count_nonzero(edges.to[before] != least[edges.of[before]])
    return _unique(edges.to[behind], least[of], count), int(changes)


def small_star(edges: Edges, count: int) -> Edges:
    """Connect each node and all its earlier neighbours with the least of them. There are `count` nodes.

    Return the new edges, distinct, each of a node to an earlier one.
    """
    least = _least(edges, count)
    others = edges.to != least[edges.of]
    return _unique(
        np.concatenate([edges.of, edges.to[others]]), np.concatenate([least[edges.of], least[edges.of[others]]]), count
    )


def _least(edges: Edges, count: int) -> Places:
    """Return for each node the least of the node and its neighbours."""
    least = np.arange(count)
    np.minimum.at(least, edges.of, edges.to)
    return least


def _unique(of: Places, to: Places, count: int) -> Edges:
    return Edges(*np.divmod(np.unique(of * count + to), count))
