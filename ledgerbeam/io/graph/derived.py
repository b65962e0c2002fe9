"""Nodes over others that add no limit of their own."""

from __future__ import annotations

from ledgerbeam.io.graph.node import IteratorNode, supports_graph_restore

__all__ = ["DerivedNode"]


class DerivedNode(IteratorNode):
    """A node that can be saved, and rebuild items, where all that it reads can."""

    @property
    def is_checkpointable(self) -> bool:  # type: ignore[override]
        """Whether `state_dict` and `load_state_dict` work."""
        return all(child.is_checkpointable for child in self.children)

    @property
    def is_indexed(self) -> bool:  # type: ignore[override]
        """Whether the data below has indexes."""
        return all(child.is_indexed for child in self.children)

    @property
    def has_constant_time_access(self) -> bool:  # type: ignore[override]
        """Whether an item can be rebuilt from its token without going through others."""
        return all(map(supports_graph_restore, self.children))
