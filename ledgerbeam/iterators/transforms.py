"""Nodes that change, drop or choose single items, without a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.iterators.chain import read_grouped
from ledgerbeam.iterators.identity import describe_function
from ledgerbeam.iterators.node import ItemTransform, Positions, State, Transform, field
from ledgerbeam.iterators.ordered import count_places
from ledgerbeam.iterators.shuffle import BufferedNode
from ledgerbeam.iterators.tokens import MISSING, Token, item_chance, normalize_graph_token, pair_token


class Map(ItemTransform):
    """Applies a function to each item. The tokens are those of the source.

    Args:
        source: The node to read.
        function: Called with an item. It must return the same result for the same item, and must not change the source.
        seed: If given, the function is called with the item and a `random.Random`. For the same item, epoch and seed it
            yields the same numbers, also if the item is rebuilt.
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
            yield token, self.make(item, token, self._epoch)

    def make(self, item: Any, token: Token | None, epoch: int) -> Any:
        if self.seed is None:
            return self.function(item)
        return self.function(item, item_chance(self.seed, epoch, token, repr(self)))

    def parameters(self) -> dict[str, Any]:
        return {"function": describe_function(self.function), "seed": self.seed}


class Filter(Transform):
    """Drops the items for which a predicate is false. The tokens are those of the source.

    `read_span` takes places of the source and returns the items there that are not dropped.

    Args:
        source: The node to read.
        predicate: Called with an item; it must return the same result for the same item.
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
                    f"Filter: {describe_function(self.predicate)} drops the item with token {token!r}, which it kept "
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
    """Takes item `k` of every `n` items. The tokens are `("source", token of the source)`.

    If the source has a known order, skipped items are not read. Otherwise each shard reads and counts all its items.

    Args:
        source: The node to read.
        k: Number of the chosen item among `n` items, from 0: `0 <= k < n`.
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


class Flatten(BufferedNode):
    """Yields the pieces of each item of its source, in order.

    The tokens are `(token of the item, number of the piece)`. The state has the token of the current item and the
    number of its yielded pieces. Over a stream, the pass is read again from its start, see `BufferedNode`. `read_span`
    takes places of the source and returns all pieces of the items at these places.

    Args:
        source: A node whose items are iterable. Each yields any number of pieces.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._open: list[tuple[Token | None, int]] = []

    is_single = False
    held = "open"

    @property
    def positions(self) -> int | None:
        return self.source.positions

    def buffered_pairs(self) -> Iterator[tuple[Token | None, Any]]:
        while self._open:
            outer, given = self._open[0]
            (item,) = self.source.read_many([outer])
            yield from self._pieces(outer, item, given)
        for outer, item in self.source.pairs():
            yield from self._pieces(outer, item, 0)

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        for outer, item in self.source.pairs_at(positions, epoch):
            for number, piece in enumerate(item):
                yield (outer, number), piece

    def drop_held(self) -> None:
        self._open = []

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        parts = [pair_token(token, self._name, "(token of the item, number of the piece)") for token in tokens]
        outer = list(dict.fromkeys(part[0] for part in parts))
        items = dict(zip(outer, self.source.read_many(outer, epoch), strict=True))
        return read_grouped(parts, lambda token, numbers: _take(items[token], numbers, token))

    def save_held(self) -> State:
        return {"open": [[outer, given] for outer, given in self._open]}

    def load_held(self, state: Mapping[str, Any]) -> None:
        mine = self.own_part(state, field(state, self.held, self._name))
        self._open = [(normalize_graph_token(outer), given) for outer, given in mine]

    def _pieces(self, outer: Token | None, item: Any, given: int) -> Iterator[tuple[Token | None, Any]]:
        waiting = self._open[1:] if given or self._open else []
        for number, piece in enumerate(islice(item, given, None), given):
            self._open = [(outer, number + 1), *waiting]
            yield None if outer is None else (outer, number), piece
        self._open = waiting


def _take(item: Any, numbers: Sequence[Any], token: Token) -> list[Any]:
    pieces = list(item)
    for number in numbers:
        if not isinstance(number, int):
            raise UsageError(f"Flatten: expected the number of a piece in the token, found {number!r}")
        if not 0 <= number < len(pieces):
            raise IndexError(f"Flatten: there is no piece {number} in item {token!r}; it has {len(pieces)}")
    return [pieces[number] for number in numbers]
