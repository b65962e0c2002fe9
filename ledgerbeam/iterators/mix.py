"""Several sources in one pass: items drawn by weight, and items mixed into other items, such as noise into speech."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from ledgerbeam.errors import CheckpointError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators.chain import LabelledNode, largest_record, require_places
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
from ledgerbeam.iterators.ordered import OrderedNode
from ledgerbeam.iterators.tokens import MISSING, Token, below, item_chance, load_chance, new_chance, save_chance

if TYPE_CHECKING:
    import random


_TRIES = 100
_STATE_EVERY = 1_024  # places between known states of draws, which a restore may have to repeat
_MOST_DRAWN = 1 << 17  # most places whose draws are in memory
Weights: TypeAlias = Sequence[float] | Sequence[tuple[int, Sequence[float]]]  # or, from a number of tokens on, weights


class Mux(LabelledNode):
    """Draws the source of each item by weight. The tokens are `(number of the source, token of the source)`.

    A source that has ended is no longer drawn; the pass ends when all sources have ended. All shards draw the sources
    in the same order, and each shard reads its part of each source. The draws are those of lhotse's
    `LazyIteratorMultiplexer` with the same seed; each epoch has its own draws.

    With `weights_in="tokens"`, nothing is random: each item is of the source that has the fewest tokens so far for its
    weight. The items of a pass have one order, and each of S shards reads every S-th of them. So the tokens of any part
    of a pass have the ratio of the weights, up to one item. Items need known sizes, as those of `Packed`.

    Args:
        *sources: Nodes, at least one.
        weights: Relative frequency of each source; positive. Default: all equal. With weights in tokens also a
            schedule, `[(0, [3, 1]), (10**9, [1, 1])]`: weights from a number of tokens of a pass on, which may be 0.
        temperature: Weights are raised to the power `1 / temperature`: above 1 they become more equal, below 1 less.
        seed: Chooses the draws, together with the epoch: `seed + epoch`. Only for weights in items.
        stop_early: Whether to end the pass when the first source ends. Only for weights in items.
        weights_in: Whether weights are ratios of `"items"` or of `"tokens"`.

    Raises:
        UnsupportedShapeError: With weights in tokens, an item of a source cannot be read at an arbitrary place.
        UsageError: There is no source, the weights do not fit them, or a weight or the temperature is not positive.
    """

    pair_shape = "(number of the source, token of the source)"

    def __new__(cls, *_: Any, weights_in: Literal["items", "tokens"] = "items", **__: Any) -> Self:
        if weights_in not in ("items", "tokens"):
            raise UsageError(f'Mux: expected weights_in to be "items" or "tokens", found {weights_in!r}')
        return super().__new__(_TokenMux if weights_in == "tokens" else cls)  # type: ignore[return-value]

    def __init__(
        self,
        *sources: Any,
        weights: Weights | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        stop_early: bool = False,
        weights_in: Literal["items", "tokens"] = "items",
    ) -> None:
        del weights_in  # it has chosen the class
        self.sources = tuple(map(resolve_iterator_source, sources))
        given: Any = [1.0] * len(self.sources) if weights is None else list(weights)
        self.weights = self._scaled(given, temperature)
        self.seed = seed
        self.stop_early = stop_early
        self._chance = new_chance(seed)
        self._ended = [False] * len(self.sources)
        self._planned: tuple[int, list[Positions]] | None = None

    def _scaled(self, weights: Any, temperature: float, *, may_be_zero: bool = False) -> list[float]:
        """Return weights as frequencies. UsageError: they do not fit the sources."""
        fit = len(weights) == len(self.sources) > 0 and all(isinstance(weight, Real) for weight in weights)
        if not fit or min(weights) < 0 or not (max if may_be_zero else min)(weights) > 0 or temperature <= 0:
            raise UsageError(
                "Mux: expected at least one source, a positive weight for each, and a positive temperature; found "
                f"sources: {len(self.sources)}, weights: {weights}, temperature: {temperature}"
            )
        return [weight if temperature == 1 else weight ** (1 / temperature) for weight in weights]

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


class _TokenMux(OrderedNode, Mux):
    """`Mux` with weights in tokens. The places of a pass are drawn from a state of some numbers, without reading."""

    def __init__(self, *sources: Any, weights: Weights | None = None, temperature: float = 1.0, **others: Any) -> None:
        if others.get("seed") or others.get("stop_early"):
            raise UsageError("Mux: seed and stop_early are for weights in items; leave them out")
        OrderedNode.__init__(self, shuffle=False, seed=0)
        Mux.__init__(self, *sources, temperature=temperature, **others)
        phases: Any = [(0, self.weights if weights is None else weights)]
        if weights is not None and any(isinstance(phase, Sequence) for phase in weights):
            phases = weights
        if not all(map(_is_phase, phases)):
            raise UsageError(f"Mux: expected a weight for each source, or pairs of tokens and weights, found {weights}")
        starts = [start for start, _ in phases]
        if starts[0] != 0 or sorted({*starts}) != starts:
            raise UsageError(f"Mux: expected a schedule that starts at 0 tokens and ascends, found starts {starts}")
        may_be_zero = len(phases) > 1
        self.phases = [(start, self._scaled(one, temperature, may_be_zero=may_be_zero)) for start, one in phases]
        require_places(self.sources, "Mux", "use weights in items")
        self._drawn = _Drawn(self, 0)

    def __len__(self) -> int:
        return sum(source.positions or 0 for source in self.sources)

    @property
    def record_bytes(self) -> float:
        return largest_record(self.sources)

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards  # the sources are only read by place, so they are not divided

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._drawn = _Drawn(self, epoch)

    def locate(self, positions: Positions, epoch: int) -> list[tuple[int, int]]:
        drawn = self._drawn if epoch == self._epoch else _Drawn(self, epoch)
        return drawn.at(positions.tolist())

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        return LabelledNode.read_at(self, numbers, epoch)

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        return LabelledNode.tokens(self, numbers, epoch)

    def save(self) -> State:
        share = self._share
        shard, shards = self._shard
        left = share.ranks_to_positions(shard + shards * self._done, shards, len(share) - self._done)
        return {**super().save(), "drawn": self._drawn.before(min((part.start for part in left), default=len(self)))}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        drawn = field(state, "drawn", self._name)
        if len(drawn[-1]) != len(self.sources):
            raise CheckpointError(f"{self!r}: the state has another number of sources; load a state of this graph")
        self._drawn = _Drawn(self, self._epoch, drawn)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        drawn = min((field(state, "drawn", self._name) for state in states), key=lambda one: one[0])
        return {**super().merge(states), "drawn": drawn}

    def parameters(self) -> dict[str, Any]:
        return {"phases": [[start, weights] for start, weights in self.phases]}


def _is_phase(phase: Any) -> bool:
    if not isinstance(phase, Sequence) or len(phase) != 2:
        return False
    return isinstance(phase[0], int) and isinstance(phase[1], (Sequence, np.ndarray))


class _Drawn:
    """The sources of the places of a pass, drawn in order from a state: `[place, tokens, phase, ranks, costs]`.

    `tokens` is the number of tokens before the place, and `ranks` the number of items of each source. `costs` has for
    each source the tokens since the start of the phase, divided by its weight.
    """

    def __init__(self, mux: _TokenMux, epoch: int, state: list[Any] | None = None) -> None:
        self._mux = mux
        self._epoch = epoch
        self._counts = [source.positions or 0 for source in mux.sources]
        self._start: list[Any] = [0, 0, 0, [0] * len(mux.sources), [0.0] * len(mux.sources)]
        self._states = [state or self._start]
        self._sizes: list[tuple[int, list[int]]] = [(0, []) for _ in mux.sources]
        self._first, self._found = 0, list[tuple[int, int]]()  # the first drawn place in memory, and the draws from it
        self._go_to(self._states[0])

    def at(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """Return the source, and the place in it, of places of the pass."""
        lowest, highest = min(places, default=0), max(places, default=-1)
        if lowest < self._first:
            self._go_to(self.before(lowest))
        while self._place <= highest:
            if self._place % _STATE_EVERY == 0 and self._place > self._states[-1][0]:
                self._states.append([self._place, self._tokens, self._phase, [*self._ranks], [*self._costs]])
            self._found.append(self._draw())
            self._place += 1
        found = [self._found[place - self._first] for place in places]
        if len(self._found) > _MOST_DRAWN:  # shards that are behind others have lower places
            forgotten = len(self._found) - _MOST_DRAWN // 2
            self._found, self._first = self._found[forgotten:], self._first + forgotten
        return found

    def before(self, place: int) -> list[Any]:
        """Return the last known state at or before a place. Earlier ones are forgotten."""
        known = sum(state[0] <= place for state in self._states)
        if not known:  # before the state of a checkpoint: only for reads at any place
            return self._start
        self._states = self._states[known - 1 :]
        return self._states[0]

    def _go_to(self, state: list[Any]) -> None:
        self._place, self._tokens, self._phase, ranks, costs = state
        self._ranks, self._costs = [*ranks], [*costs]
        self._first, self._found = self._place, []

    def _draw(self) -> tuple[int, int]:
        phases, costs, ranks = self._mux.phases, self._costs, self._ranks
        while self._phase + 1 < len(phases) and self._tokens >= phases[self._phase + 1][0]:
            self._phase += 1
            costs[:] = [0.0] * len(costs)
        weights = phases[self._phase][1]
        left = [number for number, count in enumerate(self._counts) if ranks[number] < count]
        number = min([one for one in left if weights[one]] or left, key=costs.__getitem__)
        rank = ranks[number]
        size = self._size(number, rank)
        self._tokens += size
        costs[number] += size / (weights[number] or 1)
        ranks[number] += 1
        return number, rank

    def _size(self, number: int, rank: int) -> int:
        first, sizes = self._sizes[number]
        if not first <= rank < first + len(sizes):
            source = self._mux.sources[number]
            stop = min(self._counts[number], rank + max(16, min(_STATE_EVERY, 2 * len(sizes))))
            first, sizes = rank, source.sizes(np.arange(rank, stop), self._epoch).tolist()
            self._sizes[number] = first, sizes
        return sizes[rank - first]


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
