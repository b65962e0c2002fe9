"""The schedule of a run: the way of planned tasks to the workers that do them.

Most runners hand out tasks themselves. A runner that schedules tasks gives the chain a `Schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import apache_beam as beam

from ledgerbeam.io import OffsetFormat
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.transforms.chain.base import ChainTransform, ChainValues


@dataclass(frozen=True)
class StreamedTasks:
    """The remaining tasks of one source, which a single pass over the source reads in order.

    Attributes:
        tasks: The tasks, in order.
        spans: The span to read for each task.
        format: The format that decodes the spans.
    """

    tasks: tuple[Task, ...]
    spans: tuple[StreamSpan, ...]
    format: OffsetFormat


Planned: TypeAlias = Task | NoneTask | FailedTask | StreamedTasks  # an element of the plan of a source


class PostTasks(ChainTransform):
    """Hand planned tasks to the schedule of the run. Without a schedule they pass."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return the DoFn of the schedule."""
        return _Pass() if values.schedule is None else values.schedule.post(values.ledger)


class DrawTasks(ChainTransform):
    """Take tasks from the schedule of the run, except recorded ones. Without a schedule they pass."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return the DoFn of the schedule."""
        return _Pass() if values.schedule is None else values.schedule.draw(values.ledger)


class _Pass(beam.DoFn):
    def process(self, element: Planned) -> Iterator[Planned]:
        yield element
