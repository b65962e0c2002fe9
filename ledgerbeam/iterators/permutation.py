"""A permutation of a range without memory: the number at any position in O(1), or arrays of them.

A balanced Feistel network of six rounds over the least even number of bits that holds the range; a result outside the
range is permuted again until it is inside. The order is identical to `lhotse.indexing.LazyShuffledRange` (2.0.0a7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from numpy.typing import NDArray

from ledgerbeam._base.late_numpy import np
from ledgerbeam.errors import UsageError

_ROUNDS = 6
_GOLDEN, _MIX = 2654435761, 0xBF58476D1CE4E5B9
_SHIFTS = 17, 31
_WORD = (1 << 64) - 1
_MOST = 1 << 62
_FEW = 16


class PermutedRange(ABC):
    """The numbers of `range(size)` in another order.

    Attributes:
        size: Number of numbers.
        seed: The seed of the order.
    """

    __slots__ = ("seed", "size")

    size: int
    seed: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        """Return the number at a position, `0 <= position < size`."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of a permutation of {self.size} numbers")
        return int(self.take(np.array([position]))[0])

    @abstractmethod
    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at many positions.

        Args:
            positions: Shape `(n,)`, i64, each `0 <= position < size`.

        Returns:
            Shape `(n,)`, i64, in the requested order.
        """


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
            raise UsageError(f"expected a permutation of 0 to 2**62 numbers, found {size}")
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
        """Return the numbers at many positions; see `PermutedRange`."""
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
        """Do the same as `_scramble` for one number; an array of one takes as long as one of a hundred."""
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
