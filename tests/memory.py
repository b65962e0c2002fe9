"""What a call holds at once, counted by its allocations: the load of the machine does not matter."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def peak_of(call: Callable[[], T]) -> tuple[T, int]:
    """Return what a call returns, and the most bytes that it had allocated beside what was there before."""
    tracemalloc.start()
    try:
        done = call()
        return done, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
