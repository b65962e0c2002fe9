"""The steps of the chain as Beam transforms.

A transform has one `ParDo` for each part of its step. Its workers create the `StepWork` with the values of the job,
such as the ledger, which `give_values` passes to all transforms of a complete pipeline.
"""

# ruff: noqa: D101 - the steps document the transforms of their names

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import typehints
from apache_beam.utils.windowed_value import WindowedValue

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import FailedTask, NoneTask
from ledgerbeam.transforms.chain import commit, index, plan, process, read, write
from ledgerbeam.transforms.chain.base import NO_LEDGER, TASKS, ChainStep, ChainValues, Counters, Spread, StepWork
from ledgerbeam.transforms.exchange import gather, scatter
from ledgerbeam.transforms.mapping.function import MapRecords
from ledgerbeam.user_code.functions_of_job import Function

if TYPE_CHECKING:
    import pyarrow as pa

_TASK_BYTES = 512


class ChainTransform(ChainStep, beam.PTransform[Any, Any]):
    """A step of the chain as a Beam transform."""

    def expand(self, elements: Any) -> Any:
        """Apply the transform to the output of the previous one, or to a pipeline."""
        if self.begins:
            elements |= beam.Impulse()
        for label, part in self.parts():
            elements |= _label(label) >> _primitive(part)
        return elements


def _primitive(step: ChainStep) -> beam.PTransform[Any, Any]:
    if isinstance(step, Spread):
        return beam.Reshuffle()
    return beam.ParDo(ChainDoFn(step)).with_output_types(step.elements)


class _StepTransform(ChainTransform):
    """The Beam transform of any step, for jobs whose chain the library builds."""

    def __init__(self, step: ChainStep) -> None:
        super().__init__()
        self._step = step
        self.begins = step.begins  # type: ignore[misc]

    def make_work(self, values: ChainValues) -> StepWork:
        return self._step.make_work(values)

    def parts(self) -> Sequence[tuple[str, ChainStep]]:
        return self._step.parts()

    def display_data(self) -> dict[str, Any]:
        return self._step.display_data()


def apply_steps(pipeline: beam.Pipeline, steps: Sequence[ChainStep]) -> None:
    """Apply all steps of a chain to a pipeline."""
    elements: Any = pipeline
    for step in steps:
        elements |= _label(type(step).__name__) >> _StepTransform(step)


class ChainDoFn(beam.DoFn):
    """The DoFn of a step. Each worker creates its `StepWork`."""

    def __init__(self, step: ChainStep) -> None:
        self.step = step
        self.values: ChainValues | None = None  # values of the pipeline. None before `give_values`
        self._work: StepWork | None = None

    def work(self) -> StepWork:
        """Create the work of the step. Raises UsageError if `give_values` was not called."""
        if self.values is None:
            raise UsageError(f"{type(self.step).__name__}: {NO_LEDGER}")
        work = self.step.make_work(self.values)
        work.counters = BeamCounters()
        return work

    def display_data(self) -> dict[str, Any]:
        """Return the display data of the step. Some consoles, such as Dataflow's, show only innermost transforms."""
        return self.step.display_data()

    def setup(self) -> None:
        self._work = self.work()
        self._work.setup()

    def start_bundle(self) -> None:
        self._made().start_bundle()

    def process(self, element: Any) -> Any:
        return self._made().process(element)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for result in self._made().finish_bundle() or ():
            yield GlobalWindows.windowed_value(result)

    def teardown(self) -> None:
        if self._work is not None:
            self._work.teardown()

    def _made(self) -> StepWork:
        if self._work is None:  # the runner did not call setup
            self._work = self.work()
        return self._work


