"""Base classes of the steps of a chain, the values that a job gives them, and their access to the ledger.

A step (`ChainStep`) is a description without state. Each worker makes a `StepWork` of it, with the values of the job,
such as the ledger. The work processes elements. No module of the chain imports Beam: workers of the local runner call
the works directly (`Works`), and `transforms.on_beam` makes a Beam transform of a step.
"""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, Union

from ledgerbeam._base.disk import read_size
from ledgerbeam.errors import BudgetSpentError, LedgerbeamError, UsageError
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import FailedTask, LedgerStore, NoneTask, Source, Task
from ledgerbeam.ledger.lmdb.data_file import publishing
from ledgerbeam.ledger.opening import open_mirror, open_sink, open_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.limits import Limit
from ledgerbeam.ledger.worker.reports import end_work, report_error, report_set_ups, report_times
from ledgerbeam.ledger.worker.run_folders import ISOLATION, TaskBudget
from ledgerbeam.ledger.worker.task_board import BoardPlace
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES, LedgerPlace, LedgerWriter, shared_writer
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.user_code.modules import require_modules
from ledgerbeam.user_code.objects import close_objects

# A function that packs listed files, in order, into composite sources. Picklable.
Packer: TypeAlias = Callable[[Iterable[Source]], Iterable[Source]]
# The type of the elements between `ReadTasks` and `WriteTasks`.
TASKS: Any = Union[Task, NoneTask, FailedTask]  # noqa: UP007 - Beam reads it as a type hint
NO_LEDGER = (
    "this pipeline has no ledger: make it with ledgerbeam.Pipeline(ledger=..., name=...) in place of beam.Pipeline, or "
    "run it with ledgerbeam.run(pipeline, ledger=..., name=...)"
)
_stores: dict[LedgerPlace, LedgerStore] = {}
_stores_lock = threading.Lock()


