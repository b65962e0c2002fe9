"""From sources to tasks: `PlanTasks` cuts each source into spans of records and leaves out those already done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from numpy.typing import NDArray

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, UsageError
from ledgerbeam.io import StreamSpan, is_streamed
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import FailedTask, NoneTask, PendingSource, Source, Task
from ledgerbeam.transforms._worker import LedgerHandle
from ledgerbeam.transforms.source_format import SourceFormat, looked_at

__all__ = ["PlanTasks", "StreamedTasks", "plan_spans"]


@dataclass(frozen=True)
class StreamedTasks:
    """The tasks of a compressed source that are left, one element: who reads them reads the source once, in order.

    Attributes:
        tasks: In order.
        spans: What to read for each.
        paired: Whether the samples of a tar are pairs.
    """

    tasks: tuple[Task, ...]
    spans: tuple[StreamSpan, ...]
    paired: bool


def plan_spans(
    offsets: NDArray[np.uint64], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Cuts records into spans, as a pure function of the index.

    Args:
        offsets: N+1 ascending byte offsets.
        task_bytes: Size of a span in bytes; a span holds the records that begin within one multiple of it, so it is
            exceeded by at most one record.
        task_records: Records of a span, at most. Both limits may be given.

    Returns:
        Half-open record ranges in order, together all N records; empty for N = 0.
    """
    count = len(offsets) - 1
    cuts = [np.array([0, count], np.int64)]
    if task_bytes:
        start, stop = int(offsets[0]), int(offsets[-1])
        marks = np.arange(start, stop, task_bytes, dtype=np.uint64)
        cuts.append(np.searchsorted(offsets[:-1], marks).astype(np.int64))
    if task_records:
        cuts.append(np.arange(0, count, task_records))
    edges = np.unique(np.concatenate(cuts)).tolist()
    return list(pairwise(edges))


@dataclass
class PlanTasks(beam.PTransform[PCollection[PendingSource], PCollection[Task]]):
    """Cuts each source into tasks, spans of records or of places of a graph, and leaves out those that are done.

    The tasks of a compressed source stay together, as `StreamedTasks`, for only who reads it from its begin finds them.
    A source that has nothing to read becomes one `NoneTask`, one that cannot be opened one `FailedTask`; both pass
    through the rest of the chain to the ledger.

    Attributes:
        ledger: The job's ledger; lets a death of the process be laid to the source it worked on.
        source_format: How sources are opened and where their indexes lie; or the graph whose passes they are.
        task_bytes: Size of a task in bytes; 16 MiB if neither limit is given.
        task_records: Records of a task, at most.
    """

    ledger: LedgerHandle | None = None
    source_format: SourceFormat | GraphSource = field(default_factory=SourceFormat)
    task_bytes: int | None = None
    task_records: int | None = None

    def __post_init__(self) -> None:
        for name in ("task_bytes", "task_records"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, found {value}")
        if self.task_bytes is None and self.task_records is None:
            self.task_bytes = 16 * 2**20

    def expand(self, sources: PCollection[PendingSource]) -> PCollection[Task]:
        """Applies the transform to what `SkipCompleted` gives, or to plain `Source` values, of which all is planned."""
        plan = _Plan(self.ledger, self.source_format, self.task_bytes, self.task_records)
        return sources | "PlanTasks" >> beam.ParDo(plan).with_output_types(Any)

    def display_data(self) -> dict[str, Any]:
        """Shows the task limits in a runner's console."""
        return {"task_bytes": self.task_bytes or 0, "task_records": self.task_records or 0}


class _Plan(beam.DoFn):
    def __init__(
        self,
        ledger: LedgerHandle | None,
        source_format: SourceFormat | GraphSource,
        task_bytes: int | None,
        task_records: int | None,
    ) -> None:
        self._ledger = ledger
        self._format = source_format
        self._limits = {"task_bytes": task_bytes, "task_records": task_records}
        self._planned = Metrics.counter("ledgerbeam", "tasks_planned")
        self._skipped = Metrics.counter("ledgerbeam", "tasks_skipped")

    def process(self, element: PendingSource | Source) -> Iterator[Task | NoneTask | FailedTask | StreamedTasks]:
        source = PendingSource.of(element)
        whole = Task(source.source, 0, 0)
        if source.has_quarantined(whole):
            return
        if self._ledger is None:
            planned = self._plan(whole)
        else:
            with self._ledger.fatal_errors(), self._ledger.working_on([whole]):
                planned = self._plan(whole, changed=source.replaces)
        streamed = isinstance(planned, StreamedTasks)
        left: list[int] = []
        for number, item in enumerate(planned.tasks if isinstance(planned, StreamedTasks) else planned):
            if isinstance(item, Task) and (source.has_quarantined(item) or source.has_done(item)):
                self._skipped.inc()
                continue
            self._planned.inc()
            if streamed:
                left.append(number)
            else:
                yield item
        if left and isinstance(planned, StreamedTasks):
            yield StreamedTasks(
                tuple(planned.tasks[number] for number in left),
                tuple(planned.spans[number] for number in left),
                planned.paired,
            )

    def _plan(self, whole: Task, *, changed: bool = False) -> list[Task | NoneTask | FailedTask] | StreamedTasks:
        source = whole.source
        kind = self._format
        try:
            if isinstance(kind, SourceFormat) and (kind.shar or not source.members):  # a pack is read by one task
                source = looked_at(source)
            if isinstance(kind, SourceFormat) and not source.members and is_streamed(source.url):
                offsets = kind.find_index(source, changed=changed)
                if offsets is None:
                    return self._plan_stream(source, kind) or [NoneTask(whole)]
                spans = plan_spans(offsets, **self._limits)
            else:
                spans = self._spans(source, changed=changed)
        except (DiskFullError, LedgerError):
            raise
        except LedgerbeamError as error:
            return [FailedTask(whole, type(error).__name__, str(error))]
        if not spans:
            return [NoneTask(whole)]
        return list(_tasks(source, spans))

    def _spans(self, source: Source, *, changed: bool) -> list[tuple[int, int]]:
        if isinstance(self._format, GraphSource):
            return self._format.spans(source.size, **self._limits)
        if self._format.shar:
            return plan_spans(self._format.load_shard_index(source, changed=changed), **self._limits)
        if source.members:
            return [(0, len(source.members))]
        return plan_spans(self._format.load_index(source, changed=changed), **self._limits)

    def _plan_stream(self, source: Source, kind: SourceFormat) -> StreamedTasks | None:
        found = kind.scan(source)
        spans = plan_spans(found.offsets, **self._limits)
        if not spans:
            return None
        return StreamedTasks(
            tuple(_tasks(source, spans)),
            tuple(
                StreamSpan(start, stop - start, int(found.offsets[start]), int(found.offsets[stop]))
                for start, stop in spans
            ),
            found.paired,
        )


def _tasks(source: Source, spans: list[tuple[int, int]]) -> Iterator[Task]:
    for ordinal, (start, stop) in enumerate(spans):
        yield Task(source, start, stop, ((ordinal, len(spans)),))
