"""The positions of a pass that a shard reads: every S-th of the remaining ones.

The remaining places are a list of arithmetic progressions, at first the whole pass. When a job continues with another
number of shards, the remaining places of the old shards are again a short list, which is divided among the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import CheckpointError


class Progression(NamedTuple):
    """The positions `start, start + step, ...`, `length` of them."""

    start: int
    step: int
    length: int


class Share:
    """The part of one shard: of the remaining positions, in order, those at `shard`, `shard + shards`, ...

    Args:
        todo: The remaining positions, in order.
        shard: Number of the part, `0 <= shard < shards`.
        shards: Number of parts.
    """

    __slots__ = ("_bounds", "shard", "shards", "todo")

    def __init__(self, todo: Sequence[Progression], shard: int, shards: int) -> None:
        self.todo = tuple(todo)
        self.shard = shard
        self.shards = shards
        self._bounds = np.cumsum([0, *(part.length for part in self.todo)], dtype=np.int64)

    def __repr__(self) -> str:
        return f"Share({list(self.todo)}, shard={self.shard}, shards={self.shards})"

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


def count_places(total: int, first: int, step: int) -> int:
    """Return how many of the numbers `first, first + step, ...` are below `total`."""
    return max(0, -((first - total) // step))


def merge_shares(states: Sequence[Mapping[str, Any]], owner: str) -> list[Progression]:
    """Return the remaining positions of the shards of a pass.

    Args:
        states: One for each shard, in any order: `shard`, `shards`, `position` (number of finished positions of its
            share) and `todo` (the remaining positions, as triples).
        owner: Name of the node, for messages.

    Returns:
        The remaining positions of the shards that are behind the farthest one, then all positions beyond it.

    Raises:
        CheckpointError: There is not exactly one state of each shard, or they belong to different passes.
    """
    shards = int(states[0]["shards"])
    found = sorted(int(state["shard"]) for state in states)
    if found != list(range(shards)) or any(state["shards"] != shards for state in states):
        raise CheckpointError(
            f"{owner}: expected the states of all {shards} shards, one each, found those of {found}; collect the state "
            "of every worker of every rank at the same step"
        )
    unfinished = [state for state in states if int(state["position"]) < len(_share_of(state))]
    if not unfinished:
        return []
    todo = _share_of(unfinished[0]).todo
    if any(_share_of(state).todo != todo for state in unfinished):
        raise CheckpointError(f"{owner}: expected states of the same step, found shards of different work")
    whole = Share(todo, 0, 1)
    done = [count_places(whole.total, shard, shards) for shard in range(shards)]  # shards that have nothing left
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
