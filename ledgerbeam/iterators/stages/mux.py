"""Mix several sources: the source of each item is drawn by weight."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ledgerbeam.errors import CheckpointError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators.node import DerivedNode, Positions, State, field, resolve_iterator_source
from ledgerbeam.iterators.rng import load_chance, new_chance, save_chance
from ledgerbeam.iterators.stages.chain import child_at, read_grouped
from ledgerbeam.iterators.tokens import MISSING, Token, pair_token

if TYPE_CHECKING:
    import random


class Mux(DerivedNode):
    """Draws the source of each item by weight. The tokens are `(number of the source, token of the source)`.

    A source that has ended is no longer drawn; the pass ends when all sources have ended. All shards draw the same
    sources, each from its part of them. The draws are those of lhotse's `LazyIteratorMultiplexer` with the same seed;
    each epoch has its own draws.

    Args:
        *sources: Nodes, at least one.
        weights: Relative frequency of each source; positive. Default: all equal.
        temperature: Weights are raised to the power `1 / temperature`: above 1 they become more equal, below 1 less.
        seed: Chooses the draws, together with the epoch: `seed + epoch`.
        stop_early: Whether to end the pass when the first source ends.

    Raises:
        UsageError: There is no source, the number of weights is different, or a weight is not positive.
    """

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
                f"Mux: expected a positive weight for each of at least one source and a positive temperature, found "
                f"{len(self.sources)} sources, weights {weights} and temperature {temperature}"
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
        """Number of places of all sources, if each has a fixed order."""
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

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        parts = [pair_token(token, self._name, "(number of the source, token of the source)") for token in tokens]
        owner, when = repr(self), self._when(epoch)
        return read_grouped(parts, lambda number, inner: child_at(self.sources, number, owner).read_many(inner, when))

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        when, pairs = self._when(epoch), self._locate(positions, epoch)
        found = read_grouped(pairs, lambda number, places: self.sources[number].tokens(np.array(places), when))
        return [(number, token) for (number, _), token in zip(pairs, found, strict=True)]

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        when, pairs = self._when(epoch), self._locate(positions, epoch)
        found = read_grouped(pairs, lambda number, places: self.sources[number].read_at(np.array(places), when))
        for (number, place), item in zip(pairs, found, strict=True):
            if item is MISSING:  # a pass would use the next item of the source instead
                raise UnsupportedShapeError(
                    f"{self!r}: place {place} of {self.sources[number]!r} has no item, which shifts all later items, "
                    "so spans of this pass cannot be read separately; remove blank lines from the source"
                )
        return found

    def save(self) -> State:
        sources = [source.save() for source in self.sources]
        return {"chance": save_chance(self._chance), "ended": list(self._ended), "sources": sources}

    def load(self, state: Mapping[str, Any]) -> None:
        self._chance = load_chance(field(state, "chance", self._name), self._name)
        ended, sources = field(state, "ended", self._name), field(state, "sources", self._name)
        if not len(ended) == len(sources) == len(self.sources):
            raise CheckpointError(f"{self!r}: the state is of {len(sources)} sources; load one of this graph")
        self._ended = list(ended)
        for source, saved in zip(self.sources, sources, strict=True):
            source.load(saved)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        if self.stop_early:
            raise UnsupportedShapeError(
                f"{self!r}: with stop_early each shard ends separately, so the rest cannot be divided again; "
                "continue with the same number of shards, or use Repeat below it"
            )
        parts = [field(state, "sources", self._name) for state in states]
        merged = [source.merge([part[number] for part in parts]) for number, source in enumerate(self.sources)]
        return {"chance": field(states[0], "chance", self._name), "ended": [False] * len(merged), "sources": merged}

    def parameters(self) -> dict[str, Any]:
        return {"weights": self.weights, "seed": self.seed, "stop_early": self.stop_early}

    def _locate(self, positions: Positions, epoch: int | None) -> list[tuple[int, int]]:
        """Return for places of a pass the source and the place in it."""
        if self.positions is None:
            raise UnsupportedShapeError(f"{self!r}: its items have no places that are known before it is read")
        when = self._when(epoch)
        if self._planned is None or self._planned[0] != when:
            self._planned = when, self._plan(when)
        found: dict[int, tuple[int, int]] = {}
        for number, taken in enumerate(self._planned[1]):
            ranks = np.minimum(taken.searchsorted(positions), max(0, len(taken) - 1))
            mine = np.flatnonzero(taken[ranks] == positions) if len(taken) else ranks[:0]
            found.update(
                (place, (number, rank)) for place, rank in zip(mine.tolist(), ranks[mine].tolist(), strict=True)
            )
        return [found[place] for place in range(len(positions))]

    def _plan(self, epoch: int) -> list[Positions]:
        """Draw a whole pass without reading; return for each source its places in the pass, increasing."""
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
        """Draw sources by weight from those that have not ended, without end."""
        active = [number for number, has_ended in enumerate(ended) if not has_ended]
        bounds = list(accumulate(self.weights[number] for number in active))
        total, last, draw = bounds[-1], len(active) - 1, chance.random
        while True:
            yield active[bisect_right(bounds, draw() * total, 0, last)]
