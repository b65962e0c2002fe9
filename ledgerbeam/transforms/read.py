"""From tasks to tasks that hold their records: `ReadTasks`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection

from ledgerbeam.errors import FunctionError, IndexError_, SourceError, StorageError
from ledgerbeam.io import StreamSpan
from ledgerbeam.io.storage.unchanged import Marks, SourceWatch
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.user_errors import failed_by, message_of
from ledgerbeam.sources import FileSources, Opened, SourceKind, Sources, StreamReader
from ledgerbeam.transforms._worker import LedgerHandle
from ledgerbeam.transforms.plan import StreamedTasks

__all__ = ["ReadTasks", "TaskReader"]

OPEN_READERS = 16


class TaskReader:
    """Reads the records of tasks, with the readers of the last few sources held open.

    Args:
        sources: How sources are opened.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._open: OrderedDict[bytes, tuple[Marks, Opened]] = OrderedDict()

    def read(self, task: Task) -> list[Any]:
        """Return the records of `task`, in order: one ranged read of the index, one of the data.

        Raises:
            ChangedSourceError: If the source is not what was listed, or changes meanwhile.
            SourceError: If a record cannot be decoded; the message names it.
            IndexError_: If the index does not fit the source.
            StorageError: If the source cannot be read.
        """
        source = task.source
        kind = self._sources.kind_of(source)
        with SourceWatch(kind.files(source)) as watch:
            return self._opened(kind, source, watch.marks).read_span(task.start, task.stop)

    def _opened(self, kind: SourceKind, source: Source, marks: Marks) -> Opened:
        """Return the reader of a source; one that is held open is used if its local files have the same marks."""
        known, opened = self._open.pop(source.id, (None, None))
        if opened is None or known != marks:
            if opened is not None:
                opened.close()
            opened = kind.open(source)
        self._open[source.id] = marks, opened
        if len(self._open) > OPEN_READERS:
            self._open.popitem(last=False)
        return opened


@dataclass
class ReadTasks(beam.PTransform[PCollection[Task], PCollection[Task]]):
    """Read each task's records; a task that cannot be read becomes a `FailedTask`.

    Attributes:
        sources: How sources are opened, as given to `PlanTasks`.
        ledger: The job's ledger; it records which task a process worked on when it died.
    """

    sources: Sources = field(default_factory=FileSources)
    ledger: LedgerHandle | None = None

    def expand(self, tasks: PCollection[Task]) -> PCollection[Task]:
        """Apply the transform to planned tasks."""
        return tasks | "ReadTasks" >> beam.ParDo(_Read(self.sources, self.ledger)).with_output_types(Any)


class _Read(beam.DoFn):
    def __init__(self, sources: Sources, ledger: LedgerHandle | None) -> None:
        self._sources = sources
        self._ledger = ledger
        self._reader: TaskReader | None = None
        self._records = Metrics.counter("ledgerbeam", "records_read")
        self._blank = Metrics.counter("ledgerbeam", "blank_lines_skipped")

    def process(self, element: Task | NoneTask | FailedTask | StreamedTasks) -> Iterator[Task | NoneTask | FailedTask]:
        match element:
            case StreamedTasks():
                yield from self._read_stream(element)
            case Task():
                if self._reader is None:
                    self._reader = TaskReader(self._sources)
                # The body spans the yield: downstream, in the same fused stage, the task is processed and written.
                with self._working_on(element):
                    yield self._read(element, partial(self._reader.read, element))
            case _:
                yield element

    def _read_stream(self, streamed: StreamedTasks) -> Iterator[Task | FailedTask]:
        source = streamed.tasks[0].source
        with ExitStack() as stack:
            reader: StreamReader | None = None

            def read(span: StreamSpan) -> list[Any]:
                nonlocal reader
                if reader is None:
                    opened = self._sources.kind_of(source).open_stream(source, streamed.format)
                    reader = stack.enter_context(opened)
                return reader(span)

            for task, span in zip(streamed.tasks, streamed.spans, strict=True):
                with self._working_on(task):
                    yield self._read(task, partial(read, span))

    def _working_on(self, task: Task) -> AbstractContextManager[None]:
        return nullcontext() if self._ledger is None else self._ledger.working_on([task])

    def _read(self, task: Task, read: Callable[[], list[Any]]) -> Task | FailedTask:
        started = time.monotonic()
        try:
            records = read()
        except (SourceError, IndexError_, StorageError, FunctionError) as error:
            return failed_by(error, task, message_of(error))
        self._records.inc(len(records))
        if self._sources.kind_of(task.source).counts_blanks:
            self._blank.inc(task.stop - task.start - len(records))
        return task.replace(records=records, started=started)

    def teardown(self) -> None:
        self._reader = None
