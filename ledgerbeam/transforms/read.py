"""From tasks to tasks that hold their records: `ReadTasks`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection

from ledgerbeam.errors import FunctionError, IndexError_, SourceError, StorageError
from ledgerbeam.io import Reader, SharSamples, SourceWatch, SpanReader, StreamSpan, read_many_files, split_source
from ledgerbeam.io.storage.stat import changed_error
from ledgerbeam.io.storage.unchanged import Marks
from ledgerbeam.iterators.job_source import GraphReader, GraphSource
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task, failed_by, message_of
from ledgerbeam.transforms._worker import LedgerHandle
from ledgerbeam.transforms.plan import StreamedTasks
from ledgerbeam.transforms.source_format import SourceFormat, listed_files

__all__ = ["ReadTasks", "TaskReader"]

OPEN_READERS = 16


class TaskReader:
    """Reads the records of tasks, with the readers of the last few sources held open.

    Args:
        source_format: How sources are opened.
    """

    def __init__(self, source_format: SourceFormat) -> None:
        self._format = source_format
        self._readers: OrderedDict[bytes, tuple[Marks, Reader | SharSamples]] = OrderedDict()

    def read(self, task: Task) -> list[Any]:
        """Returns the records of `task`, in order: one ranged read of the index, one of the data.

        Raises:
            ChangedSourceError: If the source is not what was listed, or changes meanwhile.
            SourceError: If a record cannot be decoded; the message names it.
            IndexError_: If the index does not fit the source.
            StorageError: If the source cannot be read.
        """
        source = task.source
        with SourceWatch(listed_files(source)) as watch:
            if source.members and not self._format.shar:
                return self._read_pack(source)
            return self._reader(source, watch.marks).read_span(task.start, task.stop)

    @contextmanager
    def open_stream(self, streamed: StreamedTasks) -> Iterator[Callable[[StreamSpan], list[Any]]]:
        """Opens a compressed source, to be read in one pass, a task in memory.

        Yields:
            What reads a span; it raises as `read` does.

        Raises:
            ChangedSourceError: If the source is not what was listed.
        """
        (listed,) = listed_files(streamed.tasks[0].source)
        options, group = self._format.storage_options, self._format.group
        watch = SourceWatch([listed])
        with SpanReader(listed.url, options, group=group, paired=streamed.paired, listed=listed) as reader:

            def read(span: StreamSpan) -> list[Any]:
                with watch:
                    return reader.read(span)

            yield read

    def _read_pack(self, pack: Source) -> list[Any]:
        files = listed_files(pack)
        contents = read_many_files([file.url for file in files], self._format.storage_options, files)
        records: list[Any] = []
        for file, data in zip(files, contents, strict=True):
            if len(data) != file.size:
                raise changed_error(file, f"{len(data)} bytes")
            records.extend(split_source(data, file.url, self._format.group))
        return records

    def _reader(self, source: Source, marks: Marks) -> Reader | SharSamples:
        """Gives the reader of a source whose local files have those marks: one that is open has the same files open."""
        held = self._readers.pop(source.id, None)
        if held is not None and held[0] == marks:
            reader = held[1]
        else:
            if held is not None:
                held[1].close()
            reader = self._format.open_shard(source) if self._format.shar else self._format.open_source(source)
        self._readers[source.id] = marks, reader
        if len(self._readers) > OPEN_READERS:
            self._readers.popitem(last=False)
        return reader


@dataclass
class ReadTasks(beam.PTransform[PCollection[Task], PCollection[Task]]):
    """Reads each task's records; a task that cannot be read becomes a `FailedTask`.

    Attributes:
        source_format: How sources are opened, or their graph, as given to `PlanTasks`.
        ledger: The job's ledger; lets a death of the process be laid to the task it worked on.
    """

    source_format: SourceFormat | GraphSource = field(default_factory=SourceFormat)
    ledger: LedgerHandle | None = None

    def expand(self, tasks: PCollection[Task]) -> PCollection[Task]:
        """Applies the transform to planned tasks."""
        return tasks | "ReadTasks" >> beam.ParDo(_Read(self.source_format, self.ledger)).with_output_types(Any)


class _Read(beam.DoFn):
    def __init__(self, source_format: SourceFormat | GraphSource, ledger: LedgerHandle | None) -> None:
        self._format = source_format
        self._ledger = ledger
        self._reader: TaskReader | GraphReader | None = None
        self._records = Metrics.counter("ledgerbeam", "records_read")
        self._blank = Metrics.counter("ledgerbeam", "blank_lines_skipped")

    def process(self, task: Task | NoneTask | FailedTask | StreamedTasks) -> Iterator[Task | NoneTask | FailedTask]:
        if isinstance(task, StreamedTasks):
            yield from self._read_stream(task)
        elif not isinstance(task, Task):
            yield task
        else:
            # The body spans the yield: downstream of it, in the same fused stage, the task is processed and written.
            with self._working_on(task):
                yield self._read(task, lambda: self._opened().read(task))

    def _read_stream(self, streamed: StreamedTasks) -> Iterator[Task | FailedTask]:
        with ExitStack() as stack:
            reader: Callable[[StreamSpan], list[Any]] | None = None

            def read(span: StreamSpan) -> list[Any]:
                nonlocal reader
                if reader is None:
                    of_sources = cast(TaskReader, self._opened())  # a graph has no streams
                    reader = stack.enter_context(of_sources.open_stream(streamed))
                return reader(span)

            for task, span in zip(streamed.tasks, streamed.spans, strict=True):
                with self._working_on(task):
                    yield self._read(task, partial(read, span))

    def _opened(self) -> TaskReader | GraphReader:
        if self._reader is None:
            kind = self._format
            self._reader = GraphReader(kind) if isinstance(kind, GraphSource) else TaskReader(kind)
        return self._reader

    def _working_on(self, task: Task) -> AbstractContextManager[None]:
        return nullcontext() if self._ledger is None else self._ledger.working_on([task])

    def _read(self, task: Task, read: Callable[[], list[Any]]) -> Task | FailedTask:
        started = time.monotonic()
        try:
            records = read()
        except (SourceError, IndexError_, StorageError, FunctionError) as error:
            return failed_by(error, task, message_of(error))
        self._records.inc(len(records))
        if isinstance(self._reader, TaskReader) and not task.source.members:
            self._blank.inc(task.stop - task.start - len(records))
        return task.replace(records=records, started=started)

    def teardown(self) -> None:
        self._reader = None
