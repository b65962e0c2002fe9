"""States of a walk: how many levels of a pattern a folder can match. Folders without a state are skipped."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerbeam.io.listing.patterns import Part

START = frozenset({0})
"""The states of the base folder of a pattern."""


def with_skipped(parts: Sequence[Part], states: frozenset[int]) -> frozenset[int]:
    """Add the states in which a `**` matches no folder."""
    grown = set(states)
    for level, part in enumerate(parts[:-1]):
        if level in grown and part.any_depth:
            grown.add(level + 1)
    return frozenset(grown)


def below(parts: Sequence[Part], states: frozenset[int], name: str, *, linked: bool = False) -> frozenset[int]:
    """Return the states of a subfolder; empty if nothing in it can match.

    Args:
        parts: The levels of the pattern.
        states: The states of its parent folder.
        name: Its name.
        linked: Whether it is a symbolic link.
    """
    reached = set()
    for level in states:
        if parts[level].any_depth:
            if not linked and not name.startswith("."):  # a link could lead to a parent folder
                reached.add(level)
        elif level + 1 < len(parts) and parts[level].select([name]):
            reached.add(level + 1)
    return frozenset(reached)
