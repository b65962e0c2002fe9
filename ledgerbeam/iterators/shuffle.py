"""Buffers of items: saved as tokens and read again with as few requests as possible, or filled again by a stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

from ledgerbeam.errors import UsageError
from ledgerbeam.iterators.node import State, Transform, field
from ledgerbeam.iterators.tokens import (
    Token,
    below,
    load_chance,
    new_chance,
    normalize_graph_token,
    require_graph_origin,
    save_chance,
)

Pair: TypeAlias = tuple[Token | None, Any]  # A token and its item


class BufferedNode(Transform):
    """A node that holds items of its source in a buffer before it yields them.

    If the source can rebuild items, the state has the tokens of the held items. Otherwise the state is the number of
    yielded items: to continue, the node reads the pass from its start and skips them, so the time is proportional to
    the position. The remaining items of such a pass cannot be divided among another number of shards.
    """

    held: str  # name of the held tokens in a state
    _yielded = 0

    @property
    def _is_replayed(self) -> bool:
        return not self.source.has_constant_time_access

    @abstractmethod
    def buffered_pairs(self) -> Iterator[Pair]:
        """Continue the pass from the held items and the state of the source; see `pairs`."""

    @abstractmethod
    def drop_held(self) -> None:
        """Empty the buffer and prepare it for the start of a pass: the pass of `self.epoch`."""

    @abstractmethod
    def save_held(self) -> State:
        """Return the state of the held items."""

    @abstractmethod
    def load_held(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `save_held` or `merge_held`."""

    def merge_held(self, states: Sequence[Mapping[str, Any]]) -> State:
        """Merge the states of the held items of all shards: the lists of their tokens, one after the other."""
        tokens = list(chain.from_iterable(field(state, self.held, self._name) for state in states))
        return {self.held: tokens, "of_all_shards": True}

    def own_part(self, state: Mapping[str, Any], tokens: Sequence[Token]) -> list[Token]:
        """Return the tokens in a state that this shard loads: all of them, or its part of those of all shards."""
        shard, shards = self._shard
        return list(tokens[shard::shards] if state.get("of_all_shards") else tokens)

    def held_tokens(self, pairs: Iterable[Pair]) -> list[Token]:
        """Return the tokens of held items. CheckpointError: an item has none, although the source can rebuild items."""
        return [require_graph_origin(token, repr(self)) for token, _ in pairs]

    def read_held(self, tokens: Sequence[Token]) -> list[Pair]:
        """Read held items again from their tokens."""
        known = [normalize_graph_token(token) for token in tokens]
        return list(zip(known, self.source.read_many(known), strict=True)) if known else []

    def pairs(self) -> Iterator[Pair]:
        return self._replayed_pairs() if self._is_replayed else self.buffered_pairs()

    def _replayed_pairs(self) -> Iterator[Pair]:
        done = self._yielded
        self.begin(self._epoch)
        self._yielded = done
        for pair in islice(self.buffered_pairs(), done, None):
            self._yielded += 1
            yield pair

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._yielded = 0
        self.drop_held()

    def save(self) -> State:
        return {"yielded": self._yielded} if self._is_replayed else {**super().save(), **self.save_held()}

    def load(self, state: Mapping[str, Any]) -> None:
        if self._is_replayed:
            self._yielded = field(state, "yielded", self._name)
            return
        super().load(state)
        self.load_held(state)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        if self._is_replayed:
            raise self._indivisible()
        return {**super().merge(states), **self.merge_held(states)}


class Shuffle(BufferedNode):
    """Yields random items of a buffer. The next item of the source replaces the yielded item.

    The tokens are those of the source. The state has the tokens of the buffer; to continue, their items are read again
    with merged requests. Over a stream, the pass is read again from its start, see `BufferedNode`. The order is that of
    lhotse's `LazyShuffler` with `random.Random(seed)`; each epoch has its own order.

    Args:
        source: The node to read.
        buffer_size: Number of items in the buffer, at least 1.
        seed: Chooses the order, together with the epoch: `seed + epoch`.

    Raises:
        UsageError: The buffer is smaller than 1.
    """

    held = "buffer"

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
            self._buffer, self._saved = self.read_held(self._saved), []
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
        tokens = self._saved or self.held_tokens(self._buffer[self._drained :])
        return {"buffer": tokens, "filled": self._filled, "chance": save_chance(self._chance)}

    def load_held(self, state: Mapping[str, Any]) -> None:
        self._saved = self.own_part(state, field(state, self.held, self._name))
        self._buffer, self._drained = [], 0
        self._filled = field(state, "filled", self._name)
        self._chance = load_chance(field(state, "chance", self._name), self._name)

    def merge_held(self, states: Sequence[Mapping[str, Any]]) -> State:
        return {**super().merge_held(states), "filled": True, "chance": field(states[0], "chance", self._name)}

    def parameters(self) -> dict[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def _fill(self, source: Iterator[Pair]) -> Iterator[Pair]:
        """Fill the buffer, then yield one item. Each step reads two items, and swaps one with a random held item."""
        buffer, size = self._buffer, self.buffer_size
        while not self._filled:
            pair = next(source, None)
            if pair is None:
                return
            if len(buffer) < size:
                second = next(source, None)
                buffer.extend([] if second is None else [second])
            if buffer:
                place = below(self._chance, len(buffer))
                pair, buffer[place] = buffer[place], pair
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
