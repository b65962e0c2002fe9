"""Counts of the suite, the checks that count, and the result of a series of kills."""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from ledgerbeam._base.names import REJECTS
from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.summaries import merged_statistics
from tests.fault.corpus import (
    TASKS,
    Clean,
    Content,
    TaskName,
    calls_of,
    content_of,
    contents_below,
    source_names,
    task_of,
)

FLUSH_SECONDS = 0.2  # the flush interval of the suite's jobs
COMMIT_SECONDS = 0.5
"""What publishing a finished task and committing it may take beyond the flush interval, on a machine with no more to do
than it has cores for; in proportion more on a busier one."""


WRONG = ("false_completions", "lost", "duplicated", "rework", "miscounted")


@dataclass
class Findings:
    """What was found wrong with one job. Sets, so that a fault that is seen after every kill counts once.

    Attributes:
        false_completions: Sources marked complete without all of their outputs.
        lost: Outputs that were recorded, or are owed at the end, and do not exist with their content.
        duplicated: Outputs that the clean run does not have.
        rework: Tasks executed again although their completion was recorded, or had to be.
        redone: Tasks begun more than once, for whatever reason, which alone is nothing wrong.
        miscounted: Sources of which the ledger has other counts than they come to, and statistics with other values.
    """

    false_completions: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    rework: set[TaskName] = field(default_factory=set)
    redone: set[TaskName] = field(default_factory=set)
    miscounted: set[str] = field(default_factory=set)

    @property
    def bad(self) -> bool:
        return any(getattr(self, kind) for kind in WRONG)

    def add(self, other: Findings) -> None:
        for item in fields(self):
            getattr(self, item.name).update(getattr(other, item.name))


@dataclass(frozen=True)
class JobFiles:
    sources: Path
    outputs: Path
    trace: Path
    ledger: str

    @classmethod
    def below(cls, folder: Path, ledger: str | None = None) -> JobFiles:
        return cls(folder / "in", folder / "out", folder / "trace", ledger or str(folder / "ledger"))


class _Recorded(NamedTuple):
    """What a ledger holds of a source: whether it is complete, the ordinals of finished tasks, outputs and counts."""

    complete: bool
    tasks: set[int]
    outputs: dict[str, Content]
    counts: RecordCounts | None


def check_ledger(files: JobFiles, clean: Clean, findings: Findings) -> set[TaskName]:
    """Check a ledger against the files, also while its job runs: what is recorded must be there."""
    recorded = _read_ledger(files)
    for source, found in recorded.items():
        owed = clean.outputs_of(source)
        missing = {name for name, content in found.outputs.items() if content_of(files.outputs / name) != content}
        findings.lost |= missing
        findings.duplicated |= found.outputs.keys() - owed.keys()
        if found.complete and (missing or _comparable(found.outputs) != _comparable(owed)):
            findings.false_completions.add(source)
        if found.complete and found.counts != clean.counts[source]:
            findings.miscounted.add(source)
    return {TaskName(source, ordinal) for source, found in recorded.items() for ordinal in found.tasks}


def _comparable(outputs: Mapping[str, Content]) -> dict[str, Content | None]:
    """Leave out the contents of rejected records, in which the paths of sources stand; `check_end` compares them."""
    return {name: None if name.startswith(REJECTS) else content for name, content in outputs.items()}


def partly_recorded(files: JobFiles) -> bool:
    """Return whether a source is not complete, of which tasks are recorded."""
    return any(found.tasks and not found.complete for found in _read_ledger(files).values())


def _read_ledger(files: JobFiles) -> dict[str, _Recorded]:
    infos = [stat(str(files.sources / name)) for name in source_names()]
    ids = [Source(info.url, info.size, info.version).id for info in infos]
    try:
        opened = open_store(files.ledger, create=False, read_only=True)
    except LedgerNotFoundError:
        return {}  # the job was killed before it had made one
    with closing(opened) as store:
        # In this order: what is complete in an older view has all of its outputs in a newer one.
        complete = store.completed_mask(ids)
        counts = {Path(row.url).name: row.counts for row in store.sources()}
        applied = [store.applied(source) for source in ids]
        outputs: dict[str, dict[str, Content]] = defaultdict(dict)
        for row in store.outputs(ordered=False):
            outputs[Path(row.url).name][row.output.name] = Content(row.output.size, row.output.checksum)
    recorded = {}
    for name, source, done, entries in zip(source_names(), ids, complete, applied, strict=True):
        tasks = {i for i in range(TASKS) if done or node_id(source, ((i, TASKS),)) in entries}
        recorded[name] = _Recorded(done, tasks, outputs[name], counts.get(name))
    return recorded


