"""Base class of the transforms of a chain, the values that the pipeline gives them, and their access to the ledger.

A transform declares its work. The ledger, the way to open sources and the base of output names are known once the
pipeline is complete. `give_values` then passes them to all transforms of the chain.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, Union

import apache_beam as beam
from apache_beam.coders.typecoders import registry
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.typehints import typehints

from ledgerbeam._base.disk import read_size
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import FailedTask, LedgerStore, NoneTask, Source, Task
from ledgerbeam.ledger.lmdb.data_file import publishing
from ledgerbeam.ledger.opening import open_mirror, open_sink, open_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import end_work, report_error, report_set_ups, report_times
from ledgerbeam.ledger.worker.run_folders import TaskBudget, wait_for_index
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES, LedgerPlace, LedgerWriter, shared_writer
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.user_code.objects import close_objects

# A function that packs listed files, in order, into composite sources. Picklable.
Packer: TypeAlias = Callable[[Iterable[Source]], Iterable[Source]]
# The type of the elements between `ReadTasks` and `WriteTasks`.
TASKS: Any = Union[Task, NoneTask, FailedTask]  # noqa: UP007 - Beam reads it as a type hint
_TASK_BYTES = 512
_NO_LEDGER = (
    "this pipeline has no ledger: make it with ledgerbeam.Pipeline(ledger=..., name=...) in place of beam.Pipeline, or "
    "run it with ledgerbeam.run(pipeline, ledger=..., name=...)"
)
_stores: dict[LedgerPlace, LedgerStore] = {}
_stores_lock = threading.Lock()


@dataclass(frozen=True)
class LedgerHandle:
    """Access to the ledger of a job from a worker. Cheap to pickle; the ledger is opened on first use."""

    url: str  # URL of the ledger
    job: str | None = None  # fingerprint that the ledger must have at each commit. None does not check
    flush_interval: float = 1.0  # maximum time that a completion waits for its commit, in seconds
    flush_entries: int = MAX_ENTRIES  # maximum number of completions in one commit
    # Folder of the local run. Workers write marks of running tasks and their last error there. None if the runner
    # watches its workers itself.
    run_dir: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # passed to fsspec unchanged
    # ID of the run, from `begin_run` of a remote ledger. Empty for the newest run, which costs one request per commit.
    run: str = ""
    # Hashes of the modules of user code at the start of the job, by module name
    modules: Mapping[str, str] = field(default_factory=dict)

    def store(self) -> LedgerStore:
        """Return the store of this process. A remote ledger is read once, at the first call."""
        return _shared_store(
            self._place, lambda: open_store(self.url, self.storage_options, create=False, job=self.job, run=self.run)
        )

    def mirror(self) -> LedgerStore:
        """Return the local copy of the ledger, as of the last refresh by the launcher. Makes no request."""
        return _shared_store(self._mirror_place, lambda: open_mirror(self.url))

    @cached_property
    def _place(self) -> LedgerPlace:
        return LedgerPlace.of(canonical_url(self.url), job=self.job, run=self.run, options=self.storage_options)

    @cached_property
    def _mirror_place(self) -> LedgerPlace:
        return LedgerPlace.of(canonical_url(self.url), run="mirror")

    @contextmanager
    def publishing(self, sources: Iterable[bytes]) -> Iterator[set[bytes]]:
        """Yield the sources that were replaced since their tasks were planned, as far as this host knows.

        Another launcher may have listed a new version. With a local ledger, the remaining sources are not replaced
        while the body runs. Runners other than the local one do not check, and yield an empty set.
        """
        if self.run_dir is None:
            yield set()
            return
        asked, mirror = set(sources), self.mirror()
        with publishing(mirror.url, asked):
            yield asked - mirror.source_urls(asked).keys()

    def writer(self) -> LedgerWriter:
        """Return the writer of this process for this ledger, job and run. It commits in groups."""
        return shared_writer(
            self._place,
            interval=self.flush_interval,
            max_entries=self.flush_entries,
            open_sink=lambda: open_sink(self.url, self.storage_options, job=self.job, run=self.run),
        )

    @contextmanager
    def working_on(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Mark `tasks` as running in this process, so that a crash in the body counts against them.

        A mark that cannot be written ends the worker, as in `fatal_errors`.
        """
        if self.run_dir is None:
            yield
            return
        self.note_times()
        with self.fatal_errors(), InflightMarks(self.run_dir).working_on(tasks):
            yield

    def wait_for_index(self, source: Source) -> None:
        """Wait until the launcher of a local run has built the index of a source in advance, if it does so."""
        if self.run_dir is not None:
            wait_for_index(os.path.dirname(self.run_dir), source)

    @contextmanager
    def fatal_errors(self) -> Iterator[None]:
        """End the worker if the body raises a `LedgerbeamError`. Finished tasks are committed first.

        A worker of a local run writes the error to a file for the launcher and exits, because Beam would turn it into
        text of a traceback. On other runners the error propagates.
        """
        try:
            yield
        except LedgerbeamError as error:
            with suppress(LedgerbeamError):  # often the same error
                self.writer().flush()
            if self.run_dir is not None:
                report_error(self.run_dir, error)
                close_objects()
                end_work()
                os._exit(1)
            raise

    def note_set_ups(self, seconds: Sequence[float]) -> None:
        """Record the durations of the set-ups of user code in this process, for the launcher of a local run."""
        if self.run_dir is not None and seconds:
            report_set_ups(self.run_dir, seconds)

    def note_times(self, *, at_once: bool = False) -> None:
        """Record the work times of this process for the launcher of a local run, if they are due, or at once."""
        if self.run_dir is not None:
            report_times(self.run_dir, at_once=at_once)


