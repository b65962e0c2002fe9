"""Ledgers of the tests of transforms, what a run has in work, and metrics that transforms report to Beam."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apache_beam.metrics.execution import MetricsContainer
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory

from ledgerbeam.ledger import Job, LedgerStore
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.worker.inflight import InflightMarks, _decode
from ledgerbeam.transforms.chain.base import LedgerHandle, StepWork
from ledgerbeam.transforms.on_beam import BeamCounters


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    """A new ledger of a job, in the folder `ledger`."""
    made = open_local_store(str(tmp_path / "ledger"), create=True)
    made.open_job(Job("test", {}))
    yield made
    made.close()


class Reported:
    """Values of counters and distributions, by their names."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def total(self, name: str) -> int:
        """Return the value of a counter; 0 if nothing was added."""
        found = self._container.get_cumulative().counters
        return sum(value for key, value in found.items() if key.metric.name == name)

    def values(self, name: str) -> tuple[int, int]:
        """Return how many values a distribution has, and their sum."""
        found = self._container.get_cumulative().distributions
        return next(((data.count, data.sum) for key, data in found.items() if key.metric.name == name), (0, 0))


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[LedgerHandle]:
    """Access to a ledger in a local run, whose folder is `run`."""
    (tmp_path / "run").mkdir()
    yield LedgerHandle(str(tmp_path / "L"), run_dir=str(tmp_path / "run"))
    InflightMarks(str(tmp_path / "run")).close()


def in_work(handle: LedgerHandle) -> list[str]:
    """Return the names of the tasks that a run has in work."""
    return [mark.name for path in Path(handle.run_dir or "").iterdir() for mark in _decode(path.read_bytes())]


@contextmanager
def reported() -> Iterator[Reported]:
    """Collect what is reported in this thread meanwhile, as a worker of Beam does."""
    container = MetricsContainer("test")
    sampler = statesampler.StateSampler("test", CounterFactory())
    before, none = statesampler.get_current_tracker(), StepWork.counters
    statesampler.set_current_tracker(sampler)
    StepWork.counters = BeamCounters()
    try:
        with sampler.scoped_state("test", "process", metrics_container=container):
            yield Reported(container)
    finally:
        statesampler.set_current_tracker(before)
        StepWork.counters = none
