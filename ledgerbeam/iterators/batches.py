"""Batches, limited by number and cost: of neighbouring items, or, with `Buckets`, of items of similar length."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any

from ledgerbeam.errors import CheckpointError, UsageError
from ledgerbeam.iterators.identity import describe_function
from ledgerbeam.iterators.node import State, field
from ledgerbeam.iterators.shuffle import BufferedNode, Pair
from ledgerbeam.iterators.tokens import Token, below, load_chance, new_chance, normalize_graph_token, save_chance


class BatchLimits:
    """The limits of a batch; see `Batches`. UsageError: no limit, a limit not above 0, or `max_cost` without `cost`."""

    def __init__(
        self,
        max_records: int | None,
        max_cost: float | None,
        cost: Callable[[Any], float] | None,
        *,
        padded: bool = False,
    ) -> None:
        given = [limit for limit in (max_records, max_cost) if limit is not None]
        if not given or min(given) <= 0 or (max_cost is not None and cost is None):
            raise UsageError(
                "expected max_records or max_cost above 0, and a cost function for max_cost; found "
                f"max_records={max_records}, max_cost={max_cost}{' and no cost function' if cost is None else ''}"
            )
        self.max_records = max_records
        self.max_cost = max_cost
        self.cost = cost
        self.padded = padded

    def fits(self, count: int, cost: float) -> bool:
        """Return whether a batch may have this number of items and this cost. One item may have any cost."""
        if self.max_records is not None and count > self.max_records:
            return False
        return self.max_cost is None or count == 1 or cost <= self.max_cost

    def add(self, count: int, cost: float, largest: float, item: Any) -> tuple[float, float]:
        """Return the cost and the largest item cost of a batch that ends with `item`; zeros without `max_cost`."""
        if self.cost is None or self.max_cost is None:
            return 0.0, 0.0
        own = self.cost(item)
        largest = max(largest, own)
        return (count * largest if self.padded else cost + own), largest

    def parameters(self) -> dict[str, Any]:
        cost = None if self.cost is None else describe_function(self.cost)
        return {"max_records": self.max_records, "max_cost": self.max_cost, "cost": cost, "padded": self.padded}


class BatchingNode(BufferedNode):
    """A node that groups items into batches: a batch is a list, and its token is the tuple of their tokens."""

    limits: BatchLimits
    drop_last: bool

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        batches = [normalize_graph_token(token) for token in tokens]
        for batch in batches:
            if not isinstance(batch, tuple):
                raise UsageError(f"{self._name}: expected a token that is a tuple of item tokens, found {batch!r}")
        items = iter(self.source.read_many(list(chain.from_iterable(batches)), epoch))
        return [[next(items) for _ in batch] for batch in batches]

    def as_batch(self, pairs: Sequence[Pair]) -> tuple[Token | None, list[Any]]:
        """Return the token of a batch, None if an item has no token, and the list of its items."""
        tokens = tuple([token for token, _ in pairs])
        return (None if None in tokens else tokens), [item for _, item in pairs]


class Batches(BatchingNode):
    """Groups neighbouring items into batches. A batch is a list; its token is the tuple of the tokens of its items.

    Args:
        source: The node to read.
        max_records: Largest number of items in a batch.
        max_cost: Largest cost of a batch; a single item may cost more.
        cost: Function that returns the cost of an item.
        padded: Whether the cost of a batch is its number of items times the largest cost of an item.
        drop_last: Whether to drop the last batch of each shard if it is not full.

    Raises:
        UsageError: There is no limit, a limit is not positive, or `max_cost` has no `cost`.
    """

    held = "held"

    def __init__(
        self,
        source: Any,
        max_records: int | None = None,
        *,
        max_cost: float | None = None,
        cost: Callable[[Any], float] | None = None,
        padded: bool = False,
        drop_last: bool = False,
    ) -> None:
        super().__init__(source)
        self.limits = BatchLimits(max_records, max_cost, cost, padded=padded)
        self.drop_last = drop_last
        self._held: deque[Pair] = deque()
        self._saved: list[Token] = []

    def buffered_pairs(self) -> Iterator[tuple[Token | None, Any]]:
        if self._saved:
            self._held, self._saved = deque(self.read_held(self._saved)), []
        most = self.limits.max_records
        if most is not None and self.limits.max_cost is None and not self._held:
            for tokens, items in self.source.lists(most):
                if len(items) == most or not self.drop_last:
                    yield (None if None in tokens else tuple(tokens)), items
            return
        source = self.source.pairs()
        while batch := self._next_batch(source):
            yield self.as_batch(batch)

    def drop_held(self) -> None:
        self._held, self._saved = deque(), []

    def save_held(self) -> State:
        return {"held": self._saved or self.held_tokens(self._held)}

    def load_held(self, state: Mapping[str, Any]) -> None:
        self._held, self._saved = deque(), self.own_part(state, field(state, self.held, self._name))

    def parameters(self) -> dict[str, Any]:
        return {**self.limits.parameters(), "drop_last": self.drop_last}

    def _next_batch(self, source: Iterator[Pair]) -> list[Pair]:
        limits, held = self.limits, self._held
        batch: list[Pair] = []
        cost = largest = 0.0
        while len(batch) != limits.max_records:
            pair = held.popleft() if held else next(source, None)
            if pair is None:
                return [] if self.drop_last else batch
            cost, largest = limits.add(len(batch) + 1, cost, largest, pair[1])
            if not limits.fits(len(batch) + 1, cost):
                held.appendleft(pair)
                break
            batch.append(pair)
        return batch


class Buckets(BatchingNode):
    """Makes random batches of items of similar length from a buffer. A batch is a list, with a token as in `Batches`.

    For each batch the buffer is filled. Then a bucket is drawn in proportion to its number of items, among the buckets
    that can fill a batch, or among all if none can. Random items of this bucket form the batch. The state has the
    tokens of the buffer. To continue, their items are read again with merged requests.

    Args:
        source: The node to read.
        length: Function that returns the length of an item, which is also its cost.
        boundaries: Increasing lengths that separate the buckets: `n` boundaries make `n + 1` buckets. An item as long
            as a boundary belongs to the lower bucket.
        max_records: Largest number of items in a batch.
        max_cost: Largest cost of a batch; a single item may cost more.
        padded: Whether the cost of a batch is its number of items times the largest cost of an item.
        buffer_size: Number of items in the buffer, in all buckets together.
        seed: Chooses the draws, together with the epoch: `seed + epoch`.
        drop_last: Whether to drop the items at the end that do not fill a batch.

    Raises:
        UsageError: There is no positive limit, boundaries do not increase, or the buffer is smaller than 1.
    """

    def __init__(
        self,
        source: Any,
        length: Callable[[Any], float],
        boundaries: Sequence[float],
        *,
        max_records: int | None = None,
        max_cost: float | None = None,
        padded: bool = True,
        buffer_size: int = 10_000,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(source)
        if sorted(set(boundaries)) != list(boundaries) or buffer_size < 1:
            raise UsageError(
                "Buckets: expected increasing boundaries and a buffer of at least 1 item, found "
                f"{list(boundaries)} and {buffer_size}"
            )
        self.length = length
        self.limits = BatchLimits(max_records, max_cost, length, padded=padded)
        self.boundaries = list(boundaries)
        self.buffer_size = buffer_size
        self.seed = seed
        self.drop_last = drop_last
        self._chance = new_chance(seed)
        self._buckets: list[list[Pair]] = []
        self._costs: list[float] = []
        self._saved: list[list[Token]] | None = None
        self._empty()

    def buffered_pairs(self) -> Iterator[tuple[Token | None, Any]]:
        if self._saved is not None:
            saved, self._saved = self._saved, None
            pairs = iter(self.read_held(list(chain.from_iterable(saved))))
            self._buckets = [list(islice(pairs, len(bucket))) for bucket in saved]
            self._costs = [float(sum(self.length(item) for _, item in bucket)) for bucket in self._buckets]
        source = self.source.pairs()
        while True:
            ended = not self._fill(source)
            able = [number for number, held in enumerate(self._buckets) if self._fills_a_batch(number, len(held))]
            if not able and ended and self.drop_last:
                self._empty()
                return
            able = able or [number for number, held in enumerate(self._buckets) if held]
            if not able:
                return
            yield self.as_batch(self._take(self._draw(able)))

    def drop_held(self) -> None:
        self._chance = new_chance(self.seed + self._epoch)
        self._empty()

    def save_held(self) -> State:
        held = [self.held_tokens(bucket) for bucket in self._buckets] if self._saved is None else self._saved
        return {"buckets": held, "chance": save_chance(self._chance)}

    def load_held(self, state: Mapping[str, Any]) -> None:
        held = field(state, "buckets", self._name)
        if len(held) != len(self.boundaries) + 1:
            raise CheckpointError(f"{self!r}: the state has {len(held)} buckets; load a state of this graph")
        self._empty()
        self._saved = [self.own_part(state, bucket) for bucket in held]
        self._chance = load_chance(field(state, "chance", self._name), self._name)

    def merge_held(self, states: Sequence[Mapping[str, Any]]) -> State:
        parts = [field(state, "buckets", self._name) for state in states]
        held = [list(chain.from_iterable(bucket)) for bucket in zip(*parts, strict=True)]
        return {"buckets": held, "of_all_shards": True, "chance": field(states[0], "chance", self._name)}

    def parameters(self) -> dict[str, Any]:
        own = {"boundaries": self.boundaries, "buffer_size": self.buffer_size, "seed": self.seed}
        return {**self.limits.parameters(), **own, "drop_last": self.drop_last}

    def _empty(self) -> None:
        self._buckets = [[] for _ in range(len(self.boundaries) + 1)]
        self._costs = [0.0] * len(self._buckets)
        self._saved = None

    def _fill(self, source: Iterator[Pair]) -> bool:
        """Fill the buffer; return whether the source may have more."""
        length, boundaries, buckets, costs = self.length, self.boundaries, self._buckets, self._costs
        for _ in range(self.buffer_size - sum(map(len, buckets))):
            pair = next(source, None)
            if pair is None:
                return False
            cost = length(pair[1])
            number = bisect_left(boundaries, cost)
            buckets[number].append(pair)
            costs[number] += cost
        return True

    def _fills_a_batch(self, number: int, count: int) -> bool:
        limits = self.limits
        if limits.max_records is not None and count >= limits.max_records:
            return True
        return limits.max_cost is not None and self._costs[number] >= limits.max_cost

    def _draw(self, numbers: Sequence[int]) -> int:
        bounds = list(accumulate(len(self._buckets[number]) for number in numbers))
        place = below(self._chance, bounds[-1])
        return next(number for number, bound in zip(numbers, bounds, strict=True) if place < bound)

    def _take(self, number: int) -> list[Pair]:
        """Remove a batch from a bucket and return it."""
        bucket, limits = self._buckets[number], self.limits
        batch: list[Pair] = []
        cost = largest = 0.0
        while bucket and len(batch) != limits.max_records:
            place = below(self._chance, len(bucket))
            bucket[place], bucket[-1] = bucket[-1], bucket[place]
            cost, largest = limits.add(len(batch) + 1, cost, largest, bucket[-1][1])
            if not limits.fits(len(batch) + 1, cost):
                break
            batch.append(bucket.pop())
            self._costs[number] -= self.length(batch[-1][1])
        return batch
