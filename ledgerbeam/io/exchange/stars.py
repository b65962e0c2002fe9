"""Connected components of a graph, found in rounds. Each part of a round reads only some of the edges.

The rounds follow R. Kiveris, S. Lattanzi, V. Mirrokni, V. Rastogi and S. Vassilvitskii, "Connected Components in
MapReduce and Beyond", Proceedings of the ACM Symposium on Cloud Computing, 2014. A large star connects all later
neighbours of a node with its least neighbour, a small star the earlier ones. Neither step changes which nodes are
connected. When neither changes an edge, each component is a star around its least node.

Nodes are hashes of 16 bytes, in the order of the hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.exchange.hash_run import HASH_BYTES, Hashes, hash_order

CHANGES = "edges that are no stars yet"
"""Statistic of the changed edges of a round. It decides whether another round is needed."""

Places = NDArray[np.int64]


class Edges(NamedTuple):
    """Edges between nodes.

    Attributes:
        of: For each edge the position of one node among all nodes.
        to: For each edge the position of the other node.
    """

    of: Places
    to: Places


class Pieces(Sequence[bytes]):
    """Hashes as concatenated bytes.

    Args:
        data: The bytes of all hashes.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def of(cls, hashes: Hashes) -> Pieces:
        """Return hashes as bytes."""
        halves = np.empty((len(hashes.high), 2), ">u8")
        halves[:, 0], halves[:, 1] = hashes
        return cls(halves.tobytes())

    def __len__(self) -> int:
        return len(self._data) // HASH_BYTES

    def __getitem__(self, item: int) -> bytes:  # type: ignore[override]
        return self._data[item * HASH_BYTES : (item + 1) * HASH_BYTES]

    def __iter__(self) -> Iterator[bytes]:
        return (self._data[first:last] for first, last in pairwise(range(0, len(self._data) + 1, HASH_BYTES)))

    def hashes(self) -> Hashes:
        """Return the hashes as two columns."""
        halves = np.frombuffer(self._data, ">u8").reshape(-1, 2).astype(np.uint64)
        return Hashes(halves[:, 0].copy(), halves[:, 1].copy())


def ranked(*some: Hashes) -> tuple[Hashes, list[Places]]:
    """Return the distinct nodes of some hashes in order, and for each hash the position of its node."""
    high, low = (np.concatenate([getattr(one, half) for one in some]) for half in Hashes._fields)
    order = hash_order(high, low)
    high, low = high[order], low[order]
    begins = np.ones(len(high), np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    places = np.empty(len(high), np.int64)
    places[order] = np.cumsum(begins) - 1
    cuts = np.cumsum([len(one.high) for one in some])[:-1]
    return Hashes(high[begins], low[begins]), np.split(places, cuts)


def large_star(edges: Edges, count: int, own: NDArray[np.bool_]) -> tuple[Edges, int]:
    """Connect all later neighbours of a node with its least neighbour, or with the node itself if it is less.

    Args:
        edges: Edges of a node and a neighbour, with all earlier neighbours of each node.
        count: Number of nodes.
        own: Which edges this part of the round processes; another part processes the others.

    Returns:
        Distinct edges of a node to an earlier one; and the number of edges that do not form stars yet. It is 0 if each
        node has either only later neighbours, or one neighbour, an earlier one.
    """
    least = _least(edges, count)
    behind, before = own & (edges.to > edges.of), own & (edges.to < edges.of)
    of = edges.of[behind]
    changes = np.count_nonzero(least[of] != of) + np.count_nonzero(edges.to[before] != least[edges.of[before]])
    return _unique(edges.to[behind], least[of], count), int(changes)


def small_star(edges: Edges, count: int) -> Edges:
    """Connect a node and all its earlier neighbours with the least of them.

    Args:
        edges: All edges of a node and an earlier neighbour.
        count: Number of nodes.

    Returns:
        Distinct edges of a node to an earlier one.
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
