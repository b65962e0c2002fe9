"""`ReadTasks`: read the records of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, get_args

from ledgerbeam.errors import FunctionError, IndexError_, SourceError, StorageError, UsageError
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sources import Sources
from ledgerbeam.sources.forms import OnError, RecordBlocks, read_records
from ledgerbeam.sources.kind import RawSpan, TaskReader
from ledgerbeam.transforms.chain.base import TASKS, ChainStep, ChainValues, LedgerHandle, StepWork, working_on
from ledgerbeam.transforms.chain.schedule import StreamedTasks, this_overlap
from ledgerbeam.user_code.guards import failed_by, message_of


def _read_fetched(fetched: Future[Any] | None, read: Callable[[], Any]) -> Any:
    """Return the result of a fetch that was started ahead, or raise its error. Without a fetch, call `read`."""
    found = None if fetched is None else fetched.result()
    return read() if found is None else found


@dataclass
class ReadStep(ChainStep):
    """Read the records of each task. A task that cannot be read becomes a `FailedTask`.

    Attributes:
        on_error: ``fail`` fails the task of a record that cannot be decoded; ``reject`` puts an `Unreadable` in the
            place of the record. Any other problem, such as a truncated archive, an index that does not match or a
            changed source, fails the task in both cases.

    Raises:
        UsageError: If `on_error` has another value.
    """

    elements = TASKS

    on_error: OnError = "fail"

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise UsageError(f"ReadTasks: on_error: expected {' or '.join(get_args(OnError))}, found {self.on_error!r}")

    def make_work(self, values: ChainValues) -> StepWork:
        return _Read(values.sources, values.ledger, self.on_error, in_blocks=values.in_blocks)


class _Read(StepWork):
    def __init__(
        self, sources: Sources, ledger: LedgerHandle | None, on_error: OnError = "fail", *, in_blocks: bool = False
    ) -> None:
        self._in_blocks = in_blocks
        self._sources = sources
        self._ledger = ledger
        self._rejects = on_error == "reject"
        self._reader: TaskReader | None = None
        self._later: dict[bytes, Task | FailedTask] = {}  # read before their turn

    def process(self, element: Task | NoneTask | FailedTask | StreamedTasks) -> Iterator[Task | NoneTask | FailedTask]:
        match element:
            case StreamedTasks():
                yield from self._read_stream(element)
            case Task():
                if self._reader is None:
                    self._reader = TaskReader(self._sources)
                reader = self._reader
                overlap = this_overlap()
                fetched = overlap.fetched(element, reader.fetching)
                read = partial(_read_fetched, fetched, partial(reader.read, element))
                # The body includes the yield: the same fused stage processes and writes the task meanwhile.
                raw = RawSpan(partial(reader.read_raw, element), self._sources, element)
                overlap.records_of = self._records_of
                later = self._later.pop(element.node, None)
                with working_on(self._ledger, [element]):
                    if isinstance(later, Task):
                        found: Task | FailedTask = later.replace(started=time.monotonic())
                    else:
                        self._later.clear()
                        found = self._read(element, read, partial(reader.read_each, element), raw)
                    overlap.read = found.records if isinstance(found, Task) else None
                    yield found
                    overlap.read = None
                    self._count(found)
            case _:
                yield element

    def _records_of(self, task: Task) -> Any:
        """Read the records of a later task; see `Overlap`."""
        if task.node not in self._later:
            reader = self._reader or TaskReader(self._sources)
            raw = RawSpan(partial(reader.read_raw, task), self._sources, task)
            read = partial(_read_fetched, this_overlap().fetching(task), partial(reader.read, task))
            self._later[task.node] = self._read(task, read, partial(reader.read_each, task), raw)
        found = self._later[task.node]
        return found.records if isinstance(found, Task) else ()

    def _read_stream(self, streamed: StreamedTasks) -> Iterator[Task | FailedTask]:
        source = streamed.tasks[0].source
        with ExitStack() as stack:
            # The first read opens the stream.
            opened = cache(
                lambda: stack.enter_context(self._sources.kind_of(source).open_stream(source, streamed.format))
            )
            for task, span in zip(streamed.tasks, streamed.spans, strict=True):

                def call(method: str, span: StreamSpan = span) -> Any:
                    return getattr(opened(), method)(span)

                raw = RawSpan(partial(call, "read_raw"), self._sources, task, (span, streamed.format))
                with working_on(self._ledger, [task]):
                    found = self._read(task, partial(call, "read"), partial(call, "read_each"), raw)
                    yield found
                    self._count(found)

    def _read(
        self, task: Task, read: Callable[[], Any], read_each: Callable[[], Any], raw: RawSpan | None = None
    ) -> Task | FailedTask:
        started = time.monotonic()
        try:
            with timed("read"):
                records = read_records(read, read_each, marks=self._rejects, in_blocks=self._in_blocks)
        except (SourceError, IndexError_, StorageError, FunctionError) as error:
            return failed_by(error, task, message_of(error))
        # Functions that take blocks count their records themselves.
        number = len(records) if isinstance(records, list) else None
        return task.replace(records=records, started=started, raw=raw, read=number)

    def _count(self, read: Task | FailedTask) -> None:
        """Add a task to the counters after the chain has processed it: only then all blocks of records are decoded."""
        if not isinstance(read, Task):
            return
        records = read.records.passed if isinstance(read.records, RecordBlocks) else len(read.records)
        if records is not None:  # None: the task failed before all blocks were decoded
            self.counters.add("records_read", records)
            missing = read.stop - read.start - records
            if missing and self._sources.kind_of(read.source).counts_blanks:
                self.counters.add("blank_lines_skipped", missing)

    def teardown(self) -> None:
        self._reader = None
