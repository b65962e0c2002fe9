"""Forests of near duplicates. Each record has a root: the first record to which it is connected.

The near pairs in each part of a bucket become a small forest. Trees of different forests are joined if they have a
record in common. So the forests of all parts become one forest, whose trees are the clusters. If records have
scores, the record with the least score is the best of its tree.

A forest as bytes, little-endian:

    u64 names of files, u64 bytes of the names, u64 records, u64 bytes of the scores; the names, UTF-8, each with a zero
    byte at its end; for each record u64, `position of its file's name << 40 | number of the record in the file`;
    for each record u32, the position of its root; for each record u32, the bytes of its score; and the scores
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.exchange.slices import EARLIER

PAIRS_BYTES = "bytes of pairs"  # statistic: size of the forests of all parts; decides whether one process joins them
FILE_BITS = 24
NUMBER_BITS = np.uint64(64 - FILE_BITS)  # of a record's number in its file; above them is the position of the file
_EARLIER = EARLIER.encode()  # less than the first byte of any URL, so such files come first
_HEAD = Struct("<QQQQ")
_NUMBER = (1 << (64 - FILE_BITS)) - 1

Nodes = NDArray[np.uint64]
Scores = NDArray[np.object_] | None


@dataclass(frozen=True)
class Forest:
    """Records, and for each record the root of its tree."""

    urls: list[bytes]  # the files of the records, ascending
    nodes: Nodes  # the records, ascending: `position of the file in urls << 40 | number of the record in the file`
    roots: NDArray[np.int64]  # for each record the position of its root in `nodes`; a root has its own
    scores: Scores = None  # scores of the records, the least is the best; None if the records have no scores

    def __len__(self) -> int:
        return len(self.nodes)

    def encode(self) -> bytes:
        """Return the forest as bytes."""
        names = b"".join([url + b"\0" for url in self.urls])
        scores = [] if self.scores is None else self.scores.tolist()
        sizes = np.zeros(len(self), "<u4") if self.scores is None else np.array([len(one) for one in scores], "<u4")
        head = _HEAD.pack(len(self.urls), len(names), len(self), int(sizes.sum()))
        columns = (self.nodes.astype("<u8"), self.roots.astype("<u4"), sizes)
        return b"".join([head, names, *(column.tobytes() for column in columns), *scores])

    @classmethod
    def decode(cls, data: bytes) -> Forest:
        """Return the forest of the bytes of `encode`. Raises RecordError for other bytes."""
        head = _HEAD.unpack(data[: _HEAD.size]) if len(data) >= _HEAD.size else None
        if head is None or len(data) != _HEAD.size + head[1] + 16 * head[2] + head[3]:
            raise RecordError(f"the forest of near duplicates is damaged: its parts do not fit its {len(data):,} bytes")
        count, names, size, _ = head
        place = _HEAD.size + names
        urls = data[_HEAD.size : place].split(b"\0")[:-1]
        nodes = np.frombuffer(data, "<u8", size, place).astype(np.uint64, copy=False)
        roots = np.frombuffer(data, "<u4", size, place + 8 * size).astype(np.int64)
        ends = np.cumsum(np.frombuffer(data, "<u4", size, place + 12 * size), dtype=np.int64) + place + 16 * size
        fits = len(urls) == count
        if size:
            files = int(nodes.max()) >> (64 - FILE_BITS)
            fits = fits and int(ends[-1]) == len(data) and int(roots.max()) < size and files < count
        if not fits:
            raise RecordError("the forest of near duplicates is damaged: its parts contradict each other")
        if not head[3]:
            return cls(urls, nodes, roots)
        scores = np.empty(size, object)
        scores[:] = [data[first:last] for first, last in pairwise([place + 16 * size, *ends.tolist()])]
        return cls(urls, nodes, roots, scores)

    def best(self) -> NDArray[np.int64]:
        """Return for each record the position of the best record of its tree.

        The best record is a record of an earlier job, else the record with the least score, else the first record.
        """
        if self.scores is None:
            return self.roots
        ranked = {score: rank for rank, score in enumerate(sorted(set(self.scores.tolist())))}
        ranks = np.fromiter(map(ranked.__getitem__, self.scores.tolist()), np.int64, len(self))
        ranks[self.are_earlier()] = -1
        order = np.lexsort((ranks, self.roots))  # stable: the first of equal records stays first
        trees, firsts = np.unique(self.roots[order], return_index=True)
        return order[firsts][np.searchsorted(trees, self.roots)]

    def are_earlier(self) -> NDArray[np.bool_]:
        """Return for each record whether it belongs to an earlier job. Such records are not dropped."""
        files = np.array([url.startswith(_EARLIER) for url in self.urls], np.bool_)
        return files[self.nodes >> NUMBER_BITS]

    def place(self, node: int) -> tuple[bytes, int]:
        """Return the URL of the file of a record, given as its node, and the record's number in the file."""
        return self.urls[node >> (64 - FILE_BITS)], node & _NUMBER


