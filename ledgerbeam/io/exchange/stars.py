"""Which nodes are connected, found in rounds of which each looks at a part of the edges.

The rounds are those of R. Kiveris, S. Lattanzi, V. Mirrokni, V. Rastogi and S. Vassilvitskii, "Connected Components in
MapReduce and Beyond", Proceedings of the ACM Symposium on Cloud Computing, 2014. A large star connects all neighbours
of a node that come behind it with its least neighbour, a small star the others. Neither connects what was not, nor
divides what was. Where neither changes an edge, each component is a star around its least node.

Nodes are hashes of 16 bytes, in the order of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.exchange.hash_run import HASH_BYTES, Hashes, hash_order

CHANGES = "edges that are no stars yet"
"""The statistic of a round by which it is known whether another one is needed."""

Places = NDArray[np.int64]


class Edges(NamedTuple):
    """Edges between nodes.

    Attributes:
        of: For each the one node: its place among all.
        to: Likewise the other.
    """

    of: Places
    to: Places


class Pieces(Sequence[bytes]):
    """Hashes as bytes, one behind the other.

    Args:
        data: Of all of them.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def of(cls, hashes: Hashes) -> Pieces:
        """Return the bytes of hashes."""
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
        """Return them as two columns."""
        halves = np.frombuffer(self._data, ">u8").reshape(-1, 2).astype(np.uint64)
        return Hashes(halves[:, 0].copy(), halves[:, 1].copy())


def ranked(*some: Hashes) -> tuple[Hashes, list[Places]]:
    """Return the nodes that some hashes name, each once and in their order, and for each hash the place of its node."""
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
    """Connect all neighbours behind a node with its least neighbour, or with itself if it is less.

    Args:
        edges: Each of a node and a neighbour; of each node all neighbours that come before it.
        count: How many nodes there are.
        own: Which edges are to be looked at; of the others another part of the round takes care.

    Returns:
        Edges of a node to one that comes before it, each once, and how many edges keep those that there were from being
        stars: none if each node either has neighbours behind it alone, or one neighbour, before it.
    """
    least = _least(edges, count)
    behind, before = own & (edges.to > edges.of), own & (edges.to < edges.of)
    of = edges.of[behind]
    changes = np.count_nonzero(least[of] != of) + np.count_nonzero(edges.to[before] != least[edges.of[before]])
    return _unique(edges.to[behind], least[of], count), int(changes)


def small_star(edges: Edges, count: int) -> Edges:
    """Connect a node and all its neighbours before it with the least of them.

    Args:
        edges: Each of a node and a neighbour that comes before it; all that there are of each node.
        count: How many nodes there are.

    Returns:
        Edges of a node to one that comes before it, each once.
    """
    least = _least(edges, count)
    others = edges.to != least[edges.of]
    return _unique(
        np.concatenate([edges.of, edges.to[others]]),
        np.concatenate([least[edges.of], least[edges.of[others]]]),
        count,
    )


def _least(edges: Edges, count: int) -> Places:
    """Return for each node the least one of it and its neighbours."""
    least = np.arange(count)
    np.minimum.at(least, edges.of, edges.to)
    return least


def _unique(of: Places, to: Places, count: int) -> Edges:
    return Edges(*np.divmod(np.unique(of * count + to), count))
