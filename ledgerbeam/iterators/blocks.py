"""A permutation of a range that is divided into blocks. Few blocks are in use at any place, and each only once.

The blocks are assigned to lanes in a random order, each to the shortest lane. Place `p` of a pass is the next one of
lane `p % lanes`. So a pass uses one block of each lane at a time, and a shard that takes every S-th place uses only
some lanes, if S and the number of lanes have a common factor.

Lanes have different lengths. When the shortest lane has ended, the rest of each longer lane is in its last block. These
places are divided among all lanes again, one consecutive piece for each lane.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from numpy.typing import NDArray

from ledgerbeam._base.late_numpy import np
from ledgerbeam.errors import UsageError
from ledgerbeam.iterators.permutation import Permutation, PermutedRange

_SMALL = 16 * 1024


class BlockPermutation(PermutedRange):
    """A permutation of `range(sum(blocks))` with at most `window` blocks in use at any place.

    The order of the blocks is random, and so is the order of the numbers in each block. Any `window` consecutive places
    are in different blocks, except at the end of the pass.

    Args:
        blocks: Size of each block, in order.
        window: Number of blocks in use at once, at least 1.
        seed: Chooses the permutation; only its low 32 bits are used.

    Raises:
        UsageError: The window is less than 1.
    """

    __slots__ = ("_ends", "_even", "_firsts", "_lanes", "_left", "_permuted", "_seeds", "_starts")

    def __init__(self, blocks: Sequence[int], window: int, seed: int) -> None:
        if window < 1:
            raise UsageError(f"expected a window of at least 1 block, found {window}")
        sizes = np.asarray(blocks, np.int64)
        self.size = int(sizes.sum())
        self.seed = seed
        filled = np.flatnonzero(sizes)
        order = filled[Permutation(len(filled), seed).take(np.arange(len(filled)))]
        lanes = _dealt(sizes[order].tolist(), min(window, len(filled)))
        laid = order[[place for lane in lanes for place in lane]] if lanes else order
        # The blocks of all lanes, one lane after the other.
        self._ends = np.cumsum(sizes[laid])
        self._firsts = (np.cumsum(sizes) - sizes)[laid]
        bounds = np.cumsum([0, *map(len, lanes)])
        self._starts = np.array([0, *self._ends[bounds[1:] - 1].tolist()], np.int64)  # starts of the lanes, and the end
        lengths = np.diff(self._starts)
        self._lanes = len(lanes)
        self._even = int(lengths.min()) if len(lengths) else 0
        self._left = np.cumsum([0, *(lengths - self._even).tolist()])
        rng = np.random.RandomState(seed & 0xFFFFFFFF)
        self._seeds = rng.randint(0, 2**32, len(laid), np.uint64)
        self._permuted: dict[int, Permutation | NDArray[np.int64]] = {}

    def __repr__(self) -> str:
        return f"BlockPermutation({len(self._ends)} blocks, window={self._lanes}, seed={self.seed})"

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at many positions; see `PermutedRange`."""
        if not len(positions):
            return np.empty(0, np.int64)
        laid = self._laid(positions)
        blocks = self._ends.searchsorted(laid, "right")
        found = np.empty(len(laid), np.int64)
        for block in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == block)
            start = int(self._ends[block - 1]) if block else 0
            permuted, inside = self._block(block), laid[places] - start
            numbers = permuted.take(inside) if isinstance(permuted, Permutation) else permuted[inside]
            found[places] = self._firsts[block] + numbers
        return found

    def _laid(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return positions in the concatenation of all lanes."""
        lanes, rounds = positions % self._lanes, positions // self._lanes
        laid = self._starts[lanes] + rounds
        late = np.flatnonzero(rounds >= self._even)
        if len(late):
            share, more = divmod(int(self._left[-1]), self._lanes)
            left = lanes[late] * share + np.minimum(lanes[late], more) + rounds[late] - self._even
            owners = self._left.searchsorted(left, "right") - 1
            laid[late] = self._starts[owners] + self._even + left - self._left[owners]
        return laid

    def _block(self, block: int) -> Permutation | NDArray[np.int64]:
        """Return the order of a block: of a small one all of its numbers, which takes less than those of each read."""
        found = self._permuted.get(block)
        if found is None:
            if len(self._permuted) > 4 * self._lanes:
                self._permuted = {}
            size = int(self._ends[block] - (self._ends[block - 1] if block else 0))
            order = Permutation(size, int(self._seeds[block]))
            found = self._permuted[block] = order.take(np.arange(size)) if size <= _SMALL else order
        return found


def _dealt(sizes: Sequence[int], lanes: int) -> list[list[int]]:
    """Assign blocks in their order to the shortest lane, and return the numbers of the blocks of each lane.

    A lane is longer than the shortest one by at most its last block. Lanes that are inside their last block when the
    shortest lane ends are put last, so that the least recently used blocks are not needed again.
    """
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    shortest = [(0, lane) for lane in range(lanes)]
    for place, size in enumerate(sizes):
        length, lane = shortest[0]
        dealt[lane].append(place)
        heapq.heapreplace(shortest, (length + size, lane))
    least = shortest[0][0] if shortest else 0
    ends = sorted(shortest, key=lambda end: end[1])
    middle = [length - sizes[places[-1]] < least < length for (length, _), places in zip(ends, dealt, strict=True)]
    return [dealt[lane] for lane in sorted(range(lanes), key=middle.__getitem__)]