def file_nodes(urls: Sequence[bytes], files: NDArray[Any], numbers: Nodes) -> tuple[list[bytes], Nodes]:
    """Return the distinct `urls`, ascending, and records as nodes (see `Forest`).

    `files` has the position of each record's file in `urls`. UsageError: there are more files than a node can name.
    """
    if len(names := sorted(set(urls))) > 1 << FILE_BITS:
        raise UsageError(
            f"near duplicates: expected at most {1 << FILE_BITS:,} files, found {len(names):,}; join small "
            "files first, with ledgerbeam repartition"
        )
    position = {url: place for place, url in enumerate(names)}
    places = np.array([position[url] for url in urls], np.uint64)
    return names, (places[files] << NUMBER_BITS) | numbers


def span(urls: list[bytes], nodes: Nodes, left: Any, right: Any, scores: Scores = None) -> Forest:
    """Return the forest that connects each `nodes[left[i]]` to `nodes[right[i]]`. `nodes` may have duplicates."""
    found = np.sort(nodes)
    found = found[np.concatenate([np.ones(min(1, len(found)), np.bool_), found[1:] != found[:-1]])]
    places = np.searchsorted(found, nodes)
    count = len(found)
    from scipy import sparse  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra

    edges = sparse.coo_array((np.ones(len(left)), (places[left], places[right])), shape=(count, count))
    trees, labels = sparse.csgraph.connected_components(edges, directed=True, connection="weak")
    roots = _first_positions(labels, trees)[labels]
    return Forest(urls, found, roots, None if scores is None else scores[_first_positions(places, count)])


def _first_positions(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    found = np.empty(count, np.int64)
    found[labels[::-1]] = np.arange(len(labels) - 1, -1, -1)  # the last of several assignments stays
    return found


def join_forests(forests: Iterable[Forest], held: int = 1 << 22) -> Forest | None:
    """Return many forests joined to one; None if there are none.

    Forests are taken one by one. They are joined each time that those in memory have `held` records or more.
    """
    whole: list[Forest] = []  # the forests joined so far, as one forest; empty before
    waiting: list[Forest] = []
    size = 0
    for forest in forests:
        waiting.append(forest)
        size += len(forest)
        if size >= max(held, 0, *map(len, whole)):
            whole, waiting, size = [_join([*whole, *waiting])], [], 0
    return _join([*whole, *waiting]) if whole or waiting else None


def _join(forests: Sequence[Forest]) -> Forest:
    if len(forests) == 1:
        return forests[0]
    urls = sorted({url for forest in forests for url in forest.urls})
    position = {url: place for place, url in enumerate(urls)}
    nodes, edges, start = [], [], 0
    for forest in forests:
        places = np.array([position[url] for url in forest.urls], np.uint64)
        files, numbers = forest.nodes >> NUMBER_BITS, forest.nodes & np.uint64(_NUMBER)
        nodes.append((places[files] << NUMBER_BITS) | numbers)
        connected = np.flatnonzero(forest.roots != np.arange(len(forest)))
        edges.append((connected + start, forest.roots[connected] + start))
        start += len(forest)
    left, right = map(np.concatenate, zip(*edges, strict=True))
    scores = None
    if any(forest.scores is not None for forest in forests):
        every = (np.full(len(one), b"", object) if one.scores is None else one.scores for one in forests)
        scores = np.concatenate(list(every))
    return span(urls, np.concatenate(nodes), left, right, scores)


def require_scipy() -> None:
    """Raise UsageError if SciPy, which joins forests, is not installed. It is not imported."""
    if find_spec("scipy") is None:
        raise UsageError(f"near duplicates need SciPy: {install_command('near')}")
