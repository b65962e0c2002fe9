"""`CommitTasks`: record published tasks in the ledger, at the end of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import RejectLimitError, UnsupportedShapeError
from ledgerbeam.ledger import FailedTask, NoneTask, Output, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.summaries import joined_statistics
from ledgerbeam.ledger.worker.reports import take_times, timed
from ledgerbeam.ledger.worker.run_folders import CommitNotes
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, Emit, LedgerHandle, StepWork
from ledgerbeam.transforms.chain.write import WrittenTask

HELD = 1_000  # maximum number of summaries that a worker holds until they are committed


@dataclass(frozen=True)
class CommittedTask:
    """Summary of a recorded task. `CommitTasks` emits one for each task.

    Attributes:
        source: URL of the source of the task. For a pack, the URL of its first member.
        start: Number of the first record of the task.
        stop: Number of the last record of the task, plus 1.
        records: Number of records written.
        outputs: Published outputs. Names are relative to the output folder. A filtered task has none.
        counts: Counts of kept, dropped and rejected records. None if every record was written without a route.
    """

    source: str
    start: int
    stop: int
    records: int = 0
    outputs: tuple[Output, ...] = ()
    counts: RecordCounts | None = None

    @classmethod
    def of(cls, task: Task, leaf: Leaf) -> CommittedTask:
        """Return the summary of a task with the ledger row `leaf`."""
        return cls(task.source.url, task.start, task.stop, leaf.records, leaf.outputs, leaf.counts)


class CommitStep(ChainStep):
    """Record completed tasks in the ledger, in groups, while the stage runs.

    The outputs must already be durable outside the pipeline. No GroupByKey, Reshuffle, side input or stateful DoFn may
    be between `ReadTasks` and this transform: after such a barrier nothing is recorded until all work is done.

    Emits a `CommittedTask` for each task that this run records. Tasks that earlier runs recorded are not emitted.
    """

    elements = CommittedTask

    def make_work(self, values: ChainValues) -> StepWork:
        """Return the work that records tasks. If the chain has already run, the work only emits the summaries."""
        if values.committed is not None:
            return Emit(values.committed, values.ledger)
        return _Commit(values.require_ledger(), values.most_rejected, has_downstream=values.has_downstream)


class _Commit(StepWork):
    """Record tasks and emit their summaries.

    Transforms after the chain must not see an unrecorded task. So a summary is emitted after the ledger has committed.
    If a worker of the local runner dies, the output of its chain is lost. So such a worker writes each summary into
    the folder of the run before it records the task, and the launcher emits the summaries of recorded tasks.
    """

    def __init__(self, ledger: LedgerHandle, most_rejected: int | None = None, *, has_downstream: bool) -> None:
        self._ledger = ledger
        self._most_rejected = most_rejected
        self._has_downstream = has_downstream
        self._notes: CommitNotes | None = None
        self._held: list[CommittedTask] = []
        self._rejected: dict[bytes, int] = {}  # by task, so that a repeated bundle counts once

    def start_bundle(self) -> None:
        self._held = []

    def process(self, element: WrittenTask | NoneTask | FailedTask) -> list[CommittedTask]:
        with timed("ledger"), self._ledger.fatal_errors():
            self._ledger.check_modules()  # some may have been imported meanwhile
            writer = self._ledger.writer()
            if isinstance(element, FailedTask):
                task = element.task
                writer.add(
                    Failure(task.source.id, task.lineage, task.name, element.reason, element.error, element.broke)
                )
                return []
            leaf = _leaf(element)
            if self._has_downstream:
                self._keep(element.task, leaf)
            writer.add(leaf)
            if self._most_rejected is not None and leaf.counts is not None and leaf.counts.rejected:
                self._check_rejected(element.task, sum(leaf.counts.rejected.values()), self._most_rejected)
            full = len(self._held) >= HELD
            if full:
                writer.flush()
        self.counters.add("tasks_committed")
        return self._released() if full else []

    def finish_bundle(self) -> list[CommittedTask]:
        with timed("ledger"), self._ledger.fatal_errors():
            result = self._ledger.writer().flush()
        self._ledger.note_times(at_once=True)
        for part, seconds in take_times().items():
            if microseconds := round(1e6 * seconds):
                self.counters.add(f"{part}_us", microseconds)
        self.counters.observe("commit_ms", int(1000 * result.seconds))
        return self._released()

    def teardown(self) -> None:
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def _keep(self, task: Task, leaf: Leaf) -> None:
        summary = CommittedTask.of(task, leaf)
        if self._ledger.run_dir is None:
            self._held.append(summary)
            return
        if self._notes is None:
            self._notes = CommitNotes(self._ledger.run_dir)
        self._notes.add(task.source.id, task.node, summary)

    def _released(self) -> list[CommittedTask]:
        held, self._held = self._held, []
        return held

    def _check_rejected(self, task: Task, rejected: int, most: int) -> None:
        self._rejected[task.node] = rejected
        found = sum(self._rejected.values())
        if found > most:
            raise RejectLimitError(
                f"{task.name}: expected at most {most:,} rejected records, found {found:,} in the tasks of this worker "
                "alone. Recorded tasks stay recorded; see the records with 'ledgerbeam ledger rejects', fix the "
                "sources or the function, or run the same command with a higher --on-error reject:N"
            )


def _leaf(element: Any) -> Leaf:
    if isinstance(element, WrittenTask | NoneTask):
        task = element.task
        statistics = joined_statistics(task.statistics, element.statistics)
        if isinstance(element, NoneTask):
            return Leaf(task.source.id, task.lineage, "filtered", counts=element.counts, statistics=statistics)
        written = element.outputs, element.records, element.size, element.seconds
        return Leaf(task.source.id, task.lineage, "published", *written, element.counts, statistics)
    what = f"a task that was not written ({element.name})" if isinstance(element, Task) else type(element).__name__
    raise UnsupportedShapeError(
        f"CommitTasks received {what}: expected the output of WriteTasks, as a crash would lose tasks that are not "
        "written; put WriteTasks before CommitTasks, or emit a WrittenTask after its outputs are durable"
    )
