"""Nodes whose order of places is determined before any read, and the places of a pass that a shard reads.

Each of S shards reads every S-th of the remaining places. The remaining places are a list of arithmetic progressions:
at first one, the whole pass. When a training continues with another number of shards, the places that the old shards
have not read are again a short list of progressions, and the new shards divide them.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import is_
from typing import Any, Literal, NamedTuple, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import CheckpointError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators import identity as identities
from ledgerbeam.iterators.identity import require_shard
from ledgerbeam.iterators.node import IteratorNode, Positions, State, field
from ledgerbeam.iterators.permutation import BlockPermutation, Permutation, PermutedRange
from ledgerbeam.iterators.tokens import MISSING, Token

ShuffleBy: TypeAlias = bool | Literal["blocks"]  # whether a pass is shuffled, and whether over all places or by blocks
WINDOW = 16  # default number of blocks in use in a shuffle by blocks: a multiple of common numbers of shards
LARGEST_BLOCK = 2048  # largest number of items that one read of a pass requests
_ORDER_AHEAD = 15  # reads whose order is computed at once: of equal size, or four that double (1 + 2 + 4 + 8)
_BLOCK_BYTES = 4 * 1024 * 1024


class OrderedNode(IteratorNode):
    """A pass over `positions` places, in order or shuffled differently in each epoch, read many at a time.

    Each of S shards takes every S-th place. The state is the number of finished places, without items. The first read
    takes one item, so that it arrives early. Later reads take up to 2,048 items or 4 MiB; some readers divide them.

    Args:
        shuffle: Whether to use the order of a `Permutation`; `"blocks"` is the order of a `BlockPermutation`.
        seed: Chooses the order, together with the epoch: `seed + epoch`.
        window: Number of blocks in use at once in a shuffle by blocks.

    Raises:
        UsageError: `shuffle` is not True, False or `"blocks"`, or the window is less than 1.
    """

    is_checkpointable = True
    is_positional = True

    def __init__(self, *, shuffle: ShuffleBy, seed: int, window: int = WINDOW) -> None:
        if shuffle not in (True, False, "blocks"):
            raise UsageError(f'{self._name}: expected shuffle to be True, False or "blocks", found {shuffle!r}')
        if window < 1:
            raise UsageError(f"{self._name}: expected a window of at least 1 block, found {window}")
        self.shuffle = shuffle
        self.window = window
        self.seed = seed
        self._done = 0
        self._todo: list[Progression] | None = None
        self._view = 0, 1
        self._permuted: PermutedRange | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of places of all shards together. Blank lines count."""

    @property
    def positions(self) -> int:
        return len(self)

    @property
    def blocks(self) -> Sequence[int]:
        """Number of places of each block, which is cheapest to read as a whole. UnsupportedShapeError: no blocks."""
        raise UnsupportedShapeError(f"{self!r}: its data has no blocks; use shuffle=True")

    @property
    def first_block(self) -> int:
        """Number of items of the first read: as few as can be read efficiently."""
        return 1

    @property
    def largest_block(self) -> int:
        """Largest number of items of one read."""
        return max(1, min(LARGEST_BLOCK, int(_BLOCK_BYTES / max(1.0, self.record_bytes))))

    @property
    def record_bytes(self) -> float:
        """Mean size of an item in bytes, which limits the number of items of one read."""
        return _BLOCK_BYTES / LARGEST_BLOCK

    def pairs(self) -> Iterator[tuple[Token, Any]]:
        for tokens, items in self._read_blocks():
            for token, item in zip(tokens, items, strict=True):
                self._done += 1
                if item is not MISSING:
                    yield token, item

    def lists(self, size: int) -> Iterator[tuple[list[Token | None], list[Any]]]:
        if type(self).pairs is not OrderedNode.pairs:  # a derived class yields other pairs
            yield from super().lists(size)
            return
        tokens: list[Token | None] = []
        items: list[Any] = []
        for block_tokens, block in self._read_blocks(size):
            place = 0
            while place < len(block):
                stop = place + size - len(items)
                new_tokens, new = block_tokens[place:stop], block[place:stop]
                self._done += len(new)
                place = stop
                if any(map(is_, new, repeat(MISSING))):
                    there = [item is not MISSING for item in new]
                    new_tokens, new = list(compress(new_tokens, there)), list(compress(new, there))
                tokens += new_tokens
                items += new
                if len(items) == size:
                    yield tokens, items
                    tokens, items = [], []
        if items:
            yield tokens, items

    def _read_blocks(self, whole: int = 1) -> Iterator[tuple[list[Token], list[Any]]]:
        """Read the rest of the pass, many items at once: a multiple of `whole`.

        A read starts when all items of the last one are yielded.
        """
        share = self._share
        largest = max(self.largest_block // whole, 1) * whole
        first = size = min(-(-self.first_block // whole) * whole, largest)
        while self._done < len(share):
            # A permutation is faster in large pieces, but the first item should not wait for one.
            stop = min(len(share), self._done + (_ORDER_AHEAD if size > first else 1) * size)
            numbers = self.order(share.positions(self._done, stop))
            while len(numbers):
                block, numbers = numbers[:size], numbers[size:]
                tokens, place = self.tokens_of(block, self._epoch), 0
                for items in self.read_pieces(block):
                    yield tokens[place : place + len(items)], items
                    place += len(items)
                if place != len(block):
                    raise UsageError(f"{self!r}: expected an item for each number ({len(block)}), found {place}")
                size = min(2 * size, largest)
        self.release()

    @abstractmethod
    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        """Read items by number, with `MISSING` for a number without an item."""

    def read_pieces(self, numbers: Positions) -> Iterator[list[Any]]:
        """Read items by number for the pass, and yield them in lists. Default: one list, from `read_numbers`."""
        yield self.read_numbers(numbers)

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        """Return the tokens of numbers. Default: the numbers themselves."""
        found: list[Token] = numbers.tolist()
        return found

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        return self.tokens_of(self.order(positions, epoch), self._when(epoch))

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self.read_numbers(self.order(positions, epoch), epoch)

    def release(self) -> None:
        """Close the files of a pass; a later read opens them again."""

    def order(self, positions: Positions, epoch: int | None = None) -> Positions:
        """Return the numbers of the records at places of a pass."""
        if not self.shuffle:
            return positions
        size, seed = len(self), self.seed + self._when(epoch)
        if self._permuted is None or (self._permuted.size, self._permuted.seed) != (size, seed):
            by_blocks = self.shuffle == "blocks"
            self._permuted = BlockPermutation(self.blocks, self.window, seed) if by_blocks else Permutation(size, seed)
        return self._permuted.take(positions)

    def order_parameters(self) -> dict[str, Any]:
        """Return the `parameters` that decide the order."""
        window = {"window": self.window} if self.shuffle == "blocks" else {}
        return {"shuffle": self.shuffle, "seed": self.seed, **window}

    def restrict(self, first: int, step: int) -> None:
        self._view = first, step

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._done, self._todo = 0, None

    def finish(self) -> None:
        self._done = len(self._share)

    def save(self) -> State:
        shard, shards = self._shard
        state: State = {"position": self._done, "shard": shard, "shards": shards}
        if self._todo is not None:
            state["todo"] = [list(part) for part in self._todo]
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self._done = field(state, "position", self._name)
        shard, shards = field(state, "shard", self._name), field(state, "shards", self._name)
        if shard is not None:
            require_shard((shard, shards), self._shard)
        todo = state.get("todo")
        self._todo = None if todo is None else [Progression(*part) for part in todo]

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        known = [{**state, "todo": state.get("todo", [self._whole])} for state in states]
        return {
            "position": 0,
            "shard": None,
            "shards": None,
            "todo": [list(part) for part in merge_shares(known, repr(self))],
        }

    @property
    def _share(self) -> Share:
        return Share([self._whole] if self._todo is None else self._todo, *self._shard)

    @property
    def _whole(self) -> Progression:
        first, step = self._view
        return Progression(first, step, count_places(len(self), first, step))


class Share:
    """The positions of one shard: the elements `shard`, `shard + shards`, ... of the remaining positions `todo`."""

    __slots__ = ("_bounds", "shard", "shards", "todo")

    def __init__(self, todo: Sequence[Progression], shard: int, shards: int) -> None:
        self.todo = tuple(todo)
        self.shard = shard
        self.shards = shards
        self._bounds = np.cumsum([0, *(part.length for part in self.todo)], dtype=np.int64)

    def __len__(self) -> int:
        return count_places(self.total, self.shard, self.shards)

    @property
    def total(self) -> int:
        """Number of positions of all shards together."""
        return int(self._bounds[-1])

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions `[start, stop)` of this share: i64, shape `(stop - start,)`."""
        ranks = self.shard + self.shards * np.arange(start, stop, dtype=np.int64)
        if len(self.todo) == 1:
            only = self.todo[0]
            return only.start + only.step * ranks
        table = np.array(self.todo, np.int64).reshape(-1, 3)
        part = self._bounds.searchsorted(ranks, "right") - 1
        found: NDArray[np.int64] = table[part, 0] + table[part, 1] * (ranks - self._bounds[part])
        return found

    def ranks_to_positions(self, first: int, step: int, count: int) -> list[Progression]:
        """Translate a progression of ranks (places in the order of all shards together) into positions."""
        found = []
        stop = first + step * count
        for part, low, high in zip(self.todo, self._bounds[:-1].tolist(), self._bounds[1:].tolist(), strict=True):
            begin = first if first >= low else first + -((first - low) // step) * step
            inside = -((begin - min(high, stop)) // step)
            if inside > 0:
                found.append(Progression(part.start + part.step * (begin - low), part.step * step, inside))
        return found


class Progression(NamedTuple):
    """The positions `start, start + step, ...`; their number is `length`."""

    start: int
    step: int
    length: int


def count_places(total: int, first: int, step: int) -> int:
    """Return how many of the numbers `first, first + step, ...` are below `total`."""
    return max(0, -((first - total) // step))


def merge_shares(states: Sequence[Mapping[str, Any]], owner: str) -> list[Progression]:
    """Return all remaining positions: first those that slower shards have left up to the farthest shard, then the rest.

    The states, in any order, have `shard`, `shards`, `position` (number of finished positions of its share) and `todo`
    (the remaining positions, as triples). Raises CheckpointError unless there is one state of each shard of one pass.
    """
    shards = int(states[0]["shards"])
    found = sorted(int(state["shard"]) for state in states)
    if found != list(range(shards)) or any(state["shards"] != shards for state in states):
        raise CheckpointError(
            f"{owner}: expected one state of each of {shards} shards, found states of shards {found}; collect the "
            "state of every worker of every rank at the same step"
        )
    unfinished = [state for state in states if int(state["position"]) < len(_share_of(state))]
    if not unfinished:
        return []
    todo = _share_of(unfinished[0]).todo
    if any(_share_of(state).todo != todo for state in unfinished):
        raise CheckpointError(f"{owner}: the states of shards do not fit together; save all shards at the same step")
    whole = Share(todo, 0, 1)
    done = [count_places(whole.total, shard, shards) for shard in range(shards)]  # of finished shards
    for state in unfinished:
        done[state["shard"]] = int(state["position"])
    farthest = max(done)
    left = []
    for shard, count in enumerate(done):
        behind = min(farthest, count_places(whole.total, shard, shards)) - count
        left += whole.ranks_to_positions(shard + count * shards, shards, behind) if behind > 0 else []
    beyond = farthest * shards
    return left + whole.ranks_to_positions(beyond, 1, max(0, whole.total - beyond))


def _share_of(state: Mapping[str, Any]) -> Share:
    return Share([Progression(*part) for part in state["todo"]], state["shard"], state["shards"])


def merge_states(graph: IteratorNode, states: Sequence[Mapping[str, Any]], *, trust_data: bool = False) -> State:
    """Merge the states of all shards into one that any number of shards can load.

    Each new shard calls `partition` with its new number and then `load_state_dict` with the result. Together they yield
    exactly the remaining items of the old shards, in an order that the states determine.

    Args:
        graph: The graph of the states; it is not changed.
        states: The result of `state_dict` of each shard, in any order, all saved at the same step.
        trust_data: As in `IteratorNode.load_state_dict`.

    Returns:
        A state, which can be written as JSON and loaded any number of times.

    Raises:
        CheckpointError: States are missing or duplicate, or belong to different epochs.
        CheckpointMismatchError: The states belong to another graph or other data.
        UnsupportedShapeError: The remaining items of a node cannot be divided again.
    """
    if not states:
        raise CheckpointError("merge_states: expected the states of all shards, found none")
    own = type(graph).__name__
    shards = len(states)
    found = sorted(tuple(field(state, "shard", own) or ()) for state in states)
    if found != [(shard, shards) for shard in range(shards)]:
        raise CheckpointError(
            "merge_states: expected one state of each shard, found (shard, number of shards) "
            f"{found}; collect the state of every worker of every rank"
        )
    epochs = {field(state, "epoch", own) for state in states}
    if len(epochs) > 1:
        raise CheckpointError(
            f"merge_states: expected states of one epoch, found epochs {sorted(epochs)}; save all shards at the same "
            "step, or put the epochs into the graph with Repeat"
        )
    scratch = copy.deepcopy(graph)
    now = scratch.identity()
    for state in states:
        identities.require_same(field(state, "graph", own), now, trust_data=trust_data)
    scratch.set_epoch(epochs.pop())
    ordered = sorted(states, key=lambda state: int(state["shard"][0]))
    return {**states[0], "shard": None, "state": scratch.merge([field(state, "state", own) for state in ordered])}
