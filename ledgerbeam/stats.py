"""Statistics that a function observes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collecting", "discarded"]


class Collected:
    """What was observed in the body of `collecting`."""

    def statistics(self) -> dict[str, tuple[str, bytes]]:
        """Return the statistics, by name."""
        return {}


@contextmanager
def collecting() -> Iterator[Collected]:
    """Collect what the body observes."""
    yield Collected()


@contextmanager
def discarded() -> Iterator[None]:
    """Observe nothing in the body."""
    yield
