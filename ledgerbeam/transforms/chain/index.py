"""`PlanIndexes` and `BuildIndexes`: build and publish the indexes of sources.

A large source of lines is divided into byte ranges and one assembling task. The task of a range writes the offsets in
it to a file in the work folder of the ledger: a part of the index. The assembling task is planned after the tasks of
all ranges are recorded. For this, the launcher runs the chain again for open sources, so the chain needs no barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import escape
from shlex import quote
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerDamagedError, LedgerError, SourceNotFoundError
from ledgerbeam.io import build_index, publish_bytes
from ledgerbeam.io.any_source import seek_points_of
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.index.newlines import assemble_jsonl_index, scan_newlines
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import SourceWatch, require_listed
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import FailedTask, Output, Source, Task
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sources import FileSources
from ledgerbeam.sources.kind import listed_file, with_file_marks
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, LedgerHandle, StepWork
from ledgerbeam.transforms.chain.plan import Planner
from ledgerbeam.transforms.chain.write import WrittenTask

PART_SUFFIX = ".part"


def part_name(source: Source, ordinal: int) -> str:
    """Return the file name of the part of the index with the offsets in byte range `ordinal` of `source`."""
    return f"{source.id.hex()}-{ordinal:06d}{PART_SUFFIX}"


@dataclass
class PlanIndexesStep(Planner):
    """Plan index tasks: byte ranges, the assembly of finished ranges, or whole sources.

    Attributes:
        range_bytes: Size of a byte range. A larger source of lines is divided into ranges.
    """

    range_bytes: int = 256 * 2**20

    def make_work(self, values: ChainValues) -> StepWork:
        return _PlanIndexes(self.range_bytes, cast(FileSources, values.sources))

    def display_data(self) -> dict[str, Any]:
        return {"range_bytes": self.range_bytes}


class _PlanIndexes(StepWork):
    def __init__(self, range_bytes: int, sources: FileSources) -> None:
        self._range_bytes = range_bytes
        self._sources = sources

    def process(self, element: PendingSource | Source) -> Iterator[Task | FailedTask]:
        source = PendingSource.of(element)
        try:
            *ranges, last = self._tasks(with_file_marks(source.source, self._sources.storage_options))
        except LedgerbeamError as error:
            yield FailedTask(Task(source.source, 0, source.source.size), type(error).__name__, str(error))
            return
        owing = [task for task in ranges if not source.has_done(task)] or [last]
        yield from (task for task in owing if not source.has_quarantined(task))

    def _tasks(self, source: Source) -> list[Task]:
        """Return the tasks of the byte ranges in order, then the task that publishes the index."""
        starts = range(0, source.size, self._range_bytes)
        found = self._sources.type_of(source.url)
        if len(starts) < 2 or found.compression is not None or not found.plain().ends_at_newlines:
            starts = range(0)  # a whole source
        count = len(starts) + 1
        tasks = [
            Task(source, start, min(start + self._range_bytes, source.size), ((i, count),))
            for i, start in enumerate(starts)
        ]
        return [*tasks, Task(source, 0, source.size, ((count - 1, count),))]


@dataclass
class BuildIndexesStep(ChainStep):
    """Run index tasks: find the offsets in a byte range and write them as a part, or publish the index of a source.

    Attributes:
        work: URL of the folder for parts. Every worker must reach it.
        force: Whether to replace any file at the URL of an index, even one that is not an index.
    """

    work: str
    force: bool = False

    def make_work(self, values: ChainValues) -> StepWork:
        return _BuildIndexes(values.require_ledger(), self.work, cast(FileSources, values.sources), force=self.force)


class _BuildIndexes(StepWork):
    def __init__(self, ledger: LedgerHandle, work: str, sources: FileSources, *, force: bool) -> None:
        self._force = force
        self._ledger = ledger
        self._work = work
        self._sources = sources

    def process(self, task: Task | FailedTask) -> Iterator[WrittenTask | FailedTask]:
        if isinstance(task, FailedTask):
            yield task
            return
        with self._ledger.working_on([task]):
            yield self._do(task)

    def _do(self, task: Task) -> WrittenTask | FailedTask:
        started = time.monotonic()
        with timed("index"), self._ledger.fatal_errors():
            try:
                ((ordinal, count),) = task.lineage
                written = self._scan(task, ordinal) if ordinal < count - 1 else self._publish(task, count - 1)
                return replace(written, seconds=time.monotonic() - started)
            except (DiskFullError, LedgerError):
                raise
            except LedgerbeamError as error:
                return FailedTask(task, type(error).__name__, str(error))

    def _scan(self, task: Task, ordinal: int) -> WrittenTask:
        listed = listed_file(task.source)
        with SourceWatch([listed]), RangeReader(listed.url, self._sources.storage_options, listed=listed) as reader:
            part = scan_newlines(reader, task.start, task.stop)
        publish_bytes(
            f"{self._work}/{part_name(task.source, ordinal)}", index_bytes(part), self._sources.storage_options
        )
        return WrittenTask(task, (), 0, task.stop - task.start)

    def _offsets(self, source: Source, parts: int) -> NDArray[np.uint64]:
        if parts:
            return assemble_jsonl_index((self._part(source, i) for i in range(parts)), source.size)
        options, configured = self._sources.storage_options, self._sources.formats
        return build_index(source.url, options, configured=configured, listed=listed_file(source))

    def _part(self, source: Source, ordinal: int) -> NDArray[np.uint64]:
        url = f"{self._work}/{part_name(source, ordinal)}"
        try:
            return np.frombuffer(read_bytes(url, self._sources.storage_options), "<u8")
        except SourceNotFoundError as error:
            raise LedgerDamagedError(
                f"{url}: missing, but the ledger records this byte range of {source.url} as done; forget the source "
                f"and run again: ledgerbeam ledger forget {quote(self._ledger.url)} {quote(escape(source.url))}"
            ) from error

    def _publish(self, task: Task, parts: int) -> WrittenTask:
        listed = listed_file(task.source)
        options = self._sources.storage_options
        where = self._sources.index
        url = where.url_for(listed.url)
        with SourceWatch([listed]):
            offsets = self._offsets(task.source, parts)
            points = seek_points_of(listed.url, url, offsets, options, listed)
            # Check objects too: other tasks read the ranges, and the object may have been replaced meanwhile.
            found = require_listed(listed, options) if parts or is_local(listed.url) else listed
        data = index_bytes(offsets)
        fault_point("publish.before")
        with timed("publish"):
            if points:  # before the index, so that an index always has its seek points
                where.publish(*points, options, not_before_ns=found.modified_ns, force=self._force)
            where.publish(url, data, options, not_before_ns=found.modified_ns, force=self._force)
        fault_point("publish.after")
        records = len(offsets) - 1
        self.counters.add("records_indexed", records)
        scanned = task.source.size if task.lineage == ((0, 1),) else 0  # the ranges have counted their bytes
        outputs = [Output(url, len(data), content_checksum([data]), records, 0)]
        if points:
            outputs.append(Output(points[0], len(points[1]), content_checksum([points[1]]), 0, records))
        return WrittenTask(task, tuple(outputs), records, scanned)
