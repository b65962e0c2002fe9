"""The base of nodes that read one other."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledgerbeam.iterators.node import DerivedNode, State, field, resolve_iterator_source

__all__ = ["Transform"]


class Transform(DerivedNode):
    """A node that reads one other and has no state of its own. What it can do is what its source can.

    Args:
        source: The node to read, or an object that wraps one in `data`.
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
