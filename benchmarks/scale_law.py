"""From measured jobs to a law of their cost, and from the law to jobs that nobody has run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale_runs import Measured

GIGABYTE = 1e9


@dataclass(frozen=True)
class Law:
    """What a job costs: a constant, and so much for each source, task and gigabyte; never less than nothing.

    Attributes:
        worst: The greatest deviation of a measured run from the law, as a part of the measured value.
    """

    start: float
    source: float
    task: float
    gigabyte: float
    worst: float

    def of(self, sources: float, tasks: float, gigabytes: float) -> float:
        return self.start + self.source * sources + self.task * tasks + self.gigabyte * gigabytes


def fit(runs: Sequence[Measured], value: Callable[[Measured], float]) -> Law:
    """Find the law of least relative error.

    Args:
        runs: Of different shapes; with fewer than four some parts are zero.
        value: What of a run is explained.
    """
    shapes = [(1.0, run.shape.sources, run.shape.tasks, run.shape.size / GIGABYTE) for run in runs]
    found = np.array([value(run) for run in runs])
    weighted = np.array(shapes) / found[:, None]
    parts = _least_squares(weighted, np.ones(len(runs)))
    errors = np.abs(weighted @ parts - 1)
    start, source, task, gigabyte = parts.tolist()
    return Law(start, source, task, gigabyte, float(errors.max()))


def _least_squares(table: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solves for parts that are not negative: while one is, the most negative one is left out."""
    used = list(range(table.shape[1]))
    while True:
        scale = np.abs(table[:, used]).max(axis=0)
        solved = np.linalg.lstsq(table[:, used] / scale, wanted, rcond=None)[0] / scale
        if (solved >= 0).all():
            parts = np.zeros(table.shape[1])
            parts[used] = solved
            return parts
        used.pop(int(np.argmin(solved * scale)))