class BeamCounters(Counters):
    """Metrics of Beam, in the namespace ``ledgerbeam``."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def add(self, name: str, number: int = 1) -> None:
        self._of(name, Metrics.counter).inc(number)

    def observe(self, name: str, value: int) -> None:
        self._of(name, Metrics.distribution).update(value)

    def _of(self, name: str, make: Any) -> Any:
        if name not in self._made:
            self._made[name] = make("ledgerbeam", name)
        return self._made[name]


class MatchSources(plan.MatchStep, ChainTransform):
    pass


class Gather(gather.GatherStep, MatchSources):
    pass


class SkipCompleted(plan.SkipStep, ChainTransform):
    pass


class PlanTasks(plan.PlanStep, ChainTransform):
    pass


class PlanIndexes(index.PlanIndexesStep, ChainTransform):
    pass


class BuildIndexes(index.BuildIndexesStep, ChainTransform):
    pass


class ReadTasks(read.ReadStep, ChainTransform):
    pass


class ProcessTask(process.ProcessStep, ChainTransform):
    pass


class ProcessBatch(process.BatchStep, ChainTransform):
    pass


class WriteTasks(write.WriteStep, ChainTransform):
    pass


class Scatter(scatter.ScatterStep, WriteTasks):
    pass


class WriteColumns(WriteTasks):
    """Call functions with each record, and publish their results as columns beside the records.

    Use it instead of `WriteTasks`. When all sources are complete, the pipeline writes the catalog of the folder.

    Args:
        output: URL of the folder to write below.
        functions: Functions that return a mapping of names to values, or None for nulls; see `MapRecords`.
        schema: The columns, as a `pyarrow.Schema`.
        options: Options of `MapRecords`, such as ``batch``.
    """

    def __init__(
        self, output: str, functions: Function | Sequence[Function], schema: pa.Schema, **options: Any
    ) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only pipelines of columns import it

        from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415
        from ledgerbeam.sources.columns import ColumnsFormat  # noqa: PLC0415

        if not isinstance(schema, pa.Schema):
            raise UsageError(f"WriteColumns: schema: expected a pyarrow.Schema, found {schema!r:.80}")
        columns = ColumnsFormat(schema=JobSchema({"": schema}))
        super().__init__(output, columns)
        self.schema = schema
        self.function = MapRecords(functions, columns, per_record=True, **options)

    def parts(self) -> Sequence[tuple[str, ChainStep]]:
        """Return a step that calls the functions, and this step, which writes the columns."""
        return [("Function", process.ProcessStep(self.function)), *super().parts()]


class CommitTasks(commit.CommitStep, ChainTransform):
    pass


_TRANSFORMS = (MatchSources, Gather, SkipCompleted, PlanTasks, PlanIndexes, BuildIndexes, ReadTasks)
_LABELS = {
    kind.__bases__[0].__name__: kind.__name__
    for kind in (*_TRANSFORMS, ProcessTask, ProcessBatch, WriteTasks, Scatter, CommitTasks)
}


def _label(step: str) -> str:
    """Return the label of a step in consoles of runners: the name of its transform, if it has one."""
    return _LABELS.get(step, step)


def give_values(pipeline: beam.Pipeline, values: ChainValues) -> None:
    """Pass the values of a job to all transforms of the chain. The pipeline must be complete, and not have run yet."""
    pipeline.visit(_Giver(values))


class _Giver(PipelineVisitor):
    def __init__(self, values: ChainValues) -> None:
        self._values = values
        self._given: dict[AppliedPTransform, ChainDoFn] = {}

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        transform = transform_node.transform
        if not (isinstance(transform, beam.ParDo) and isinstance(transform.fn, ChainDoFn)):
            return
        transform.fn.values = self._values
        self._given[transform_node] = transform.fn
        for given in transform_node.inputs:  # transforms are visited after their inputs
            before = self._given.get(given.producer)
            if before is not None and transform.fn.step.takes_blocks:
                before.values = replace(self._values, in_blocks=True)


class TaskCoder(beam.coders.Coder):
    """Coder of tasks, for engines that pass tasks between workers because they do not fuse the chain.

    Beam samples the sizes of elements. Without `estimate_size` it would encode all records a second time.
    """

    @classmethod
    def from_type_hint(cls, typehint: Any, known: Any) -> Any:
        """Return the coder of a type. Raises ValueError for types other than tasks."""
        del known
        if isinstance(typehint, typehints.UnionConstraint) and {NoneTask, FailedTask} <= set(typehint.union_types):
            return cls()
        raise ValueError(f"expected the type of tasks, found {typehint}")

    def to_type_hint(self) -> Any:
        """Return the type of tasks. Beam needs it to rebuild a pipeline from protobuf."""
        return TASKS

    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> Any:
        """Decode an element."""
        return pickle.loads(encoded)  # noqa: S301 - a worker of the same job encoded it

    def estimate_size(self, value: Any) -> int:
        """Return the approximate size in bytes of a task without its records."""
        del value
        return _TASK_BYTES

    def is_deterministic(self) -> bool:
        """Return False: tasks are not used as keys."""
        return False


registry.register_fallback_coder(TaskCoder)
