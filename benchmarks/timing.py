"""Timing what is compared in turns, so that a slow minute of the machine slows all of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

_Taken = TypeVar("_Taken")

Contender = Callable[[], float]
"""Does its work once and returns the seconds it took."""


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Contender:
    """Make a contender of a function: seconds of one call, garbage collected before.

    Args:
        work: What is timed.
        clock: Tells the time; default: wall time.
    """

    def run() -> float:
        gc.collect()
        started = clock()
        work()
        return clock() - started

    return run


def alternate(
    contenders: Mapping[str, Callable[[], _Taken]], rounds: int, *, warm_up: bool = True
) -> dict[str, list[_Taken]]:
    """Run contenders in turns.

    Args:
        contenders: By name; each returns the seconds it took, or more that it took.
        rounds: How often each is timed.
        warm_up: Run each once before, untimed.

    Returns:
        What each took in each round, by name.
    """
    if warm_up:
        for run in contenders.values():
            run()
    taken: dict[str, list[_Taken]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(rounds):
        for name in order if turn % 2 == 0 else reversed(order):
            taken[name].append(contenders[name]())
    return taken


def best(contenders: Mapping[str, Contender], rounds: int = 5) -> dict[str, float]:
    """Run contenders in turns, after a warm-up, and return the least seconds of each."""
    return {name: min(seconds) for name, seconds in alternate(contenders, rounds).items()}
