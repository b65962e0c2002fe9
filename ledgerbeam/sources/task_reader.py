"""Reading the records of a task: by position with `TaskReader`, and their raw bytes with `RawSpan`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io import OffsetFormat
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.stat import Marks, SourceWatch
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import Source, Task
from ledgerbeam.sources.forms import RecordBlocks, listed
from ledgerbeam.sources.kind import Opened, SourceKind, Sources

OPEN_READERS = 16


class TaskReader:
    """Reads the records of tasks, and keeps the readers of the last few sources open. Thread-safe."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._open: OrderedDict[bytes, tuple[Marks, Opened]] = OrderedDict()
        self._opening = threading.Lock()

    def read(self, task: Task) -> Any:
        """Return the records of `task`, in order: one ranged read of the index, one of the data.

        They are `RecordBlocks`, a list, or a `pyarrow.Table`, depending on the form of the sources.

        Raises:
            ChangedSourceError: The source changed since it was listed, or changes meanwhile.
            SourceError: A record cannot be decoded; the message names it. For `RecordBlocks`, a pass raises it.
            IndexError_: The index does not fit the source.
            StorageError: The source cannot be read.
        """
        with self._watched(task) as opened:
            return opened.read_span(task.start, task.stop)

    def fetching(self, task: Task) -> Callable[[], Any] | None:
        """Return a function that reads like `read` if this only fetches bytes, else returns None.

        For local files return None.
        """
        return None if all(map(is_local, task.source.urls)) else partial(self._fetch, task)

    def _fetch(self, task: Task) -> Any:
        with self._watched(task) as opened:
            return opened.read_span(task.start, task.stop) if opened.fetches else None

    def read_each(self, task: Task) -> Any:
        """Return the records of `task`, with a `sources.Unreadable` for each that cannot be decoded; see `read`.

        Tables become a `PartialTable`; for `RecordBlocks` see `RecordBlocks.marking`.
        """
        with self._watched(task) as opened:
            return opened.read_each(task.start, task.stop)

    def read_raw(self, task: Task) -> list[RawRecord]:
        """Return the raw bytes of the records of `task`; see `read`.

        Raises:
            UnsupportedShapeError: Its source is a graph.
        """
        with self._watched(task) as opened:
            return opened.read_raw(task.start, task.stop)

    @contextmanager
    def _watched(self, task: Task) -> Iterator[Opened]:
        source = task.source
        kind = self._sources.kind_of(source)
        with SourceWatch(kind.files(source)) as watch:
            yield self._opened(kind, source, watch.marks)

    def _opened(self, kind: SourceKind, source: Source, marks: Marks) -> Opened:
        """Return the reader of a source. A reader that is open is reused if its local files have the same marks."""
        with self._opening:
            known, opened = self._open.pop(source.id, (None, None))
            if opened is None or known != marks:
                if opened is not None:
                    opened.close()
                opened = kind.open(source)
            self._open[source.id] = marks, opened
            if len(self._open) > OPEN_READERS:
                self._open.popitem(last=False)
            return opened


class RawSpan:
    """Reads the bytes from which the records of a task were decoded, on request: `Task.raw`.

    It uses the reader that read the records. A pickled `RawSpan` opens the source again, and reads a stream from
    its start. `streamed` has the span and the format of a task whose source is read in one pass.
    """

    def __init__(
        self,
        read: Callable[[], list[RawRecord]],
        sources: Sources,
        task: Task,
        streamed: tuple[StreamSpan, OffsetFormat] | None = None,
    ) -> None:
        self._read: Callable[[], list[RawRecord]] | None = read
        self._sources = sources
        self._task = task
        self._streamed = streamed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}

    def __call__(self) -> list[RawRecord]:
        """Return the raw bytes of the records; raises like `TaskReader.read_raw`."""
        if self._read is not None:
            return self._read()
        if self._streamed is None:
            return TaskReader(self._sources).read_raw(self._task)
        source, (span, kind) = self._task.source, self._streamed
        with self._sources.kind_of(source).open_stream(source, kind) as reader:
            return reader.read_raw(span)


def read_records(read: Callable[[], Any], read_each: Callable[[], Any], *, marks: bool, in_blocks: bool) -> Any:
    """Return the records of a task, in the form that a function takes.

    With `marks`, an `Unreadable` takes the place of each record that cannot be decoded; `read_each` is called only
    after `read` raised RecordError. `RecordBlocks` become a list unless the function takes blocks.
    """
    try:
        records = read()
    except RecordError:
        if not marks:
            raise
        records = read_each()
    if isinstance(records, RecordBlocks) and marks:
        records = records.marking()
    return records if in_blocks else listed(records)
