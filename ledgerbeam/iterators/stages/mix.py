"""Mix other items into the items of a source: noise into speech, distractors into text."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.iterators.identity import describe_function
from ledgerbeam.iterators.node import IteratorNode, Positions, resolve_iterator_source, supports_graph_restore
from ledgerbeam.iterators.rng import below, item_chance
from ledgerbeam.iterators.tokens import MISSING, Token
from ledgerbeam.iterators.transform import ItemTransform

__all__ = ["Mix"]

_TRIES = 100


class Mix(ItemTransform):
    """Combines items of a source with items drawn from another source. The tokens are those of the source.

    The drawn item depends only on the seed, the epoch and the token. So a rebuilt item is mixed with the same item, and
    in another epoch with another one.

    Args:
        source: The node to read; needs constant time access.
        other: The source of the drawn items, which is read at any place: an indexed leaf, or `Map`, `Slice`, `Filter`
            over one. It is not divided among shards.
        function: Called with the item, the drawn item and a `random.Random`; returns the mixed item.
        probability: Share of the items that are mixed, 0 to 1; the others are not changed.
        seed: Chooses the draws.

    Raises:
        UnsupportedShapeError: `other` cannot be read at any place, or the source cannot rebuild items.
        UsageError: The probability is out of range, or `other` is empty.
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
        drawable = bool(self.other.positions) and self.other.is_single
        for node, places in ((self.source, True), (self.other, drawable)):
            if not places or not supports_graph_restore(node):
                raise UnsupportedShapeError(
                    f"Mix: {node!r} must have items that can be read at any place; use indexed data"
                )
        if not 0 <= probability <= 1:
            raise UsageError(f"Mix: expected a probability from 0 to 1, found {probability}")

    @property
    def children(self) -> tuple[IteratorNode, ...]:
        return self.source, self.other

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards
        self.source.divide(shard, shards)

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        for token, item in self.source.pairs():
            yield token, self._mix([item], [token], self._epoch)[0]

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return self._mix(self.source.read_many(tokens, epoch), tokens, self._when(epoch))

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self._mix(self.source.read_at(positions, epoch), self.tokens(positions, epoch), self._when(epoch))

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when = self._when(epoch)
        return ((token, self._mix([item], [token], when)[0]) for token, item in self.source.pairs_at(positions, epoch))

    def parameters(self) -> dict[str, Any]:
        return {"function": describe_function(self.function), "probability": self.probability, "seed": self.seed}

    def _mix(self, items: list[Any], tokens: Sequence[Token], epoch: int) -> list[Any]:
        mixed = []
        for item, token in zip(items, tokens, strict=True):
            if item is MISSING:
                mixed.append(item)
                continue
            chance = item_chance(self.seed, epoch, token, repr(self))
            drawn = chance.random() < self.probability
            mixed.append(self.function(item, self._draw(chance), chance) if drawn else item)
        return mixed

    def _draw(self, chance: Any) -> Any:
        places = self.other.positions or 0
        for _ in range(_TRIES):
            (found,) = self.other.read_at(np.array([below(chance, places)], np.int64), 0)
            if found is not MISSING:
                return found
        raise UnsupportedShapeError(f"Mix: {_TRIES} places of {self.other!r} drawn at random had no item; filter less")
