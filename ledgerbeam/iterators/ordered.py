"""Nodes whose order of places is determined before any read."""

# ruff: noqa: ARG002, D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import is_
from typing import Any, Literal, TypeAlias

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.iterators.identity import require_shard
from ledgerbeam.iterators.node import IteratorNode, Positions, State, field
from ledgerbeam.iterators.permutation import BlockPermutation, Permutation, PermutedRange
from ledgerbeam.iterators.share import Progression, Share, count_places, merge_shares
from ledgerbeam.iterators.tokens import MISSING, Token

ShuffleBy: TypeAlias = bool | Literal["blocks"]  # whether a pass is shuffled, and whether over all places or by blocks
WINDOW = 16  # default number of blocks in use in a shuffle by blocks: a multiple of common numbers of shards
LARGEST_BLOCK = 2048  # largest number of items of a block
_ORDER_AHEAD = 15  # blocks of one size, or four that double: 1 + 2 + 4 + 8
_BLOCK_BYTES = 4 * 1024 * 1024


class OrderedNode(IteratorNode):
    """A pass over `positions` places, in order or shuffled differently in each epoch, read in blocks.

    A shard takes every S-th place. The state is the number of finished places. The first block has one item, so that it
    arrives early; later ones have up to 2,048 items or 4 MiB, perhaps read in pieces. They are not part of the state.

    Args:
        shuffle: Whether to use the order of a `Permutation`; with `"blocks"` that of a `BlockPermutation`.
        seed: Chooses the order, together with the epoch: `seed + epoch`.
        window: Number of blocks in use at once in a shuffle by blocks.

    Raises:
        UsageError: There is no such shuffle, or the window is less than 1.
    """

    is_checkpointable = True
    is_positional = True

    def __init__(self, *, shuffle: ShuffleBy, seed: int, window: int = WINDOW) -> None:
        if shuffle not in (True, False, "blocks"):
            raise UsageError(f'{self._name}: expected shuffle to be True, False or "blocks", found {shuffle!r}')
        if window < 1:
            raise UsageError(f"{self._name}: expected a window of at least 1 block, found {window}")
        self.shuffle = shuffle
        self.window = window
        self.seed = seed
        self._done = 0
        self._todo: list[Progression] | None = None
        self._view = 0, 1
        self._permuted: PermutedRange | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items of all shards together."""

    @property
    def positions(self) -> int:
        return len(self)

    @property
    def blocks(self) -> Sequence[int]:
        """Number of places of each block, in order; a block is cheapest to read as a whole.

        Raises:
            UnsupportedShapeError: The data has no blocks.
        """
        raise UnsupportedShapeError(f"{self!r}: its data has no blocks; use shuffle=True")

    @property
    def first_block(self) -> int:
        """Number of items of the first read: as few as can be read efficiently."""
        return 1

    @property
    def largest_block(self) -> int:
        """Number of items that are read together at most."""
        return max(1, min(LARGEST_BLOCK, int(_BLOCK_BYTES / max(1.0, self.record_bytes))))

    @property
    def record_bytes(self) -> float:
        """Mean size of an item in bytes, which limits the size of blocks."""
        return _BLOCK_BYTES / LARGEST_BLOCK

    def pairs(self) -> Iterator[tuple[Token, Any]]:
        for tokens, items in self._read_blocks():
            for token, item in zip(tokens, items, strict=True):
                self._done += 1
                if item is not MISSING:
                    yield token, item

    def lists(self, size: int) -> Iterator[tuple[list[Token | None], list[Any]]]:
        if type(self).pairs is not OrderedNode.pairs:  # a derived class yields other pairs
            yield from super().lists(size)
            return
        tokens: list[Token | None] = []
        items: list[Any] = []
        for block_tokens, block in self._read_blocks():
            place = 0
            while place < len(block):
                stop = place + size - len(items)
                new_tokens, new = block_tokens[place:stop], block[place:stop]
                self._done += len(new)
                place = stop
                if any(map(is_, new, repeat(MISSING))):
                    there = [item is not MISSING for item in new]
                    new_tokens, new = list(compress(new_tokens, there)), list(compress(new, there))
                tokens += new_tokens
                items += new
                if len(items) == size:
                    yield tokens, items
                    tokens, items = [], []
        if items:
            yield tokens, items

    def _read_blocks(self) -> Iterator[tuple[list[Token], list[Any]]]:
        """Read the rest of the pass in blocks, each when all of the one before is done."""
        share = self._share
        largest = self.largest_block
        size = min(self.first_block, largest)
        while self._done < len(share):
            # A permutation is faster in large pieces, but the first item should not wait for one.
            stop = min(len(share), self._done + (_ORDER_AHEAD if size > self.first_block else 1) * size)
            numbers = self.order(share.positions(self._done, stop))
            while len(numbers):
                block, numbers = numbers[:size], numbers[size:]
                tokens, place = self.tokens_of(block, self._epoch), 0
                for items in self.read_pieces(block):
                    yield tokens[place : place + len(items)], items
                    place += len(items)
                if place != len(block):
                    raise UsageError(f"{self!r}: expected {len(block)} items of as many numbers, found {place}")
                size = min(2 * size, largest)
        self.release()

    @abstractmethod
    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        """Read items by number, `MISSING` for a number without an item."""

    def read_pieces(self, numbers: Positions) -> Iterator[list[Any]]:
        """Read items by number for the pass, in pieces. Default: what `read_numbers` returns, at once."""
        yield self.read_numbers(numbers)

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        """Return the tokens of numbers. Default: the numbers themselves."""
        found: list[Token] = numbers.tolist()
        return found

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        return self.tokens_of(self.order(positions, epoch), self._when(epoch))

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self.read_numbers(self.order(positions, epoch), epoch)

    def release(self) -> None:
        """Close the files of a pass; a later read opens them again."""

    def order(self, positions: Positions, epoch: int | None = None) -> Positions:
        """Return the numbers of the records at places of a pass."""
        if not self.shuffle:
            return positions
        size, seed = len(self), self.seed + self._when(epoch)
        if self._permuted is None or (self._permuted.size, self._permuted.seed) != (size, seed):
            by_blocks = self.shuffle == "blocks"
            self._permuted = BlockPermutation(self.blocks, self.window, seed) if by_blocks else Permutation(size, seed)
        return self._permuted.take(positions)

    def order_parameters(self) -> dict[str, Any]:
        """Return the `parameters` that decide the order."""
        window = {"window": self.window} if self.shuffle == "blocks" else {}
        return {"shuffle": self.shuffle, "seed": self.seed, **window}

    def restrict(self, first: int, step: int) -> None:
        self._view = first, step

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._done, self._todo = 0, None

    def finish(self) -> None:
        self._done = len(self._share)

    def save(self) -> State:
        shard, shards = self._shard
        state: State = {"position": self._done, "shard": shard, "shards": shards}
        if self._todo is not None:
            state["todo"] = [list(part) for part in self._todo]
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self._done = field(state, "position", self._name)
        shard, shards = field(state, "shard", self._name), field(state, "shards", self._name)
        if shard is not None:
            require_shard((shard, shards), self._shard)
        todo = state.get("todo")
        self._todo = None if todo is None else [Progression(*part) for part in todo]

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        known = [{**state, "todo": state.get("todo", [self._whole])} for state in states]
        return {
            "position": 0,
            "shard": None,
            "shards": None,
            "todo": [list(part) for part in merge_shares(known, repr(self))],
        }

    @property
    def _share(self) -> Share:
        return Share([self._whole] if self._todo is None else self._todo, *self._shard)

    @property
    def _whole(self) -> Progression:
        first, step = self._view
        return Progression(first, step, count_places(len(self), first, step))
