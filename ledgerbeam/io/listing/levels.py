"""Which folders a walk need not enter: for how many levels of a pattern a folder may stand."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerbeam.io.listing.patterns import Part

__all__ = ["START", "below", "with_skipped"]

START = frozenset({0})
"""Of the folder below which names vary."""


def with_skipped(parts: Sequence[Part], states: frozenset[int]) -> frozenset[int]:
    """Add the states in which a `**` stands for no folder at all."""
    grown = set(states)
    for level, part in enumerate(parts[:-1]):
        if level in grown and part.any_depth:
            grown.add(level + 1)
    return frozenset(grown)


def below(parts: Sequence[Part], states: frozenset[int], name: str, *, linked: bool = False) -> frozenset[int]:
    """Return the states of a subfolder; none if nothing in it can match.

    Args:
        parts: Of the pattern.
        states: Of the folder that it lies in.
        name: Its name.
        linked: Whether it is a link.
    """
    reached = set()
    for level in states:
        if parts[level].any_depth:
            if not linked and not name.startswith("."):  # a link could lead back up
                reached.add(level)
        elif level + 1 < len(parts) and parts[level].select([name]):
            reached.add(level + 1)
    return frozenset(reached)
