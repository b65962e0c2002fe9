"""From published tasks to the ledger: `CommitTasks`, the end of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection

from ledgerbeam.errors import RejectLimitError, UnsupportedShapeError
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.statistics import joined_statistics
from ledgerbeam.transforms._worker import LedgerHandle
from ledgerbeam.transforms.write import WrittenTask

__all__ = ["CommitTasks"]


@dataclass
class CommitTasks(beam.PTransform[PCollection[WrittenTask], PCollection[None]]):
    """Records completions in the ledger, in groups, while the stage runs.

    The outputs must already be durable outside the pipeline. No GroupByKey, Reshuffle, side input or stateful DoFn may
    be between this transform and `ReadTasks`: behind such a barrier nothing is recorded until all work is done.

    Attributes:
        ledger: The job's ledger, with the group commit's limits.
        most_rejected: How many records the tasks of one worker may reject, if the launcher does not read the ledger
            meanwhile; more end the worker with a `RejectLimitError`, once they are recorded. None for any number.
    """

    ledger: LedgerHandle
    most_rejected: int | None = None

    def expand(self, written: PCollection[WrittenTask]) -> PCollection[None]:
        """Apply the transform to written tasks and to the markers of filtered and failed ones."""
        return written | "CommitTasks" >> beam.ParDo(_Commit(self.ledger, self.most_rejected)).with_output_types(
            type(None)
        )

    def display_data(self) -> dict[str, Any]:
        """Show the ledger and the group commit's limits in a runner's console."""
        return {
            "ledger": self.ledger.url,
            "flush_interval": self.ledger.flush_interval,
            "flush_entries": self.ledger.flush_entries,
        }


class _Commit(beam.DoFn):
    def __init__(self, ledger: LedgerHandle, most_rejected: int | None = None) -> None:
        self._ledger = ledger
        self._most_rejected = most_rejected
        self._rejected: dict[bytes, int] = {}  # by task: a bundle that is repeated counts once
        self._tasks = Metrics.counter("ledgerbeam", "tasks_committed")
        self._commit_ms = Metrics.distribution("ledgerbeam", "commit_ms")

    def process(self, element: WrittenTask | NoneTask | FailedTask) -> None:
        with self._ledger.fatal_errors():
            writer = self._ledger.writer()
            if isinstance(element, FailedTask):
                writer.fail(_failure(element))
                return
            leaf = _leaf(element)
            writer.add(leaf)
            if self._most_rejected is not None and leaf.counts is not None and leaf.counts.rejected:
                self._check_rejected(element.task, sum(leaf.counts.rejected.values()), self._most_rejected)
        self._tasks.inc()

    def _check_rejected(self, task: Task, rejected: int, most: int) -> None:
        self._rejected[task.node] = rejected
        found = sum(self._rejected.values())
        if found > most:
            raise RejectLimitError(
                f"{task.name}: expected at most {most:,} rejected records, found {found:,} in what this worker alone "
                "has done. All that is recorded stays: look at them with 'ledgerbeam ledger rejects', then mend the "
                "sources or the function, or run the same command with a higher --on-error reject:N"
            )

    def finish_bundle(self) -> None:
        with self._ledger.fatal_errors():
            result = self._ledger.writer().flush()
        self._commit_ms.update(int(1000 * result.seconds))


def _leaf(element: Any) -> Leaf:
    if isinstance(element, WrittenTask):
        task = element.task
        return Leaf(
            task.source.id,
            task.lineage,
            "published",
            element.outputs,
            element.records,
            element.size,
            element.seconds,
            element.counts,
            joined_statistics(task.statistics, element.statistics),
        )
    if isinstance(element, NoneTask):
        task = element.task
        statistics = joined_statistics(task.statistics, element.statistics)
        return Leaf(task.source.id, task.lineage, "filtered", counts=element.counts, statistics=statistics)
    what = f"a task that was not written ({element.name})" if isinstance(element, Task) else type(element).__name__
    raise UnsupportedShapeError(
        f"CommitTasks received {what}: expected the output of WriteTasks, or a WrittenTask made once its outputs are "
        "durable; recording anything else would lose work in a crash"
    )


def _failure(element: FailedTask) -> Failure:
    task = element.task
    return Failure(task.source.id, task.lineage, task.name, element.reason, element.error, element.broke)
