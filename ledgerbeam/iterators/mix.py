"""Several sources in one pass: items drawn by weight, and items mixed into other items, such as noise into speech."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ledgerbeam.errors import CheckpointError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators.chain import LabelledNode
from ledgerbeam.iterators.identity import describe_function
from ledgerbeam.iterators.node import (
    ItemTransform,
    IteratorNode,
    Positions,
    State,
    field,
    resolve_iterator_source,
    supports_graph_restore,
)
from ledgerbeam.iterators.tokens import MISSING, Token, below, item_chance, load_chance, new_chance, save_chance

if TYPE_CHECKING:
    import random


_TRIES = 100


class Mux(LabelledNode):
    """Draws the source of each item by weight. The tokens are `(number of the source, token of the source)`.

    A source that has ended is no longer drawn; the pass ends when all sources have ended. All shards draw the sources
    in the same order, and each shard reads its part of each source. The draws are those of lhotse's
    `LazyIteratorMultiplexer` with the same seed; each epoch has its own draws.

    Args:
        *sources: Nodes, at least one.
        weights: Relative frequency of each source; positive. Default: all equal.
        temperature: Weights are raised to the power `1 / temperature`: above 1 they become more equal, below 1 less.
        seed: Chooses the draws, together with the epoch: `seed + epoch`.
        stop_early: Whether to end the pass when the first source ends.

    Raises:
        UsageError: There is no source, the weights do not fit them, or a weight or the temperature is not positive.
    """

    pair_shape = "(number of the source, token of the source)"

    def __init__(
        self,
        *sources: Any,
        weights: Sequence[float] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        stop_early: bool = False,
    ) -> None:
        self.sources = tuple(map(resolve_iterator_source, sources))
        given = [1.0] * len(self.sources) if weights is None else list(weights)
        if not given or len(given) != len(self.sources) or min(given) <= 0 or temperature <= 0:
            raise UsageError(
                "Mux: expected at least one source, a positive weight for each, and a positive temperature; found "
                f"sources: {len(self.sources)}, weights: {weights}, temperature: {temperature}"
            )
        self.weights = given if temperature == 1 else [weight ** (1 / temperature) for weight in given]
        self.seed = seed
        self.stop_early = stop_early
        self._chance = new_chance(seed)
        self._ended = [False] * len(self.sources)
        self._planned: tuple[int, list[Positions]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": None}

    def __repr__(self) -> str:
        return f"Mux({len(self.sources)} sources)"

    def __len__(self) -> int:
        if self.stop_early:
            raise TypeError("a Mux with stop_early has no length that is known in advance")
        return sum(map(len, self.sources))  # type: ignore[arg-type]

    @property
    def positions(self) -> int | None:
        if self.stop_early or not all(source.is_positional for source in self.sources):
            return None
        return sum(source.positions or 0 for source in self.sources)

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        passes = [source.pairs() for source in self.sources]
        chance, ended = self._chance, self._ended
        while not (any(ended) if self.stop_early else all(ended)):
            for number in self._draws(chance, ended):
                pair = next(passes[number], None)
                if pair is None:
                    ended[number] = True
                    break
                token, item = pair
                yield None if token is None else (number, token), item

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._chance = new_chance(self.seed + epoch)
        self._ended = [False] * len(self.sources)

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        pairs, found = self._labelled_places(positions, epoch), super().read_at(positions, epoch)
        for (number, place), item in zip(pairs, found, strict=True):
            if item is MISSING:  # a pass would use the next item of the source instead
                raise UnsupportedShapeError(
                    f"{self!r}: place {place} of {self.sources[number]!r} has no item. This shifts all later items, so "
                    "parts of this pass cannot be read separately; remove blank lines from the source"
                )
        return found

    def save(self) -> State:
        sources = [source.save() for source in self.sources]
        return {"chance": save_chance(self._chance), "ended": list(self._ended), "sources": sources}

    def load(self, state: Mapping[str, Any]) -> None:
        self._chance = load_chance(field(state, "chance", self._name), self._name)
        ended, sources = field(state, "ended", self._name), field(state, "sources", self._name)
        if not len(ended) == len(sources) == len(self.sources):
            raise CheckpointError(f"{self!r}: the state has another number of sources; load a state of this graph")
        self._ended = list(ended)
        for source, saved in zip(self.sources, sources, strict=True):
            source.load(saved)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        if self.stop_early:
            raise UnsupportedShapeError(
                f"{self!r}: with stop_early each shard ends separately, so another number of shards cannot divide the "
                "rest; continue with the same number of shards, or repeat its sources with Repeat instead"
            )
        parts = [field(state, "sources", self._name) for state in states]
        merged = [source.merge([part[number] for part in parts]) for number, source in enumerate(self.sources)]
        return {"chance": field(states[0], "chance", self._name), "ended": [False] * len(merged), "sources": merged}

    def parameters(self) -> dict[str, Any]:
        return {"weights": self.weights, "seed": self.seed, "stop_early": self.stop_early}

    def locate(self, positions: Positions, epoch: int) -> list[tuple[int, int]]:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._plan(epoch)
        found: dict[int, tuple[int, int]] = {}
        for number, taken in enumerate(self._planned[1]):
            ranks = np.minimum(taken.searchsorted(positions), max(0, len(taken) - 1))
            mine = np.flatnonzero(taken[ranks] == positions) if len(taken) else ranks[:0]
            found.update(
                (place, (number, rank)) for place, rank in zip(mine.tolist(), ranks[mine].tolist(), strict=True)
            )
        return [found[place] for place in range(len(positions))]

    def _plan(self, epoch: int) -> list[Positions]:
        """Draw the sources of a whole pass without reading items. Return the ascending places of each source."""
        chance, ended = new_chance(self.seed + epoch), [False] * len(self.sources)
        left = [source.positions or 0 for source in self.sources]
        taken: list[list[int]] = [[] for _ in self.sources]
        place = 0
        while not all(ended):
            for number in self._draws(chance, ended):
                if not left[number]:
                    ended[number] = True
                    break
                left[number] -= 1
                taken[number].append(place)
                place += 1
        return [np.array(places, np.int64) for places in taken]

    def _draws(self, chance: random.Random, ended: Sequence[bool]) -> Iterator[int]:
        """Yield numbers of sources that have not ended, drawn by weight, without end."""
        active = [number for number, has_ended in enumerate(ended) if not has_ended]
        bounds = list(accumulate(self.weights[number] for number in active))
        total, last, draw = bounds[-1], len(active) - 1, chance.random
        while True:
            yield active[bisect_right(bounds, draw() * total, 0, last)]


class Mix(ItemTransform):
    """Combines items of a source with items drawn from another source. The tokens are those of the source.

    The drawn item depends only on the seed, the epoch and the token. So a rebuilt item is mixed with the same item, and
    in another epoch with another one.

    Streams can be mixed too. For an item of a stream, its number in the pass of the shard replaces the token. If
    `other` is a stream, its items are taken in order, again and again, from the start in each shard and pass. Then no
    item can be rebuilt. To continue a saved pass, the streams are read again.

    Args:
        source: The node to read.
        other: The source of the drawn items, not divided among shards. A node that reads through an index, or `Map`,
            `Slice`, `Filter` over it, is read at random places; another node is read in order.
        function: Called with the item, the drawn item and a `random.Random`; returns the mixed item.
        probability: Share of the items that are mixed, 0 to 1; the others are not changed.
        seed: Chooses the draws.

    Raises:
        UnsupportedShapeError: `other` has no items.
        UsageError: The probability is out of range.
    """

    def __init__(
        self,
        source: Any,
        other: Any,
        function: Callable[[Any, Any, Any], Any],
        *,
        probability: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(source)
        self.other = resolve_iterator_source(other)
        self.function = function
        self.probability = probability
        self.seed = seed
        self._is_drawn = (
            self.other.positions is not None and self.other.is_single and supports_graph_restore(self.other)
        )
        if self._is_drawn and not self.other.positions:
            raise UnsupportedShapeError(f"Mix: expected items to mix in, found none in {self.other!r}")
        self._count = 0
        self._round = 0
        if not 0 <= probability <= 1:
            raise UsageError(f"Mix: expected a probability from 0 to 1, found {probability}")

    @property
    def children(self) -> tuple[IteratorNode, ...]:
        return self.source, self.other

    @property
    def positions(self) -> int | None:
        return super().positions if self._is_drawn else None

    @property
    def is_positional(self) -> bool:  # type: ignore[override]
        return self._is_drawn and super().is_positional

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards
        self.source.divide(shard, shards)

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._count, self._round = 0, epoch

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        others = self._others()
        draw = self._draw if self._is_drawn else lambda _: next(others)
        for token, item in self.source.pairs():
            self._count += 1
            key = ("item", *self._shard, self._count) if token is None else token
            yield token if self._is_drawn else None, self._mixed(item, key, self._epoch, draw)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return super().read_many(tokens, epoch) if self._is_drawn else IteratorNode.read_many(self, tokens, epoch)

    def make(self, item: Any, token: Token | None, epoch: int) -> Any:
        return self._mixed(item, token, epoch, self._draw)

    def save(self) -> State:
        state = super().save()
        if not supports_graph_restore(self.source):
            state["count"] = self._count
        if not self._is_drawn:
            state |= {"other": self.other.save(), "round": self._round}
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if not supports_graph_restore(self.source):
            self._count = field(state, "count", self._name)
        if not self._is_drawn:
            other, self._round = field(state, "other", self._name), field(state, "round", self._name)
            self.other.begin(self._round)
            self.other.load(other)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        if not self._is_drawn:
            raise self._indivisible()  # each shard is at another place of `other`
        return super().merge(states)

    def parameters(self) -> dict[str, Any]:
        return {"function": describe_function(self.function), "probability": self.probability, "seed": self.seed}

    def _mixed(self, item: Any, token: Token | None, epoch: int, draw: Callable[[random.Random], Any]) -> Any:
        chance = item_chance(self.seed, epoch, token, repr(self))
        return self.function(item, draw(chance), chance) if chance.random() < self.probability else item

    def _draw(self, chance: random.Random) -> Any:
        places = self.other.positions or 0
        for _ in range(_TRIES):
            (found,) = self.other.read_at(np.array([below(chance, places)], np.int64), 0)
            if found is not MISSING:
                return found
        raise UnsupportedShapeError(f"Mix: {_TRIES} random places of {self.other!r} had no item; filter it less")

    def _others(self) -> Iterator[Any]:
        """Yield the items of `other`: the rest of its current pass, then passes without end."""
        is_whole = False
        while True:
            empty = True
            for _, item in self.other.pairs():
                empty = False
                yield item
            if empty and is_whole:
                raise UnsupportedShapeError(f"Mix: expected items to mix in, found none in {self.other!r}")
            self._round += 1
            self.other.begin(self._round)
            is_whole = True
