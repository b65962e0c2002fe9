"""Several sources as one: in sequence, or all their items in one global order."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.iterators.node import IteratorNode, Positions, resolve_iterator_source, supports_graph_restore, walk
from ledgerbeam.iterators.ordered import OrderedNode
from ledgerbeam.iterators.rng import new_chance
from ledgerbeam.iterators.share import count_places
from ledgerbeam.iterators.stages.stages import StagedNode
from ledgerbeam.iterators.tokens import MISSING, Token, pair_token


class Chain(StagedNode):
    """One source after the other. The tokens are `(number of the source, token of the source)`.

    Each of S shards takes every S-th item of the whole chain, so many short sources are divided evenly. A chain among
    the sources is replaced by its sources.

    Args:
        *sources: Nodes, at least one.
        shuffle: Whether to use a new order of the sources in each epoch; the order of their items does not change.
        seed: Chooses the orders.

    Raises:
        UsageError: There is no source.
    """

    def __init__(self, *sources: Any, shuffle: bool = False, seed: int = 0) -> None:
        super().__init__()
        found: list[IteratorNode] = []
        for source in map(resolve_iterator_source, sources):
            found.extend(
                source.children if isinstance(source, Chain) and not source.parameters()["shuffle"] else [source]
            )
        if not found:
            raise UsageError("Chain: expected at least one source, found none")
        self.sources = tuple(found)
        self.shuffle = shuffle
        self.seed = seed
        self._view = 0, 1
        self._order: list[int] = []

    def __repr__(self) -> str:
        return f"Chain({len(self.sources)} sources)"

    def __len__(self) -> int:
        return sum(map(len, self.sources))  # type: ignore[arg-type]

    @property
    def is_positional(self) -> bool:  # type: ignore[override]
        return not self.shuffle and all(source.is_positional for source in self.sources)

    @property
    def positions(self) -> int | None:
        counts = [source.positions for source in self.sources]
        return None if self.shuffle or None in counts else sum(count for count in counts if count)

    @property
    def stages(self) -> int:
        return len(self.sources)

    def child_of(self, stage: int) -> IteratorNode:
        return self.sources[self.label_of(stage)]

    def label_of(self, stage: int) -> int:
        return self._order[stage] if self.shuffle else stage

    def epoch_of(self, stage: int) -> int:
        del stage  # one pass of the chain is one of each source
        return self._epoch

    def places_of(self, stage: int) -> int:
        if self._shard[1] == 1 and self._view == (0, 1):
            return 0  # nothing to divide, so no index has to be opened for its count
        return _count(self.child_of(stage))

    def divide_child(self, child: IteratorNode, before: int) -> None:
        first, step = self._view
        shard, shards = self._shard
        if step > 1:
            child.restrict((first - before) % step, step)
            before = count_places(before, first, step)
        child.divide((shard - before) % shards, shards)

    def restrict(self, first: int, step: int) -> None:
        self._view = first, step

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        if self.shuffle:
            self._order = list(range(len(self.sources)))
            new_chance(self.seed + epoch).shuffle(self._order)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        shape = "(number of the source, token of the source)"
        parts = [pair_token(token, self._name, shape) for token in tokens]
        when = self._when(epoch)
        return read_grouped(
            parts, lambda number, inner: child_at(self.sources, number, repr(self)).read_many(inner, when)
        )

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        when, (labels, inner) = self._when(epoch), self._locate(positions)
        pairs = list(zip(labels, inner, strict=True))
        found = read_grouped(pairs, lambda number, places: self.sources[number].tokens(np.array(places), when))
        return list(zip(labels, found, strict=True))

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return _read_places(self.sources, *self._locate(positions), self._when(epoch))

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when, pairs = self._when(epoch), zip(*self._locate(positions), strict=True)
        return in_runs(pairs, lambda number, places: self.sources[number].pairs_at(places, when))

    def parameters(self) -> dict[str, Any]:
        return {"shuffle": self.shuffle, "seed": self.seed}

    def _locate(self, positions: Positions) -> tuple[list[int], list[int]]:
        if self.positions is None:
            raise UnsupportedShapeError(f"{self!r}: its items have no places that are known before it is read")
        return _locate(self.sources, positions)


def _count(node: IteratorNode) -> int:
    """Return the number of places of a node, or of its items if it has no places; 0 if neither number exists."""
    if node.positions is not None:
        return node.positions
    try:
        return len(node)  # type: ignore[arg-type]
    except TypeError:
        return 0


class GlobalShuffle(OrderedNode):
    """All items of all sources in one random order, new in each epoch, without a buffer. The tokens are numbers.

    The number of an item is its place in the concatenation of the sources. The order is that of lhotse's
    `LazyIteratorChain` with `shuffle_iters` over the same indexed sources and seed.

    Args:
        *sources: Nodes with `positions` and constant time access: indexed leaves, or `Map`, `Filter`, `Slice` over
            them.
        seed: Chooses the orders.

    Raises:
        UnsupportedShapeError: A source cannot be read at any place.
    """

    def __init__(self, *sources: Any, seed: int = 0) -> None:
        super().__init__(shuffle=True, seed=seed)
        self.sources = tuple(map(resolve_iterator_source, sources))
        for source in self.sources:
            if source.positions is None or not source.is_single or not supports_graph_restore(source):
                raise UnsupportedShapeError(
                    f"GlobalShuffle: {source!r} cannot be read at any place; use Shuffle, which has a buffer"
                )
        self._count: int | None = None
        self._bytes: float | None = None

    def __repr__(self) -> str:
        return f"GlobalShuffle({len(self.sources)} sources)"

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(source.positions or 0 for source in self.sources)
        return self._count

    @property
    def is_indexed(self) -> bool:  # type: ignore[override]
        return all(source.is_indexed for source in self.sources)

    @property
    def record_bytes(self) -> float:
        if self._bytes is None:
            leaves = [node for source in self.sources for node in walk(source) if isinstance(node, OrderedNode)]
            self._bytes = max((leaf.record_bytes for leaf in leaves), default=0.0)
        return self._bytes

    has_constant_time_access = True

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        for source in self.sources:
            source.begin(epoch)

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards  # the sources are only read by place, so they are not divided

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        return _read_places(self.sources, *_locate(self.sources, numbers), self._when(epoch))

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        for token in tokens:
            if not isinstance(token, int):
                raise UsageError(f"{self!r}: expected the number of an item as token, found {token!r}")
            if not 0 <= token < len(self):
                raise IndexError(f"{self!r}: there is no item {token}; it has {len(self)}")
        items = self.read_numbers(np.array(tokens, np.int64), epoch)
        for token, item in zip(tokens, items, strict=True):
            if item is MISSING:
                raise IndexError(f"{self!r}: there is no item {token}: it is a blank line or a filter drops it")
        return items

    def parameters(self) -> dict[str, Any]:
        return {"seed": self.seed}


def child_at(sources: Sequence[IteratorNode], number: Any, owner: str) -> IteratorNode:
    """Return the source with the number in a token.

    Raises:
        IndexError: There is no such source.
        UsageError: It is not a number.
    """
    if not isinstance(number, int):
        raise UsageError(f"{owner}: expected the number of a source in the token, found {number!r}")
    if not 0 <= number < len(sources):
        raise IndexError(f"{owner}: there is no source {number}; it has {len(sources)}")
    return sources[number]


def read_grouped(pairs: Sequence[tuple[Any, Any]], read: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
    """Read the items of each group with one call.

    Args:
        pairs: For each item its group and its key in the group.
        read: Called once for each group, with the keys to read.

    Returns:
        The items, in the order of `pairs`.
    """
    places: dict[Any, list[int]] = {}
    for place, (group, _) in enumerate(pairs):
        places.setdefault(group, []).append(place)
    found: list[Any] = [None] * len(pairs)
    for group, members in places.items():
        for place, item in zip(members, read(group, [pairs[place][1] for place in members]), strict=True):
            found[place] = item
    return found


def in_runs(
    pairs: Iterable[tuple[int, int]], read: Callable[[int, Positions], Iterator[tuple[Token, Any]]]
) -> Iterator[tuple[Token, Any]]:
    """Read places of groups in order, with one call for consecutive places of the same group.

    Args:
        pairs: Groups, and places in them.
        read: Returns the tokens and items at places of a group.

    Yields:
        Tokens `(group, token)` and items.
    """
    for group, run in groupby(pairs, key=itemgetter(0)):
        for token, item in read(group, np.array([place for _, place in run], np.int64)):
            yield (group, token), item


def _locate(sources: Sequence[IteratorNode], positions: Positions) -> tuple[list[int], list[int]]:
    """Return for places in the concatenation of sources the numbers of the sources, and the places in them."""
    ends = list(accumulate(source.positions or 0 for source in sources))
    if len(positions) == 1:
        number = bisect_right(ends, int(positions[0]))
        return [number], [int(positions[0]) - (ends[number - 1] if number else 0)]
    bounds = np.array([0, *ends], np.int64)
    numbers = bounds.searchsorted(positions, "right") - 1
    return numbers.tolist(), (positions - bounds[numbers]).tolist()


def _read_places(
    sources: Sequence[IteratorNode], labels: Sequence[int], places: Sequence[int], epoch: int
) -> list[Any]:
    pairs = list(zip(labels, places, strict=True))
    return read_grouped(pairs, lambda number, inner: sources[number].read_at(np.array(inner, np.int64), epoch))
