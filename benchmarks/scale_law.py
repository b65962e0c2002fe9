"""A law of the cost of jobs, which is fitted to measured jobs, and predicts larger jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale_runs import Measured

GIGABYTE = 1e9


@dataclass(frozen=True)
class Law:
    """The cost of a job: a constant, and one value for each source, task and gigabyte. No value is negative.

    Attributes:
        worst: The greatest deviation of a measured run from the law, divided by the measured value.
    """

    start: float
    source: float
    task: float
    gigabyte: float
    worst: float

    def of(self, sources: float, tasks: float, gigabytes: float) -> float:
        return self.start + self.source * sources + self.task * tasks + self.gigabyte * gigabytes


def fit(runs: Sequence[Measured], value: Callable[[Measured], float]) -> Law:
    """Return the law with the least relative error.

    Args:
        runs: Runs of different shapes. With fewer than four, some parts of the law are zero.
        value: Returns the cost of a run, such as its seconds.
    """
    shapes = [(1.0, run.shape.sources, run.shape.tasks, run.shape.size / GIGABYTE) for run in runs]
    found = np.array([value(run) for run in runs])
    weighted = np.array(shapes) / found[:, None]
    parts = _least_squares(weighted, np.ones(len(runs)))
    errors = np.abs(weighted @ parts - 1)
    start, source, task, gigabyte = parts.tolist()
    return Law(start, source, task, gigabyte, float(errors.max()))


def _least_squares(table: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve the least squares for parts that are not negative: while a part is negative, leave out the least one."""
    used = list(range(table.shape[1]))
    while True:
        scale = np.abs(table[:, used]).max(axis=0)
        solved = np.linalg.lstsq(table[:, used] / scale, wanted, rcond=None)[0] / scale
        if (solved >= 0).all():
            parts = np.zeros(table.shape[1])
            parts[used] = solved
            return parts
        used.pop(int(np.argmin(solved * scale)))
