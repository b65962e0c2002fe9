"""The base classes of nodes that read one other node."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledgerbeam.iterators.node import DerivedNode, Positions, State, field, resolve_iterator_source
from ledgerbeam.iterators.tokens import Token


class Transform(DerivedNode):
    """A node that reads one other node and has no state of its own. It has the capabilities of its source.

    Args:
        source: The node to read, or an object with a node in `data`.
    """

    def __init__(self, source: Any) -> None:
        self.source = resolve_iterator_source(source)

    def __repr__(self) -> str:
        return f"{self._name}({self.source!r})"

    def save(self) -> State:
        return {"source": self.source.save()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.source.load(field(state, "source", self._name))

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        return {"source": self.source.merge([field(state, "source", self._name) for state in states])}


class ItemTransform(Transform):
    """A node that makes one item from each item of its source, with the same places and tokens."""

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    @property
    def positions(self) -> int | None:
        return self.source.positions

    @property
    def is_positional(self) -> bool:  # type: ignore[override]
        return self.source.is_positional

    def restrict(self, first: int, step: int) -> None:
        self.source.restrict(first, step)

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        return self.source.tokens(positions, epoch)
