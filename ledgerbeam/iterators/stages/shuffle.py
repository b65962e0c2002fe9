"""Shuffle through a buffer, for sources without a fixed order, which cannot be shuffled globally."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.iterators.node import State, field
from ledgerbeam.iterators.rng import below, load_chance, new_chance, save_chance
from ledgerbeam.iterators.stages.buffer import BufferedNode, Pair, read_pairs, save_tokens, split_tokens
from ledgerbeam.iterators.tokens import Token


class Shuffle(BufferedNode):
    """Yields random items of a buffer; the next item of the source replaces each.

    The tokens are those of the source. The state has the tokens of the buffer; their items are read again with merged
    requests to continue. Over a stream a pass is read again from its beginning, see `BufferedNode`. The order is that
    of lhotse's `LazyShuffler` with `random.Random(seed)`; each epoch has its own.

    Args:
        source: The node to read.
        buffer_size: Number of items in the buffer, at least 1.
        seed: Chooses the order, together with the epoch: `seed + epoch`.

    Raises:
        UsageError: The buffer is smaller than 1.
    """

    def __init__(self, source: Any, buffer_size: int = 10_000, *, seed: int = 0) -> None:
        super().__init__(source)
        if buffer_size < 1:
            raise UsageError(f"Shuffle: expected a buffer of at least 1 item, found {buffer_size}")
        self.buffer_size = buffer_size
        self.seed = seed
        self._chance = new_chance(seed)
        self._buffer: list[Pair] = []
        self._saved: list[Token] = []
        self._filled = False
        self._drained = 0

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def buffered_pairs(self) -> Iterator[Pair]:
        if self._saved:
            self._buffer, self._saved = read_pairs(self._saved, self.source), []
        source = self.source.pairs()
        if not self._drained:
            yield from self._fill(source)
            yield from self._exchange(source)
        while self._drained < len(self._buffer):
            self._drained += 1
            yield self._buffer[self._drained - 1]

    def drop_held(self) -> None:
        self._chance = new_chance(self.seed + self._epoch)
        self._buffer, self._saved = [], []
        self._filled, self._drained = False, 0

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return self.source.read_many(tokens, epoch)

    def save_held(self) -> State:
        tokens = self._saved or save_tokens(self._buffer[self._drained :], self, self.source)
        return {"buffer": tokens, "filled": self._filled, "chance": save_chance(self._chance)}

    def load_held(self, state: Mapping[str, Any]) -> None:
        tokens = field(state, "buffer", self._name)
        self._saved = split_tokens(tokens, self._shard) if state.get("of_all_shards") else list(tokens)
        self._buffer, self._drained = [], 0
        self._filled = field(state, "filled", self._name)
        self._chance = load_chance(field(state, "chance", self._name), self._name)

    def merge_held(self, states: Sequence[Mapping[str, Any]]) -> State:
        tokens = list(chain.from_iterable(field(state, "buffer", self._name) for state in states))
        chance = field(states[0], "chance", self._name)
        return {"buffer": tokens, "of_all_shards": True, "filled": True, "chance": chance}

    def parameters(self) -> dict[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def _fill(self, source: Iterator[Pair]) -> Iterator[Pair]:
        """Fill the buffer with two items in each step, one swapped with a random one; then yield the first item."""
        buffer, size = self._buffer, self.buffer_size
        while not self._filled:
            pair = next(source, None)
            if pair is None:
                return
            if len(buffer) < size:
                second = next(source, None)
                buffer.extend([] if second is None else [second])
            pair = self._swap(pair)
            if len(buffer) < size:
                buffer.append(pair)
                continue
            self._filled = True
            yield pair

    def _exchange(self, source: Iterator[Pair]) -> Iterator[Pair]:
        buffer, size = self._buffer, self.buffer_size
        chance = self._chance
        while len(buffer) > size:  # after a merge it has the items of several shards
            place = below(chance, len(buffer))
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            yield buffer.pop()
        for pair in source:
            if len(buffer) < size:
                buffer.append(pair)
                continue
            place = below(chance, size)
            given, buffer[place] = buffer[place], pair
            yield given

    def _swap(self, pair: Pair) -> Pair:
        if not self._buffer:
            return pair
        place = below(self._chance, len(self._buffer))
        given, self._buffer[place] = self._buffer[place], pair
        return given
