"""The local runner without processes: the DoFns of a job's own graph, called by actors."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.writer import LedgerWriter
from ledgerbeam.pipelines.runners import pipeline as graph
from ledgerbeam.pipelines.runners.local import LocalRunner
from ledgerbeam.pipelines.runners.waves import WaveEnd
from ledgerbeam.transforms.chain.base import LedgerHandle, StepWork
from ledgerbeam.transforms.chain.plan import MatchStep, SkipStep
from ledgerbeam.transforms.on_beam import ChainDoFn

if TYPE_CHECKING:
    from tests.fault.runs.world import World

world: World | None = None  # DoFns are pickled, as Beam does: they find their world here


def _world() -> World:
    if world is None:
        raise RuntimeError("there is no world")
    return world


class SimulatedHandle(LedgerHandle):
    """How a simulated worker reaches the ledger: by a group commit of its own, which does not commit by time."""

    def store(self) -> LedgerStore:
        return open_store(self.url, self.storage_options, create=False, job=self.job, run=self.run)

    def writer(self) -> LedgerWriter:
        return _world().writer(self)


class SimulatedRunner(LocalRunner):
    """The local runner, with actors in the place of a wave's processes."""

    def _pass(self, sources: Sequence[PendingSource], listed: Any) -> WaveEnd:
        return _world().wave(self.spec, listed.run, sources)


class _Found(PipelineVisitor):
    """Gathers the works of the library in a pipeline behind `SkipCompleted`, in the order of its chain."""

    def __init__(self) -> None:
        self.works: list[StepWork] = []

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        transform = transform_node.transform
        found = transform.fn if isinstance(transform, beam.ParDo) else None
        if isinstance(found, ChainDoFn) and not isinstance(found.step, MatchStep | SkipStep):
            self.works.append(found.work())


def dofns(spec: Any, run_id: str) -> list[Any]:
    tracing = sys.gettrace()
    sys.settrace(None)
    try:
        runner = BundleBasedDirectRunner()
        job = dataclasses.replace(spec, run=run_id)
        pipeline = graph.local_pipeline(job, "chain", "", runner, PipelineOptions([]))
        found = _Found()
        pipeline.visit(found)
        return found.works
    finally:
        sys.settrace(tracing)


def drive(
    steps: Sequence[Any],
    elements: Sequence[Any],
    *,
    begin: Callable[[Any], object] = lambda _: None,
    point: Callable[[Any], object] = lambda _: None,
) -> Iterator[Any]:
    """Do what Beam does with a bundle in a fused stage: each element goes through all steps before the next."""

    def feed(element: Any, place: int) -> Iterator[Any]:
        if place == len(steps):
            yield element
            return
        point(steps[place])
        for result in steps[place].process(element) or ():
            yield from feed(result, place + 1)

    for step in steps:
        step.setup()
        step.start_bundle()
    for element in elements:
        begin(element)
        yield from feed(element, 0)
    for place, step in enumerate(steps):
        for held in step.finish_bundle() or ():  # what it did beside the elements that came after
            yield from feed(held, place + 1)
    for step in steps:
        step.teardown()