def check_end(files: JobFiles, clean: Clean, findings: Findings) -> None:
    """Check what a finished job has left: the files of the clean run, and nothing else."""
    for folder, owed in ((files.outputs, clean.outputs), (files.sources, clean.sources)):
        found = contents_below(folder)
        findings.lost |= {name for name, content in owed.items() if found.get(name) != content}
        findings.duplicated |= found.keys() - owed.keys()
    with closing(open_store(files.ledger, create=False, read_only=True)) as store:
        records, statistics = store.status()["records"], merged_statistics(store)
    if records != functools.reduce(RecordCounts.plus, clean.counts.values()).as_dict():
        findings.miscounted.add("the whole job")
    found = {name: statistic.value() for name, statistic in statistics.items()}
    findings.miscounted |= {name for name, owed in clean.statistics.items() if not _agree(found.get(name), owed)}


def _agree(found: Any, owed: Any) -> bool:
    """Return whether a statistic is what it has to be: the number of distinct values within 5 %, the rest exactly."""
    if isinstance(owed, dict):
        return isinstance(found, dict) and all(found.get(name) == value for name, value in owed.items())
    return found == owed or (isinstance(found, float) and abs(found - owed) < 0.05 * owed)


@dataclass
class Timeline:
    """What is known of a job's course besides its trace; times are CLOCK_MONOTONIC in nanoseconds."""

    recorded: dict[TaskName, int] = field(default_factory=dict)
    alive: dict[int, int] = field(default_factory=dict)

    def see_alive(self, pids: Iterable[int], now: int) -> None:
        self.alive.update(dict.fromkeys(pids, now))

    def see_recorded(self, tasks: Iterable[TaskName], now: int) -> None:
        for task in tasks:
            self.recorded.setdefault(task, now)


@dataclass
class _Execution:
    """What one process did of one task, by its trace."""

    pid: int
    records: list[str] = field(default_factory=list)
    first: int = 0
    last: int = 0

    @property
    def finished(self) -> bool:
        return len(set(self.records)) == calls_of(task_of(self.records[0]))


def check_trace(trace: Path, timeline: Timeline, findings: Findings) -> int:
    """Count what was executed again, and what of it should not have been.

    A task must not be executed again once it is recorded; nor by the same process; nor if the process that finished
    it lived on for longer than a flush interval and a commit.
    """
    executions = _executions(trace)
    alive = dict(timeline.alive)
    for of_task in executions.values():
        for one in of_task:
            alive[one.pid] = max(alive.get(one.pid, 0), one.last)
    for task, of_task in executions.items():
        if len(of_task) > 1 or any(len(set(one.records)) < len(one.records) for one in of_task):
            findings.redone.add(task)
        if _is_rework(of_task, timeline.recorded.get(task), alive):
            findings.rework.add(task)
    return len(executions)


def recording_seconds() -> float:
    """Return how long after its end a task may be unrecorded: a flush interval and a commit, slower under load."""
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return FLUSH_SECONDS + COMMIT_SECONDS * busy


def _is_rework(executions: list[_Execution], recorded: int | None, alive: Mapping[int, int]) -> bool:
    if any(len(set(one.records)) < len(one.records) for one in executions):
        return True
    if recorded is not None and executions[-1].last > recorded:
        return True
    allowed = recording_seconds() * 1e9
    return any(one.finished and alive[one.pid] - one.last > allowed for one in executions[:-1])


def _executions(trace: Path) -> dict[TaskName, list[_Execution]]:
    """Group the lines of a trace by task and process; the executions of a task in the order of their ends."""
    found: dict[TaskName, dict[int, _Execution]] = defaultdict(dict)
    lines = trace.read_text(encoding="utf-8").splitlines() if trace.exists() else []
    for line in lines:
        record, pid, time = line.split()
        one = found[task_of(record)].setdefault(int(pid), _Execution(int(pid), first=int(time)))
        one.records.append(record)
        one.last = int(time)
    return {task: sorted(of_task.values(), key=lambda one: one.last) for task, of_task in found.items()}


@dataclass
class Figures:
    kills: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    found: Counter[str] = field(default_factory=Counter)  # by the names of `Findings`
    tasks: int = 0
    quarantined: int = 0
    anomalies: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (any(self.found[kind] for kind in WRONG) or self.anomalies)

    def add(self, findings: Findings, tasks: int) -> None:
        self.jobs += 1
        self.tasks += tasks
        self.found += Counter({item.name: len(getattr(findings, item.name)) for item in fields(findings)})

    def __add__(self, other: Figures) -> Figures:
        pairs = ((getattr(self, item.name), getattr(other, item.name)) for item in fields(self))
        return Figures(*(mine + theirs for mine, theirs in pairs))

    def line(self) -> str:
        return ", ".join([f"kills {self.kills}", *(f"{k.replace('_', ' ')} {self.found[k]}" for k in WRONG)])

    def details(self) -> str:
        targets = ", ".join(f"{name} {count}" for name, count in sorted(self.targets.items()))
        return (
            f"{self.jobs} jobs; killed: {targets or 'nothing'}; {self.found['redone']} of {self.tasks} tasks begun "
            f"more than once, {self.quarantined} quarantined, {len(self.anomalies)} anomalies"
        )
