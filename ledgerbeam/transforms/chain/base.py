"""Base class of the transforms of a chain, and the values that the pipeline gives them.

A transform declares its work. The ledger, the way to open sources and the base of output names are known once the
pipeline is complete. `give_values` then passes them to all transforms of the chain.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeAlias, Union

import apache_beam as beam
from apache_beam.coders.typecoders import registry
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.typehints import typehints

from ledgerbeam._base.disk import read_size
from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.transforms.chain.worker import LedgerHandle

Packer: TypeAlias = Callable[[Iterable[Source]], Iterable[Source]]
"""A function that packs listed files, in order, into composite sources. Picklable."""

TASKS: Any = Union[Task, NoneTask, FailedTask]  # noqa: UP007 - Beam reads it as a type hint
"""The type of the elements between `ReadTasks` and `WriteTasks`."""


class TaskCoder(beam.coders.Coder):
    """Coder of tasks, between workers of an engine that does not fuse the chain.

    Beam samples the sizes of elements. It would encode all records a second time if the coder gave no estimate.
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
        """Encode an element."""
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


_TASK_BYTES = 512

registry.register_fallback_coder(TaskCoder)


class Listing(Protocol):
    """The input of a job: a `SourceListing`, or a `GraphSource` whose passes are the sources. Picklable."""

    @property
    def title(self) -> str:
        """Text for consoles."""

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources, in the same order in each run."""


class Schedule(Protocol):
    """The way in which a runner hands out tasks. Picklable."""

    def post(self, ledger: LedgerHandle | None) -> beam.DoFn:
        """Return the DoFn that takes planned tasks."""

    def draw(self, ledger: LedgerHandle | None) -> beam.DoFn:
        """Return the DoFn that emits the tasks that this worker does, from the output of `post`."""


@dataclass(frozen=True)
class ChainValues:
    """Values that a pipeline gives to the transforms of its chain.

    Attributes:
        ledger: Access to the ledger from workers. None records nothing.
        listing: The listing of the sources.
        packer: Packs listed files into sources. None makes each file a source.
        open_sources: Returns the open sources if the launcher has listed them already. Picklable.
        sources: Opens sources.
        base: Folder URL ending with ``/`` that output names are relative to. None for whole paths.
        storage_options: Passed to fsspec unchanged.
        schedule: The schedule of a runner that hands out tasks by itself; None for other runners.
        budget: Maximum number of tasks to do. None for all.
        most_rejected: Maximum number of records that the tasks of one worker may reject, for runners whose launcher
            does not read the ledger meanwhile. More end the worker with a `RejectLimitError` after they are recorded.
            None for any number.
        in_blocks: Whether the next transform takes records as `sources.RecordBlocks` instead of lists.
        has_downstream: Whether the pipeline has transforms after `CommitTasks`.
        committed: Returns the committed tasks if the chain has run already. Picklable.
        partition: Division of the key range into the buckets of run files. None if none are written.
    """

    ledger: LedgerHandle | None = None
    listing: Listing | None = None
    packer: Packer | None = None
    open_sources: Callable[[], Iterable[PendingSource]] | None = None
    sources: Sources = field(default_factory=FileSources)
    base: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None
    budget: TaskBudget | None = None
    most_rejected: int | None = None
    in_blocks: bool = False
    has_downstream: bool = False
    committed: Callable[[], Iterable[Any]] | None = None
    partition: Partition | None = None

    def require_ledger(self) -> LedgerHandle:
        """Return the ledger.

        Raises:
            UsageError: The pipeline has no ledger.
        """
        if self.ledger is None:
            raise UsageError(_NO_LEDGER)
        return self.ledger


_NO_LEDGER = (
    "this pipeline has no ledger: make it with ledgerbeam.Pipeline(ledger=..., name=...) in place of beam.Pipeline, or "
    "run it with ledgerbeam.run(pipeline, ledger=..., name=...)"
)


class ChainTransform(beam.PTransform[Any, Any]):
    """A transform of the chain: one DoFn, which workers make from the values of the pipeline."""

    elements: ClassVar[Any] = Any
    """Type of the emitted elements."""

    takes_blocks: bool = False
    """Whether the transform takes records as `sources.RecordBlocks`, which `ReadTasks` gives if possible."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return the DoFn that does the work.

        Args:
            values: Values of the pipeline.
        """
        raise NotImplementedError

    def expand(self, elements: Any) -> Any:
        """Apply the transform to the output of the previous one."""
        name = type(self).__name__
        return elements | name >> beam.ParDo(ChainDoFn(self)).with_output_types(self.elements)


class ChainDoFn(beam.DoFn):
    """Placeholder for the DoFn of a transform, which a worker makes.

    Args:
        transform: The transform.

    Attributes:
        values: Values of the pipeline. None before `give_values`.
    """

    def __init__(self, transform: ChainTransform) -> None:
        self.transform = transform
        self.values: ChainValues | None = None
        self._work: beam.DoFn | None = None

    def work(self) -> beam.DoFn:
        """Make the DoFn that does the work.

        Raises:
            UsageError: The pipeline has given no values.
        """
        if self.values is None:
            raise UsageError(f"{type(self.transform).__name__}: {_NO_LEDGER}")
        return self.transform.dofn(self.values)

    def display_data(self) -> dict[str, Any]:
        """Show the display data of the transform: some consoles, such as Dataflow's, show only the innermost steps."""
        shown: dict[str, Any] = self.transform.display_data()
        return shown

    def setup(self) -> None:
        """Make the DoFn, and set it up."""
        self._work = self.work()
        self._work.setup()

    def start_bundle(self) -> Any:
        """Start a bundle."""
        return self._made().start_bundle()

    def process(self, element: Any) -> Any:
        """Process one element."""
        return self._made().process(element)

    def finish_bundle(self) -> Any:
        """Finish a bundle."""
        return self._made().finish_bundle()

    def teardown(self) -> None:
        """Tear down the DoFn."""
        if self._work is not None:
            self._work.teardown()

    def _made(self) -> beam.DoFn:
        if self._work is None:  # the runner did not call setup
            self._work = self.work()
        return self._work


def size_of(name: str, value: int | str | None) -> int | None:
    """Parse a size argument of a transform. Returns bytes, or None for None.

    Args:
        name: Name of the argument, for the message.
        value: A number, or a text such as ``"16M"``.

    Raises:
        UsageError: The value is not a size.
    """
    try:
        return None if value is None else read_size(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def give_values(pipeline: beam.Pipeline, values: ChainValues) -> None:
    """Give values to all transforms of the chain.

    Args:
        pipeline: A complete pipeline that has not run yet.
        values: The values.
    """
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
            if before is not None and transform.fn.transform.takes_blocks:
                before.values = replace(self._values, in_blocks=True)
