"""What the transforms of a chain are given before their pipeline runs, and how.

A transform says what is to be done. Where the ledger is, how sources are opened and what output names are relative to
is known once the whole pipeline is there: `give_values` then gives it to every transform of the chain.
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

from ledgerbeam._base.sizes import read_size
from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.task_budget import TaskBudget
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.transforms.chain.worker import LedgerHandle

Packer: TypeAlias = Callable[[Iterable[Source]], Iterable[Source]]
"""Makes composite sources of the files of a listing, which come in its order; picklable."""

TASKS: Any = Union[Task, NoneTask, FailedTask]  # noqa: UP007 - Beam reads it as a type hint
"""The type of the elements between `ReadTasks` and `WriteTasks`."""


class TaskCoder(beam.coders.Coder):
    """Encodes elements that stand for tasks, between workers of an engine that does not fuse the chain.

    Beam samples how large elements are, by encoding them if their coder does not say it: a second copy of all records.
    """

    @classmethod
    def from_type_hint(cls, typehint: Any, known: Any) -> Any:
        """Return the coder of a type. Raises ValueError: it is of other elements, which have another coder."""
        del known
        if isinstance(typehint, typehints.UnionConstraint) and {NoneTask, FailedTask} <= set(typehint.union_types):
            return cls()
        raise ValueError(f"expected the type of tasks, found {typehint}")

    def to_type_hint(self) -> Any:
        """Return a type of tasks, for a pipeline that is made of its description."""
        return TASKS

    def encode(self, value: Any) -> bytes:
        """Return an element as bytes."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> Any:
        """Return the element that was encoded."""
        return pickle.loads(encoded)  # noqa: S301 - a worker of the same job has encoded it

    def estimate_size(self, value: Any) -> int:
        """Return about what a task without its records takes."""
        del value
        return _TASK_BYTES

    def is_deterministic(self) -> bool:
        """Return False: a task is no key."""
        return False


_TASK_BYTES = 512

registry.register_fallback_coder(TaskCoder)


class Listing(Protocol):
    """The input of a job: a `SourceListing`, or a `GraphSource` with its passes as the sources. Picklable."""

    @property
    def title(self) -> str:
        """What a console shows."""

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources, in an order that does not change between runs."""


class Schedule(Protocol):
    """The way in which a runner hands out tasks. Picklable."""

    def post(self, ledger: LedgerHandle | None) -> beam.DoFn:
        """Return the DoFn that takes planned tasks."""

    def draw(self, ledger: LedgerHandle | None) -> beam.DoFn:
        """Return the DoFn that emits the tasks that this worker does, from the output of `post`."""


@dataclass(frozen=True)
class ChainValues:
    """What a pipeline gives to the transforms of its chain.

    Attributes:
        ledger: How workers reach the ledger; None records nothing.
        listing: What lists the sources.
        packer: Makes the sources of the listed files; None takes each file as one.
        open_sources: Returns the sources to do, where the launcher has listed and skipped already; picklable.
        sources: How sources are opened.
        base: What output names are relative to: a folder URL ending in ``/``; None for whole paths.
        storage_options: Passed to fsspec unchanged.
        schedule: The schedule of a runner that hands out tasks by itself; None for other runners.
        budget: How many tasks may be done; None for all.
        most_rejected: How many records the tasks of one worker may reject, if the launcher does not read the ledger
            meanwhile; more end the worker with a `RejectLimitError`, once they are recorded. None for any number.
        in_blocks: Whether the transform behind takes the records of tasks as `sources.RecordBlocks`; else as lists.
        goes_on: Whether the pipeline goes on behind `CommitTasks`.
        committed: Returns what was committed, where this is known already; picklable.
        partition: How the order of the records is cut into the buckets of run files; None if none are written.
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
    goes_on: bool = False
    committed: Callable[[], Iterable[Any]] | None = None
    partition: Partition | None = None

    def require_ledger(self) -> LedgerHandle:
        """Return the ledger, of a transform that does nothing without one.

        Raises:
            UsageError: There is none.
        """
        if self.ledger is None:
            raise UsageError(_NO_LEDGER)
        return self.ledger


_NO_LEDGER = (
    "this pipeline has no ledger: make it with ledgerbeam.Pipeline(ledger=..., name=...) in place of beam.Pipeline, or "
    "run it with ledgerbeam.run(pipeline, ledger=..., name=...)"
)


class ChainTransform(beam.PTransform[Any, Any]):
    """A transform of the chain: one DoFn, made in the workers of what the pipeline gives."""

    elements: ClassVar[Any] = Any
    """Type of the elements that it emits."""

    takes_blocks: bool = False
    """Whether it takes tasks whose records are `sources.RecordBlocks`, as `ReadTasks` gives them where it may."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what does the work.

        Args:
            values: Of the pipeline.
        """
        raise NotImplementedError

    def expand(self, elements: Any) -> Any:
        """Apply the transform to the output of the one before."""
        name = type(self).__name__
        return elements | name >> beam.ParDo(ChainDoFn(self)).with_output_types(self.elements)


class ChainDoFn(beam.DoFn):
    """Stands for the DoFn of a transform until a worker makes that.

    Args:
        transform: The transform.

    Attributes:
        values: What the pipeline has given; None until then.
    """

    def __init__(self, transform: ChainTransform) -> None:
        self.transform = transform
        self.values: ChainValues | None = None
        self._work: beam.DoFn | None = None

    def work(self) -> beam.DoFn:
        """Return a new DoFn that does the work.

        Raises:
            UsageError: The pipeline has given nothing.
        """
        if self.values is None:
            raise UsageError(f"{type(self.transform).__name__}: {_NO_LEDGER}")
        return self.transform.dofn(self.values)

    def display_data(self) -> dict[str, Any]:
        """Show what the transform shows, in a runner's console that has the innermost steps alone, as Dataflow's."""
        shown: dict[str, Any] = self.transform.display_data()
        return shown

    def setup(self) -> None:
        """Make the DoFn, and set it up."""
        self._work = self.work()
        self._work.setup()

    def start_bundle(self) -> Any:
        """Begin a bundle."""
        return self._made().start_bundle()

    def process(self, element: Any) -> Any:
        """Do the work for one element."""
        return self._made().process(element)

    def finish_bundle(self) -> Any:
        """End a bundle."""
        return self._made().finish_bundle()

    def teardown(self) -> None:
        """End the work in this process."""
        if self._work is not None:
            self._work.teardown()

    def _made(self) -> beam.DoFn:
        if self._work is None:  # no runner has set it up
            self._work = self.work()
        return self._work


def size_of(name: str, value: int | str | None) -> int | None:
    """Return a size that a transform is given, in bytes; None if there is none.

    Args:
        name: Of what is given, for the message.
        value: A number, or a text such as ``"16M"``.

    Raises:
        UsageError: It is no size.
    """
    try:
        return None if value is None else read_size(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def give_values(pipeline: beam.Pipeline, values: ChainValues) -> None:
    """Give values to the transforms of the chain, which must all be applied by now.

    Args:
        pipeline: Not yet run.
        values: For all of them.
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
        for given in transform_node.inputs:  # each transform is visited after what it takes from
            before = self._given.get(given.producer)
            if before is not None and transform.fn.transform.takes_blocks:
                before.values = replace(self._values, in_blocks=True)
