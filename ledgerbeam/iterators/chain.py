"""Passes in sequence: over several sources, over one source several times, and over all items in a random order."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.iterators.identity import require_shard
from ledgerbeam.iterators.node import (
    DerivedNode,
    IteratorNode,
    Positions,
    State,
    field,
    resolve_iterator_source,
    supports_graph_restore,
    walk,
)
from ledgerbeam.iterators.ordered import OrderedNode, count_places
from ledgerbeam.iterators.tokens import MISSING, Token, new_chance, pair_token


class LabelledNode(DerivedNode):
    """A node whose tokens are `(label, token of a child)`. A label selects a child, and a pass of that child."""

    pair_shape: str  # shape of a token, for error messages

    def child_at(self, label: Any, epoch: int) -> tuple[IteratorNode, int]:
        """Return the child of a label, and its epoch in an epoch of this node. Raises IndexError or UsageError.

        Default: a label is the number of a child, whose epoch is the same.
        """
        if not isinstance(label, int):
            raise UsageError(f"{self!r}: expected the number of a source in the token, found {label!r}")
        if not 0 <= label < len(self.children):
            raise IndexError(f"{self!r}: there is no source {label}; the number of sources is {len(self.children)}")
        return self.children[label], epoch

    @abstractmethod
    def locate(self, positions: Positions, epoch: int) -> list[tuple[int, int]]:
        """Return, for each place of a pass with known places, the label and the place in the child."""

    def _labelled_places(self, positions: Positions, epoch: int | None) -> list[tuple[int, int]]:
        if self.positions is None:
            raise UnsupportedShapeError(f"{self!r}: its items have no known places; iterate over it instead")
        return self.locate(positions, self._when(epoch))

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        parts = [pair_token(token, self._name, self.pair_shape) for token in tokens]
        return self._read(parts, epoch, lambda child, inner, when: child.read_many(inner, when))

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        pairs = self._labelled_places(positions, epoch)
        found = self._read(pairs, epoch, lambda child, places, when: child.tokens(np.array(places, np.int64), when))
        return [(label, token) for (label, _), token in zip(pairs, found, strict=True)]

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        pairs = self._labelled_places(positions, epoch)
        return self._read(pairs, epoch, lambda child, places, when: child.read_at(np.array(places, np.int64), when))

    def sizes(self, positions: Positions, epoch: int | None = None) -> Positions:
        pairs = self._labelled_places(positions, epoch)
        found = self._read(pairs, epoch, lambda child, places, when: child.sizes(np.array(places, np.int64), when))
        return np.array(found, np.int64)

    def _read(self, pairs: Sequence[tuple[Any, Any]], epoch: int | None, read: Callable[..., Any]) -> list[Any]:
        """Read the items of `(label, key)` pairs, in the order of the pairs. `read` is called once for each label."""

        def read_group(label: Any, keys: list[Any]) -> Sequence[Any]:
            child, when = self.child_at(label, self._when(epoch))
            return read(child, keys, when)

        return read_grouped(pairs, read_group)


class StagedNode(LabelledNode):
    """A pass in stages; each stage is a pass of one child. The tokens are `(label of the stage, token of the child)`.

    The state is the current stage and the state of its child, so it does not grow with the number of stages. After a
    change of the number of shards, it also has the remaining part of each later stage that an old shard had started.
    """

    def __init__(self) -> None:
        self._stage = 0
        self._before = 0
        self._entered = False
        self._left: dict[int, tuple[int, Any]] = {}

    @property
    @abstractmethod
    def stages(self) -> int | None:
        """Number of stages; None if there is no end."""

    def label_of(self, stage: int) -> int:
        """Return the label of a stage, the first part of its tokens."""
        return stage

    def child_of(self, stage: int) -> IteratorNode:
        return self.child_at(self.label_of(stage), self._epoch)[0]

    def places_of(self, stage: int) -> int:
        """Return the number of places of a stage, for `divide_child`."""
        return 0

    def divide_child(self, child: IteratorNode, before: int) -> None:
        """Divide the child of a stage among the shards. `before` is the number of places before the stage."""
        child.divide(*self._shard)

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        while not self._is_finished:
            whole, empty = not self._entered and self._stage not in self._left, True
            self._enter()
            label = self.label_of(self._stage)
            for token, item in self.child_of(self._stage).pairs():
                yield None if token is None else (label, token), item
                empty = False
            if whole and empty and self.stages is None:
                return  # later passes would be empty too
            self._before += self.places_of(self._stage)
            self._stage += 1
            self._entered = False

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when = self._when(epoch)
        for label, run in groupby(self._labelled_places(positions, epoch), key=itemgetter(0)):
            child, child_epoch = self.child_at(label, when)
            for token, item in child.pairs_at(np.array([place for _, place in run], np.int64), child_epoch):
                yield (label, token), item

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._stage, self._before, self._entered, self._left = 0, 0, False, {}

    def finish(self) -> None:
        self._stage, self._entered = self.stages or 0, False

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards

    def save(self) -> State:
        state: State = {}
        if not self._is_finished:
            self._enter()
            state["source"] = self.child_of(self._stage).save()
        if self._left:
            state["left"] = [[stage, before, left] for stage, (before, left) in sorted(self._left.items())]
        return {"stage": self._stage, "before": self._before, "shard": list(self._shard), **state}

    def load(self, state: Mapping[str, Any]) -> None:
        require_shard(field(state, "shard", self._name), self._shard)
        self._stage = field(state, "stage", self._name)
        self._before = field(state, "before", self._name)
        self._left = {stage: (before, left) for stage, before, left in state.get("left", ())}
        self._entered = False
        if not self._is_finished and self._stage not in self._left:
            source = field(state, "source", self._name)
            self._begin_stage()
            self.child_of(self._stage).load(source)
            self._entered = True

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        reached = [field(state, "stage", self._name) for state in states]
        first = min(reached)
        before: int = states[reached.index(first)]["before"]
        last = max([*reached, *(left[0] for state in states for left in state.get("left", ()))])
        last = last if self.stages is None else min(last, self.stages - 1)
        merged: State = {"stage": first, "before": before, "shard": None, "left": []}
        # A state records how a stage was divided while the shard is in the stage or has a rest of it, but not later.
        known = {stage: count for state in states for stage, count, _ in state.get("left", ())}
        known.update({state["stage"]: state["before"] for state in states})
        for stage in range(first, last + 1):
            before = known.get(stage, before)
            child = self.child_of(stage)
            parts = [self._state_of(stage, before, state) for state in states]
            merged["left"].append([stage, before, child.merge(parts)])
            before += self.places_of(stage)
        return merged

    def _state_of(self, stage: int, before: int, state: Mapping[str, Any]) -> State:
        """Return the state of the child of `stage` in the shard whose state of this node is `state`.

        If this shard has not reached the stage, the child is at its start; if the shard has finished it, at its end.
        `before` is the number of places before the stage.
        """
        shard, shards = state["shard"]
        self._shard = shard, shards
        self.load(state)
        child, reached = self.child_of(stage), self._stage
        if reached != stage:
            self._stage, self._before, self._entered = stage, before, False
        self._enter()
        if reached > stage:
            child.finish()
        return child.save()

    @property
    def _is_finished(self) -> bool:
        return self.stages is not None and self._stage >= self.stages

    def _enter(self) -> None:
        """Prepare the child of the current stage: from the start of its pass, or with the items that are left of it."""
        if self._entered:
            return
        left = self._left.pop(self._stage, None)
        if left is not None:
            self._before = left[0]
        self._begin_stage()
        if left is not None:
            self.child_of(self._stage).load(left[1])
        self._entered = True

    def _begin_stage(self) -> None:
        child, epoch = self.child_at(self.label_of(self._stage), self._epoch)
        self.divide_child(child, self._before)
        child.begin(epoch)


class Chain(StagedNode):
    """One source after the other. The tokens are `(number of the source, token of the source)`.

    Each of S shards takes every S-th item of the whole chain, so many short sources are divided evenly. A source that
    is itself a `Chain` without `shuffle` is replaced by its sources.

    Args:
        *sources: Nodes, at least one.
        shuffle: Whether to use a new order of the sources in each epoch; the order of their items does not change.
        seed: Chooses the orders.

    Raises:
        UsageError: There is no source.
    """

    pair_shape = "(number of the source, token of the source)"

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

    def label_of(self, stage: int) -> int:
        return self._order[stage] if self.shuffle else stage

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

    def parameters(self) -> dict[str, Any]:
        return {"shuffle": self.shuffle, "seed": self.seed}

    def locate(self, positions: Positions, epoch: int) -> list[tuple[int, int]]:
        del epoch  # the order of the sources is the same in each epoch
        return _locate(self.sources, positions)


class Repeat(StagedNode):
    """Repeats a source several times or without end. The tokens are `(number of the repetition, token of the source)`.

    Each repetition is an epoch of the source, so nodes below that shuffle use a new order.

    Args:
        source: The node to read.
        times: Number of repetitions, at least 1. Default: without end.

    Raises:
        UsageError: `times` is below 1.
    """

    pair_shape = "(number of the repetition, token of the source)"

    def __init__(self, source: Any, times: int | None = None) -> None:
        super().__init__()
        if times is not None and times < 1:
            raise UsageError(f"Repeat: expected times >= 1 or None, found {times}")
        self.source = resolve_iterator_source(source)
        self.times = times

    def __repr__(self) -> str:
        return f"Repeat({self.source!r}, times={self.times})"

    def __len__(self) -> int:
        if self.times is None:
            raise TypeError("a Repeat without end has no length")
        return self.times * len(self.source)  # type: ignore[arg-type]

    @property
    def positions(self) -> int | None:
        places = self.source.positions
        return None if places is None or self.times is None else places * self.times

    @property
    def stages(self) -> int | None:
        return self.times

    def child_at(self, label: Any, epoch: int) -> tuple[IteratorNode, int]:
        if not isinstance(label, int):
            raise UsageError(f"Repeat: expected the number of a repetition in the token, found {label!r}")
        if label < 0 or (self.times is not None and label >= self.times):
            raise IndexError(f"{self!r}: there is no repetition {label}")
        return self.source, epoch * (self.times or 1) + label

    def parameters(self) -> dict[str, Any]:
        return {"times": self.times}

    def locate(self, positions: Positions, epoch: int) -> list[tuple[int, int]]:
        del epoch  # the places of a repetition are the same in each epoch
        times, inner = np.divmod(positions, max(1, self.source.positions or 0))
        return list(zip(times.tolist(), inner.tolist(), strict=True))


class GlobalShuffle(OrderedNode):
    """All items of all sources in one random order, new in each epoch, without a buffer. The tokens are numbers.

    The number of an item is its place in the concatenation of the sources. lhotse's `LazyIteratorChain` with
    `shuffle_iters` has the same order for the same indexed sources and seed.

    Args:
        *sources: Nodes with `positions` and constant time access: those that read through an index, or `Map`,
            `Filter`, `Slice` over them.
        seed: Chooses the orders.

    Raises:
        UnsupportedShapeError: A source cannot be read at an arbitrary place.
    """

    def __init__(self, *sources: Any, seed: int = 0) -> None:
        super().__init__(shuffle=True, seed=seed)
        self.sources = tuple(map(resolve_iterator_source, sources))
        require_places(self.sources, "GlobalShuffle", "use Shuffle, which has a buffer")
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
            self._bytes = largest_record(self.sources)
        return self._bytes

    has_constant_time_access = True

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards  # the sources are only read by place, so they are not divided

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        pairs, when = _locate(self.sources, numbers), self._when(epoch)
        return read_grouped(pairs, lambda number, places: self.sources[number].read_at(np.array(places), when))

    def sizes(self, positions: Positions, epoch: int | None = None) -> Positions:
        pairs, when = _locate(self.sources, self.order(positions, epoch)), self._when(epoch)
        found = read_grouped(pairs, lambda number, places: self.sources[number].sizes(np.array(places), when).tolist())
        return np.array(found, np.int64)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        for token in tokens:
            if not isinstance(token, int):
                raise UsageError(f"{self!r}: expected a token that is the number of an item, found {token!r}")
            if not 0 <= token < len(self):
                raise IndexError(f"{self!r}: there is no item {token}; the number of items is {len(self)}")
        items = self.read_numbers(np.array(tokens, np.int64), epoch)
        for token, item in zip(tokens, items, strict=True):
            if item is MISSING:
                raise IndexError(f"{self!r}: there is no item {token}: its line is blank, or a filter drops it")
        return items

    def parameters(self) -> dict[str, Any]:
        return {"seed": self.seed}


def require_places(sources: Sequence[IteratorNode], owner: str, remedy: str) -> None:
    """Raise UnsupportedShapeError if an item of a source cannot be read at an arbitrary place."""
    for source in sources:
        if source.positions is None or not source.is_single or not supports_graph_restore(source):
            raise UnsupportedShapeError(f"{owner}: {source!r} cannot be read at an arbitrary place; {remedy}")


def largest_record(sources: Sequence[IteratorNode]) -> float:
    """Return the largest mean size of the items of a leaf below nodes, in bytes."""
    leaves = (node for source in sources for node in walk(source) if isinstance(node, OrderedNode))
    return max((leaf.record_bytes for leaf in leaves if not leaf.children), default=0.0)


def _count(node: IteratorNode) -> int:
    """Return the number of places of a node, or of its items if it has no places; 0 if neither number exists."""
    if node.positions is not None:
        return node.positions
    try:
        return len(node)  # type: ignore[arg-type]
    except TypeError:
        return 0


def read_grouped(pairs: Sequence[tuple[Any, Any]], read: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
    """Read the items of `(group, key)` pairs, in the order of the pairs. Call `read` once per group, with its keys."""
    places: dict[Any, list[int]] = {}
    for place, (group, _) in enumerate(pairs):
        places.setdefault(group, []).append(place)
    found: list[Any] = [None] * len(pairs)
    for group, members in places.items():
        for place, item in zip(members, read(group, [pairs[place][1] for place in members]), strict=True):
            found[place] = item
    return found


def _locate(sources: Sequence[IteratorNode], positions: Positions) -> list[tuple[int, int]]:
    """Return, for each place in the concatenation of sources, the number of the source and the place in it."""
    ends = list(accumulate(source.positions or 0 for source in sources))
    if len(positions) == 1:
        number = bisect_right(ends, int(positions[0]))
        return [(number, int(positions[0]) - (ends[number - 1] if number else 0))]
    bounds = np.array([0, *ends], np.int64)
    numbers = bounds.searchsorted(positions, "right") - 1
    return list(zip(numbers.tolist(), (positions - bounds[numbers]).tolist(), strict=True))
