"""Buffers of items: saved as tokens and read again with as few requests as possible, or filled again by a stream."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from ledgerbeam.errors import CheckpointError
from ledgerbeam.iterators.node import IteratorNode, State, Transform, field
from ledgerbeam.iterators.tokens import Token, normalize_graph_token, require_graph_origin

Pair: TypeAlias = tuple[Token | None, Any]  # A token and its item


def save_tokens(pairs: Iterable[Pair], owner: IteratorNode, source: IteratorNode) -> list[Token]:
    """Return the tokens of buffered items.

    Raises:
        CheckpointError: The source cannot rebuild them, or one of them has no token.
    """
    if not source.has_constant_time_access:
        raise CheckpointError(
            f"{owner!r}: its buffer cannot be saved, since {source!r} cannot rebuild items; read indexed data"
        )
    return [require_graph_origin(token, repr(owner)) for token, _ in pairs]


def read_pairs(tokens: Sequence[Token], source: IteratorNode) -> list[Pair]:
    """Read buffered items again from their tokens."""
    known = [normalize_graph_token(token) for token in tokens]
    return list(zip(known, source.read_many(known), strict=True)) if known else []


def split_tokens(tokens: Sequence[Token], shard: tuple[int, int]) -> list[Token]:
    """Return the part of one shard of the tokens of all shards."""
    return list(tokens[shard[0] :: shard[1]])


class BufferedNode(Transform):
    """A node that holds back items of its source.

    If the source can rebuild items, the state has the tokens of the held ones. Otherwise the state is the number of
    yielded items: to continue, the node reads the pass from its beginning and skips them, so the time is proportional
    to the position. The remaining items of such a pass cannot be divided among another number of shards.
    """

    _yielded = 0

    @property
    def _is_replayed(self) -> bool:
        return not self.source.has_constant_time_access

    @abstractmethod
    def buffered_pairs(self) -> Iterator[Pair]:
        """Continue the pass from the held items and the state of the source; see `pairs`."""

    @abstractmethod
    def drop_held(self) -> None:
        """Set the held items to those at the beginning of the pass `epoch`: none."""

    @abstractmethod
    def save_held(self) -> State:
        """Return the state of the held items."""

    @abstractmethod
    def load_held(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `save_held` or `merge_held`."""

    @abstractmethod
    def merge_held(self, states: Sequence[Mapping[str, Any]]) -> State:
        """Merge the states of the held items of all shards."""

    def pairs(self) -> Iterator[Pair]:
        return self._replayed_pairs() if self._is_replayed else self.buffered_pairs()

    def _replayed_pairs(self) -> Iterator[Pair]:
        done = self._yielded
        self.begin(self._epoch)
        self._yielded = done
        for pair in islice(self.buffered_pairs(), done, None):
            self._yielded += 1
            yield pair

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._yielded = 0
        self.drop_held()

    def save(self) -> State:
        return {"yielded": self._yielded} if self._is_replayed else {**super().save(), **self.save_held()}

    def load(self, state: Mapping[str, Any]) -> None:
        if self._is_replayed:
            self._yielded = field(state, "yielded", self._name)
            return
        super().load(state)
        self.load_held(state)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        if self._is_replayed:
            raise self._indivisible()
        return {**super().merge(states), **self.merge_held(states)}
