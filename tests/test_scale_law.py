"""The law that `python -m benchmarks scale` fits is the one by which its figures were made."""

from __future__ import annotations

import pytest

from benchmarks.scale_law import fit
from benchmarks.scale_runs import LINE, Measured, Shape

SHAPES = [Shape(100, 1, 10), Shape(1000, 1, 10), Shape(10, 10, 10), Shape(10, 100, 10), Shape(10, 10, 100_000)]


def runs(start: float, source: float, task: float, gigabyte: float) -> list[Measured]:
    cost = [start + source * s.sources + task * s.tasks + gigabyte * s.size / 1e9 for s in SHAPES]
    return [Measured(shape, shape.tasks, seconds, {}, 0) for shape, seconds in zip(SHAPES, cost, strict=True)]


def test_a_law_is_found_again() -> None:
    law = fit(runs(5, 0.01, 0.002, 30), lambda run: run.seconds)
    assert (law.start, law.source, law.task, law.gigabyte) == pytest.approx((5, 0.01, 0.002, 30))
    assert law.worst < 1e-9
    assert law.of(10**6, 10**9, 10**6) == pytest.approx(5 + 10**4 + 2 * 10**6 + 30 * 10**6)


def test_nothing_costs_less_than_nothing() -> None:
    law = fit(runs(5, 0.01, -0.002, 30), lambda run: run.seconds)
    assert min(law.start, law.source, law.task, law.gigabyte) >= 0
    assert law.worst > 0.001


def test_a_shape_adds_up() -> None:
    shape = Shape(3, 4, 5)
    assert (shape.tasks, shape.task_bytes, shape.size, len(LINE)) == (12, 500, 6000, 100)
