"""Permutations of ranges, in constant memory: the number at any position in O(1), or arrays of numbers.

`Permutation` is a balanced Feistel network of six rounds over the smallest even number of bits that holds the range. A
result outside the range is permuted again until it is inside. The order is that of
`lhotse.indexing.LazyShuffledRange` (2.0.0a7).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import UsageError

_ROUNDS = 6
_GOLDEN, _MIX = 2654435761, 0xBF58476D1CE4E5B9
_SHIFTS = 17, 31
_WORD = (1 << 64) - 1
_MOST = 1 << 62
_FEW = 16


class PermutedRange(ABC):
    """The numbers of `range(size)` in another order."""

    __slots__ = ("seed", "size")

    size: int
    seed: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        """Return the number at a position, `0 <= position < size`."""
        if not 0 <= position < self.size:
            raise IndexError(f"there is no position {position} in a permutation; its size is {self.size}")
        return int(self.take(np.array([position]))[0])

    @abstractmethod
    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at many positions, each `0 <= position < size`, in the requested order."""


class Permutation(PermutedRange):
    """A permutation of `range(size)`.

    Args:
        size: Number of numbers, `0 <= size <= 2**62`.
        seed: Chooses the permutation; only its low 32 bits are used.

    Raises:
        UsageError: The size is out of range.
    """

    __slots__ = ("_bits", "_half", "_keys", "_mask", "_numbers")

    def __init__(self, size: int, seed: int) -> None:
        if not 0 <= size <= _MOST:
            raise UsageError(f"Permutation: expected a size from 0 to 2**62, found {size}")
        self.size = size
        self.seed = seed
        bits = max(2, (size - 1).bit_length()) if size > 1 else 2
        half = (bits + 1) // 2
        rng = np.random.RandomState(seed & 0xFFFFFFFF)
        self._numbers = [int(rng.randint(0, 2**63)) for _ in range(_ROUNDS)]
        self._keys = [np.uint64(number) for number in self._numbers]
        self._bits = half, (1 << half) - 1
        self._half, self._mask = (np.uint64(number) for number in self._bits)

    def __repr__(self) -> str:
        return f"Permutation({self.size}, seed={self.seed})"

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(positions) <= _FEW:
            return np.array([self._find(position) for position in positions.tolist()], np.int64)
        values = self._scramble(positions.astype(np.uint64))
        size = np.uint64(self.size)
        outside = np.flatnonzero(values >= size)
        while len(outside):
            again = self._scramble(values[outside])
            values[outside] = again
            outside = outside[again >= size]
        return values.astype(np.int64)

    def _find(self, position: int) -> int:
        """Do the same as `_scramble` for one number, without NumPy, which takes as long for one as for a hundred."""
        half, mask = self._bits
        value = position
        while True:
            left, right = value >> half, value & mask
            for key in self._numbers:
                mixed = (right ^ key) * _GOLDEN & _WORD
                mixed = (mixed ^ mixed >> _SHIFTS[0]) * _MIX & _WORD
                left, right = right, ((mixed ^ mixed >> _SHIFTS[1]) & mask) ^ left
            value = left << half | right
            if value < self.size:
                return value

    def _scramble(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        golden, mix, first, second = (np.uint64(number) for number in (_GOLDEN, _MIX, *_SHIFTS))
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            mixed = right ^ key
            mixed *= golden
            mixed ^= mixed >> first
            mixed *= mix
            mixed ^= mixed >> second
            mixed &= self._mask
            mixed ^= left
            left, right = right, mixed
        return (left << self._half) | right


_SMALL = 16 * 1024


class BlockPermutation(PermutedRange):
    """A permutation of `range(sum(blocks))` with at most `window` blocks in use at any place.

    The order of the blocks is random, and so is the order of the numbers in each block. Any `window` consecutive places
    are in different blocks, except at the end of the pass.

    The blocks are dealt to `window` lanes, each to the lane that is shortest so far. Place `p` of a pass takes the next
    number of lane `p % lanes`. So a pass uses one block of each lane at a time. A shard that takes every S-th place
    uses only some lanes if S and the number of lanes have a common factor.

    Lanes have different lengths. When the shortest lane has ended, the rest of each longer lane is in its last block.
    These rests are then divided among all lanes: each lane takes a consecutive piece of them.

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
            raise UsageError(f"BlockPermutation: expected a window of at least 1 block, found {window}")
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
        self._seeds = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, len(laid), np.uint64)
        self._permuted: dict[int, Permutation | NDArray[np.int64]] = {}

    def __repr__(self) -> str:
        return f"BlockPermutation({len(self._ends)} blocks, window={self._lanes}, seed={self.seed})"

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
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
        """Translate places of a pass into positions in the concatenation of all lanes."""
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
        """Return the order of a block. The order of a small block is computed once, as an array, to save time."""
        found = self._permuted.get(block)
        if found is None:
            if len(self._permuted) > 4 * self._lanes:
                self._permuted = {}
            size = int(self._ends[block] - (self._ends[block - 1] if block else 0))
            order = Permutation(size, int(self._seeds[block]))
            found = self._permuted[block] = order.take(np.arange(size)) if size <= _SMALL else order
        return found


def _dealt(sizes: Sequence[int], lanes: int) -> list[list[int]]:
    """Assign each block, in order, to the shortest lane so far. Return the numbers of the blocks of each lane.

    A lane is longer than the shortest one by at most its last block. When the shortest lane ends, some lanes are inside
    their last block, which is needed again. They are put last: a cache keeps the blocks that were used most recently.
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
