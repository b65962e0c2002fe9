"""Time measurements of alternating runs, so that a slow minute of the machine slows all compared programs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

_Taken = TypeVar("_Taken")

Contender = Callable[[], float]
"""A function that does its work once and returns its seconds."""


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Contender:
    """Return a contender from a function: the seconds of one call, after a garbage collection.

    Args:
        work: The function to measure.
        clock: Returns the time in seconds. Default: wall time.
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
        contenders: Functions by name. Each returns its seconds, or several measurements.
        rounds: Number of measured runs of each contender.
        warm_up: Whether to run each contender once before, without a measurement.

    Returns:
        By name, the result of each round.
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
    """Run contenders in turns, after a run that is not measured, and return the least seconds of each."""
    return {name: min(seconds) for name, seconds in alternate(contenders, rounds).items()}