def _shared_store(place: LedgerPlace, opened: Callable[[], LedgerStore]) -> LedgerStore:
    with _stores_lock:
        if place not in _stores:
            _stores[place] = opened()
        return _stores[place]


def fatal_errors(ledger: LedgerHandle | None) -> AbstractContextManager[None]:
    """Return `LedgerHandle.fatal_errors`. For a chain without a ledger, return a context that does nothing."""
    return nullcontext() if ledger is None else ledger.fatal_errors()


def working_on(ledger: LedgerHandle | None, tasks: Sequence[Task]) -> AbstractContextManager[None]:
    """Return `LedgerHandle.working_on`. For a chain without a ledger, return a context that does nothing."""
    return nullcontext() if ledger is None else ledger.working_on(tasks)


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
    """Values that a pipeline gives to the transforms of its chain."""

    ledger: LedgerHandle | None = None  # access to the ledger from workers. None records nothing
    listing: Listing | None = None  # the listing of the sources
    packer: Packer | None = None  # packs listed files into sources. None makes each file a source
    # Returns the open sources if the launcher has listed them already. Picklable.
    open_sources: Callable[[], Iterable[PendingSource]] | None = None
    sources: Sources = field(default_factory=FileSources)
    base: str | None = None  # folder URL ending with ``/`` that output names are relative to. None for whole paths
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # passed to fsspec unchanged
    schedule: Schedule | None = None  # the schedule of a runner that hands out tasks by itself; None for other runners
    budget: TaskBudget | None = None  # maximum number of tasks to do. None for all
    # Maximum number of records that the tasks of one worker may reject, for runners whose launcher does not read the
    # ledger meanwhile. More end the worker with a `RejectLimitError` after they are recorded. None for any number.
    most_rejected: int | None = None
    in_blocks: bool = False  # whether the next transform takes records as `sources.forms.RecordBlocks` instead of lists
    has_downstream: bool = False  # whether the pipeline has transforms after `CommitTasks`
    # Returns the committed tasks if the chain has run already. Picklable.
    committed: Callable[[], Iterable[Any]] | None = None
    # Division of the key range into the buckets of run files. None if none are written.
    partition: Partition | None = None

    def require_ledger(self) -> LedgerHandle:
        """Return the ledger. Raises UsageError if the pipeline has none."""
        if self.ledger is None:
            raise UsageError(_NO_LEDGER)
        return self.ledger


class ChainTransform(beam.PTransform[Any, Any]):
    """A transform of the chain: one DoFn, which workers make from the values of the pipeline."""

    elements: ClassVar[Any] = Any
    """Type of the emitted elements."""

    takes_blocks: bool = False
    """Whether the transform takes records as `sources.forms.RecordBlocks`, which `ReadTasks` gives if possible."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return the DoFn that does the work."""
        raise NotImplementedError

    def expand(self, elements: Any) -> Any:
        """Apply the transform to the output of the previous one."""
        name = type(self).__name__
        return elements | name >> beam.ParDo(ChainDoFn(self)).with_output_types(self.elements)


class ChainDoFn(beam.DoFn):
    """Placeholder for the DoFn of a transform, which a worker makes."""

    def __init__(self, transform: ChainTransform) -> None:
        self.transform = transform
        self.values: ChainValues | None = None  # values of the pipeline. None before `give_values`
        self._work: beam.DoFn | None = None

    def work(self) -> beam.DoFn:
        """Make the DoFn that does the work. Raises UsageError before `give_values`."""
        if self.values is None:
            raise UsageError(f"{type(self.transform).__name__}: {_NO_LEDGER}")
        return self.transform.dofn(self.values)

    def display_data(self) -> dict[str, Any]:
        """Show the display data of the transform: some consoles, such as Dataflow's, show only the innermost steps."""
        shown: dict[str, Any] = self.transform.display_data()
        return shown

    def setup(self) -> None:
        self._work = self.work()
        self._work.setup()

    def start_bundle(self) -> Any:
        return self._made().start_bundle()

    def process(self, element: Any) -> Any:
        return self._made().process(element)

    def finish_bundle(self) -> Any:
        return self._made().finish_bundle()

    def teardown(self) -> None:
        if self._work is not None:
            self._work.teardown()

    def _made(self) -> beam.DoFn:
        if self._work is None:  # the runner did not call setup
            self._work = self.work()
        return self._work


class Emit(beam.DoFn):
    """Emit known elements for the one element that starts the pipeline."""

    def __init__(self, elements: Callable[[], Iterable[Any]], ledger: LedgerHandle | None) -> None:
        self._elements = elements
        self._ledger = ledger

    def process(self, element: Any) -> Iterator[Any]:
        del element
        with fatal_errors(self._ledger):
            yield from self._elements()


def size_of(name: str, value: int | str | None) -> int | None:
    """Parse a size such as ``"16M"`` into bytes; None for None. Raises UsageError with the name of the argument."""
    try:
        return None if value is None else read_size(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def give_values(pipeline: beam.Pipeline, values: ChainValues) -> None:
    """Give values to all transforms of the chain of a complete pipeline that has not run yet."""
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
