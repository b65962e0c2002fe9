"""A permutation of a range that takes no memory: any position's number in O(1), whole blocks of them as arrays.

A balanced Feistel network of six rounds over the least even number of bits that holds the range; what falls outside
is sent through again until it falls inside. Bit for bit the order of `lhotse.indexing.LazyShuffledRange` (2.0.0a7).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import UsageError

__all__ = ["Permutation"]

_ROUNDS = 6
_GOLDEN = np.uint64(2654435761)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFTS = np.uint64(17), np.uint64(31)
_MOST = 1 << 62


class Permutation:
    """A permutation of `range(size)`.

    Args:
        size: How many numbers, `0 <= size <= 2**62`.
        seed: Chooses the permutation; its low 32 bits count.

    Raises:
        UsageError: The size is out of range.
    """

    __slots__ = ("_half", "_keys", "_mask", "seed", "size")

    def __init__(self, size: int, seed: int) -> None:
        if not 0 <= size <= _MOST:
            raise UsageError(f"a permutation of {size} numbers was asked for; expected 0 to 2**62.")
        self.size = size
        self.seed = seed
        bits = max(2, (size - 1).bit_length()) if size > 1 else 2
        half = (bits + 1) // 2
        chance = np.random.RandomState(seed & 0xFFFFFFFF)
        self._keys = [np.uint64(chance.randint(0, 2**63)) for _ in range(_ROUNDS)]
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)

    def __repr__(self) -> str:
        return f"Permutation({self.size}, seed={self.seed})"

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        """Gives the number at a position, `0 <= position < size`."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of a permutation of {self.size} numbers")
        return int(self.take(np.array([position]))[0])

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives the numbers at many positions.

        Args:
            positions: Shape `(n,)`, i64, each `0 <= position < size`.

        Returns:
            Shape `(n,)`, i64, in the order asked.
        """
        values = self._scramble(positions.astype(np.uint64))
        size = np.uint64(self.size)
        outside = np.flatnonzero(values >= size)
        while len(outside):
            again = self._scramble(values[outside])
            values[outside] = again
            outside = outside[again >= size]
        return values.astype(np.int64)

    def _scramble(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            mixed = right ^ key
            mixed *= _GOLDEN
            mixed ^= mixed >> _SHIFTS[0]
            mixed *= _MIX
            mixed ^= mixed >> _SHIFTS[1]
            mixed &= self._mask
            mixed ^= left
            left, right = right, mixed
        return (left << self._half) | right
