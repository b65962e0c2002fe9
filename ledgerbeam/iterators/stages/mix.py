"""Mix other items into the items of a source: noise into speech, distractors into text."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ledgerbeam.errors import UnsupportedShapeError, UsageError
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
from ledgerbeam.iterators.rng import below, item_chance
from ledgerbeam.iterators.tokens import MISSING, Token

if TYPE_CHECKING:
    import random


_TRIES = 100


class Mix(ItemTransform):
    """Combines items of a source with items drawn from another source. The tokens are those of the source.

    The drawn item depends only on the seed, the epoch and the token. So a rebuilt item is mixed with the same item, and
    in another epoch with another one.

    Streams can be mixed too. The items of a stream are drawn by their numbers in the pass of the shard. If `other` is a
    stream, its items are taken in their order, again and again, from the beginning in each shard and pass. Then no item
    can be rebuilt; a saved pass continues in the time that the streams take.

    Args:
        source: The node to read.
        other: The source of the drawn items: an indexed leaf, or `Map`, `Slice`, `Filter` over one, is read at any
            place; another node is read in its order. It is not divided among shards.
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
        if not self._is_drawn:
            return super().read_many(tokens, epoch)
        return self._mix(self.source.read_many(tokens, epoch), tokens, self._when(epoch))

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self._mix(self.source.read_at(positions, epoch), self.tokens(positions, epoch), self._when(epoch))

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when = self._when(epoch)
        return ((token, self._mix([item], [token], when)[0]) for token, item in self.source.pairs_at(positions, epoch))

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

    def _mix(self, items: list[Any], tokens: Sequence[Token], epoch: int) -> list[Any]:
        pairs = zip(items, tokens, strict=True)
        return [item if item is MISSING else self._mixed(item, token, epoch, self._draw) for item, token in pairs]

    def _mixed(self, item: Any, token: Token, epoch: int, draw: Callable[[random.Random], Any]) -> Any:
        chance = item_chance(self.seed, epoch, token, repr(self))
        return self.function(item, draw(chance), chance) if chance.random() < self.probability else item

    def _draw(self, chance: random.Random) -> Any:
        places = self.other.positions or 0
        for _ in range(_TRIES):
            (found,) = self.other.read_at(np.array([below(chance, places)], np.int64), 0)
            if found is not MISSING:
                return found
        raise UnsupportedShapeError(f"Mix: {_TRIES} places of {self.other!r} drawn at random had no item; filter less")

    def _others(self) -> Iterator[Any]:
        """Yield the items of `other` from its current state on, again and again."""
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
