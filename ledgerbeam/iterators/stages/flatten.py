"""Yield the pieces of items that are collections."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.iterators.node import Positions, State, field
from ledgerbeam.iterators.stages.buffer import BufferedNode, split_tokens
from ledgerbeam.iterators.stages.chain import read_grouped
from ledgerbeam.iterators.tokens import Token, normalize_graph_token, pair_token


class Flatten(BufferedNode):
    """Yields the pieces of each item of its source, in order.

    The tokens are `(token of the item, number of the piece)`. The state has the token of the current item and the
    number of its yielded pieces; over a stream a pass is read again from its beginning, see `BufferedNode`. `read_span`
    addresses the places of the source and returns all pieces of their items.

    Args:
        source: A node with iterable items, with any number of pieces each.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._open: list[tuple[Token | None, int]] = []

    is_single = False

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
        found = field(state, "open", self._name)
        mine = split_tokens(found, self._shard) if state.get("of_all_shards") else found
        self._open = [(normalize_graph_token(outer), given) for outer, given in mine]

    def merge_held(self, states: Sequence[Mapping[str, Any]]) -> State:
        begun = list(chain.from_iterable(field(state, "open", self._name) for state in states))
        return {"open": begun, "of_all_shards": True}

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