@dataclass(frozen=True)
class LedgerHandle:
    """Access to the ledger of a job from a worker. A pickle of it is small; the ledger is opened on first use."""

    url: str  # URL of the ledger
    job: str | None = None  # fingerprint that the ledger must have at each commit. None does not check
    flush_interval: float = 1.0  # maximum time that a completion waits for its commit, in seconds
    flush_entries: int = MAX_ENTRIES  # maximum number of completions in one commit
    # Folder of the local run. Workers write marks of running tasks and their last error there. None if the runner
    # watches its workers itself.
    run_dir: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # passed to fsspec unchanged
    answers: str | None = None  # URL of the folder that keeps answers of calls; None to delete them with their source
    limits: Sequence[Limit] = ()  # of the calls of `ledgerbeam.remember`
    # ID of the run, from `begin_run` of a remote ledger. Empty for the newest run, which costs one request per commit.
    run: str = ""
    # Hashes of the modules of user code at the start of the job, by module name
    modules: Mapping[str, str] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set, compare=False, repr=False)  # modules

    def check_modules(self) -> None:
        """Check the imported modules of user code. FunctionError: one has changed since the job was created."""
        loaded = self.modules.keys() & sys.modules.keys()
        if loaded - self._checked:
            require_modules(self.modules, loaded)
            self._checked.update(loaded)

    def store(self) -> LedgerStore:
        """Return the ledger, which this process opens once. The first call also reads a remote ledger."""
        return _shared_store(
            self._place, lambda: open_store(self.url, self.storage_options, create=False, job=self.job, run=self.run)
        )

    def mirror(self) -> LedgerStore:
        """Return the local copy of the ledger, as the launcher refreshed it last. Makes no request to a store."""
        return _shared_store(self._mirror_place, lambda: open_mirror(self.url))

    @cached_property
    def _place(self) -> LedgerPlace:
        return LedgerPlace.of(canonical_url(self.url), job=self.job, run=self.run, options=self.storage_options)

    @cached_property
    def _mirror_place(self) -> LedgerPlace:
        return LedgerPlace.of(canonical_url(self.url), run="mirror")

    @contextmanager
    def publishing(self, sources: Iterable[bytes]) -> Iterator[set[bytes]]:
        """Guard the publication of outputs in the body. Yield the IDs of replaced sources, out of `sources`.

        A source is replaced if another launcher listed a new version after its tasks were planned. For a remote ledger,
        replacements are known as of the last refresh. In a local ledger, the other sources cannot be replaced during
        the body. Only the local runner checks this; other runners yield an empty set.
        """
        if self.run_dir is None:
            yield set()
            return
        asked, mirror = set(sources), self.mirror()
        with publishing(mirror.url, asked):
            yield asked - mirror.source_urls(asked).keys()

    def writer(self) -> LedgerWriter:
        """Return the writer of this process for this ledger, job and run. One commit records many tasks."""
        return shared_writer(
            self._place,
            lambda: open_sink(self.url, self.storage_options, job=self.job, run=self.run),
            interval=self.flush_interval,
            max_entries=self.flush_entries,
        )

    def isolation(self) -> str:
        """Return which tasks call user code in another process: `CRASHED_TASKS`, `ALL_TASKS`, or none if empty."""
        if self.run_dir is None:
            return ""
        with suppress(FileNotFoundError), open(os.path.join(self.run_dir, ISOLATION), encoding="ascii") as file:
            return file.read()
        return ""

    @contextmanager
    def working_on(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Mark `tasks` as in progress during the body. If the process dies in it, the death counts against them.

        If a mark cannot be written, the worker ends as in `fatal_errors`.
        """
        if self.run_dir is None:
            yield
            return
        self.note_times()
        with self.fatal_errors(), InflightMarks(self.run_dir).working_on(tasks):
            yield

    @contextmanager
    def fatal_errors(self) -> Iterator[None]:
        """End the worker if the body raises a `LedgerbeamError`. Finished tasks are committed first.

        A worker of a local run writes the error to a file for the launcher and exits, because Beam would pass on only
        the text of a traceback. On other runners the error propagates.
        """
        try:
            yield
        except LedgerbeamError as error:
            with suppress(LedgerbeamError):  # often the same error
                self.writer().flush()
            if type(error) is BudgetSpentError:  # not a fault: other workers continue
                raise
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
        """Record the working time of this process for the launcher of a local run: if it is due, or `at_once`."""
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
        """Text that names the sources, for the consoles of runners."""

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources, in the same order in each run."""


class Counters:
    """Metrics of a runner. This base records nothing, for a runner without metrics."""

    def add(self, name: str, number: int = 1) -> None:
        """Add `number` to a counter."""

    def observe(self, name: str, value: int) -> None:
        """Add a value to a distribution."""


@dataclass(frozen=True)
class ChainValues:
    """Values that a job gives to the steps of its chain."""

    ledger: LedgerHandle | None = None  # access to the ledger from workers. None records nothing
    listing: Listing | None = None  # the listing of the sources
    packer: Packer | None = None  # packs listed files into sources. None makes each file a source
    # Returns the open sources if the launcher has listed them already. Picklable.
    open_sources: Callable[[], Iterable[PendingSource]] | None = None
    sources: Sources = field(default_factory=FileSources)
    base: str | None = None  # folder URL ending with ``/`` that output names are relative to. None for whole paths
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # passed to fsspec unchanged
    board: BoardPlace | None = None  # from which workers of the local runner draw tasks; None for other runners
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
            raise UsageError(NO_LEDGER)
        return self.ledger


class StepWork:
    """The work of one step in a worker: it processes elements one by one, in bundles. Subclasses define `process`."""

    counters = Counters()
    """Metrics of the runner."""

    def setup(self) -> None:
        """Prepare for the first bundle. Each process or thread that does the work calls this once."""

    def start_bundle(self) -> None:
        """Start a bundle of elements. A runner that repeats a failed bundle calls this again."""

    def process(self, element: Any) -> Iterable[Any] | None:
        """Process an element and return its results. The next step takes all of them before the next call."""
        raise NotImplementedError

    def finish_bundle(self) -> Iterable[Any] | None:
        """End a bundle, and return the results that `process` has not returned yet."""

    def teardown(self) -> None:
        """Close the resources of the work, such as threads and files."""


class ChainStep(ABC):
    """A step of the chain: a description from which each worker makes a `StepWork`."""

    elements: ClassVar[Any] = Any
    """Type of the emitted elements."""

    begins: ClassVar[bool] = False
    """Whether the step starts the chain. Its only input is then one element without content."""

    takes_blocks: bool = False
    """Whether the step takes records as `sources.forms.RecordBlocks`, which `ReadTasks` gives if possible."""

    @abstractmethod
    def make_work(self, values: ChainValues) -> StepWork:
        """Return the work of the step."""

    def parts(self) -> Sequence[tuple[str, ChainStep]]:
        """Return labels and steps, in order, that run for this step: itself, and helper steps before and after it."""
        return [(type(self).__name__, self)]

    def display_data(self) -> dict[str, Any]:
        """Return the values that consoles of runners show."""
        return {}


class Spread(ChainStep):
    """Spread elements over all workers of a runner. The next step starts after this step has received all elements."""

    def make_work(self, values: ChainValues) -> StepWork:  # noqa: ARG002
        """Return work that passes elements unchanged, for a runner that spreads elements itself."""
        return Pass()


class Pass(StepWork):
    """Pass elements unchanged."""

    def process(self, element: Any) -> list[Any]:
        return [element]


class Works:
    """The works of consecutive steps in one worker. A result passes all later steps before the next is computed."""

    def __init__(self, works: Sequence[StepWork]) -> None:
        self._works = works
        self._is_set_up = False

    def run(self, elements: Iterable[Any]) -> None:
        """Process elements as one bundle. The works are set up at the first element; without elements they are not."""
        has_begun = False
        for element in elements:
            if not has_begun:
                self._begin()
                has_begun = True
            self._push(0, element)
        if has_begun:
            for place, work in enumerate(self._works):
                for result in work.finish_bundle() or ():
                    self._push(place + 1, result)

    def close(self) -> None:
        """Call `teardown` of each work, if they were set up."""
        if self._is_set_up:
            for work in self._works:
                work.teardown()

    def _begin(self) -> None:
        if not self._is_set_up:
            for work in self._works:
                work.setup()
            self._is_set_up = True
        for work in self._works:
            work.start_bundle()

    def _push(self, place: int, element: Any) -> None:
        if place < len(self._works):
            for result in self._works[place].process(element) or ():
                self._push(place + 1, result)


class Emit(StepWork):
    """Emit given elements, in place of the one element with which a runner starts the chain."""

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
