"""Nodes that change, drop or choose single items, without a buffer."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.iterators.identity import describe_function
from ledgerbeam.iterators.node import ItemTransform, Positions, State, Transform, field
from ledgerbeam.iterators.rng import item_chance
from ledgerbeam.iterators.share import count_places
from ledgerbeam.iterators.tokens import MISSING, Token, pair_token


class Map(ItemTransform):
    """Applies a function to each item. The tokens are those of the source.

    Args:
        source: The node to read.
        function: Called with an item. It must return the same for the same item, and must not change the source.
        seed: If given, the function is called with the item and a `random.Random`, which is always the same for an item
            in an epoch, also if the item is rebuilt.
    """

    def __init__(self, source: Any, function: Callable[..., Any], *, seed: int | None = None) -> None:
        super().__init__(source)
        self.function = function
        self.seed = seed

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        function = self.function
        if self.seed is None:
            for token, item in self.source.pairs():
                yield token, function(item)
            return
        for token, item in self.source.pairs():
            yield token, self._apply(item, token, self._epoch)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return self._apply_all(self.source.read_many(tokens, epoch), tokens, epoch)

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self._apply_all(self.source.read_at(positions, epoch), self.tokens(positions, epoch), epoch)

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when = self._when(epoch)
        return ((token, self._apply(item, token, when)) for token, item in self.source.pairs_at(positions, epoch))

    def parameters(self) -> dict[str, Any]:
        return {"function": describe_function(self.function), "seed": self.seed}

    def _apply_all(self, items: list[Any], tokens: Sequence[Token], epoch: int | None) -> list[Any]:
        when = self._when(epoch)
        pairs = zip(items, tokens, strict=True)
        return [item if item is MISSING else self._apply(item, token, when) for item, token in pairs]

    def _apply(self, item: Any, token: Token | None, epoch: int) -> Any:
        if self.seed is None:
            return self.function(item)
        return self.function(item, item_chance(self.seed, epoch, token, repr(self)))


class Filter(Transform):
    """Drops the items for which a predicate is false. The tokens are those of the source.

    `read_span` addresses the places of the source and returns the items that are not dropped.

    Args:
        source: The node to read.
        predicate: Called with an item; it must return the same for the same item.
    """

    def __init__(self, source: Any, predicate: Callable[[Any], bool]) -> None:
        super().__init__(source)
        self.predicate = predicate

    @property
    def positions(self) -> int | None:
        return self.source.positions

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        predicate = self.predicate
        for token, item in self.source.pairs():
            if predicate(item):
                yield token, item

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        items = self.source.read_many(tokens, epoch)
        for token, item in zip(tokens, items, strict=True):
            if not self.predicate(item):
                raise FunctionError(
                    f"Filter: {describe_function(self.predicate)} drops the item of token {token!r}, which it kept "
                    "before; it must be a pure function of the item"
                )
        return items

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        items = self.source.read_at(positions, epoch)
        return [item if item is not MISSING and self.predicate(item) else MISSING for item in items]

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        return self.source.tokens(positions, epoch)

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        return (pair for pair in self.source.pairs_at(positions, epoch) if self.predicate(pair[1]))

    def parameters(self) -> dict[str, Any]:
        return {"predicate": describe_function(self.predicate)}


class Slice(Transform):
    """Takes the `k`-th of every `n` items. The tokens are `("source", token of the source)`.

    If the source has a known order, skipped items are not read. Otherwise each shard reads and counts all its items.

    Args:
        source: The node to read.
        k: The position of the chosen item among `n`, `0 <= k < n`.
        n: Number of items of which one is taken.

    Raises:
        UsageError: `0 <= k < n` does not hold.
    """

    def __init__(self, source: Any, k: int, n: int) -> None:
        super().__init__(source)
        if not 0 <= k < n:
            raise UsageError(f"Slice: expected 0 <= k < n, found k={k}, n={n}")
        self.k = k
        self.n = n
        self._counted = 0
        if self.is_positional:
            self.source.restrict(k, n)

    def __len__(self) -> int:
        return count_places(len(self.source), self.k, self.n)  # type: ignore[arg-type]

    @property
    def positions(self) -> int | None:
        places = self.source.positions if self.is_positional else None
        return None if places is None else count_places(places, self.k, self.n)

    @property
    def is_positional(self) -> bool:  # type: ignore[override]
        return self.source.is_positional

    def restrict(self, first: int, step: int) -> None:
        self.source.restrict(self.k + self.n * first, self.n * step)

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        skip = not self.is_positional
        for token, item in self.source.pairs():
            if skip:
                taken = self._counted % self.n == self.k
                self._counted += 1
                if not taken:
                    continue
            yield None if token is None else ("source", token), item

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return self.source.read_many([self._inner(token) for token in tokens], epoch)

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self.source.read_at(self.k + self.n * positions, epoch)

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        if not self.is_positional:
            return super().tokens(positions, epoch)
        return [("source", token) for token in self.source.tokens(self.k + self.n * positions, epoch)]

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._counted = 0

    def save(self) -> State:
        return {**super().save(), "counted": self._counted}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._counted = field(state, "counted", self._name)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        if not self.is_positional:
            raise self._indivisible()  # each shard counts separately
        return {**super().merge(states), "counted": 0}

    def parameters(self) -> dict[str, Any]:
        return {"k": self.k, "n": self.n}

    def _inner(self, token: Token) -> Token:
        word, inner = pair_token(token, self._name, '("source", token of the source)')
        if word != "source":
            raise UsageError(f'Slice: expected a token ("source", ...), found {token!r}')
        return inner
