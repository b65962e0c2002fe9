"""Rows of a ledger, as values that stores take and return; and measurements of a run.

The measurements are working time, set-ups of user code, and audits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Literal, NamedTuple

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger.model import values
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic, task_counts, task_statistics
from ledgerbeam.ledger.model.counting import Terminal, check_leaf
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.values import (
    checksum,
    flag,
    id_bytes,
    integer,
    lineage,
    mapping,
    output_name,
    recordable,
    row,
    seconds,
    shown,
    text,
)


@dataclass(frozen=True, slots=True)
class Output:
    """One durable object that a task published.

    Attributes:
        name: Path relative to the output root of the job. No two sources use the same name.
        size: Bytes.
        checksum: Checksum of its content; see `identity`.
        records: Number of its records.
        first: Sort key among the outputs of one source, normally the first record of the task's span.
        nulled: Number of NaN and infinities that were written as null, because the format does not have them.
        route: Its dataset: empty for the main dataset, the name of a route, or one of `names.ASIDE`.

    Raises:
        UnsupportedShapeError: A value cannot be stored in a ledger, for instance a name with ``..``.
    """

    name: str
    size: int
    checksum: str
    records: int
    first: int = 0
    nulled: int = 0
    route: str = ""

    def __post_init__(self) -> None:
        try:
            output_name(self.name)
            checksum(self.checksum)
            values.text(self.route)
            for number in (self.size, self.records, self.first, self.nulled):
                integer(number)
        except ValueError as error:
            raise UnsupportedShapeError(f"output {shown(self.name)} cannot be recorded: {error}") from None


class Totals(NamedTuple):
    """The sum over the recorded leaves of a ledger.

    If a source changed or was forgotten, its share is subtracted. It is added again when the source has run.

    Attributes:
        tasks: Finished tasks, published or filtered.
        records: Records written, over all routes.
        bytes: Bytes written.
        filtered: Filtered tasks, which `tasks` includes.
        milliseconds: Duration of the tasks, added up over all workers.
    """

    tasks: int = 0
    records: int = 0
    bytes: int = 0
    filtered: int = 0
    milliseconds: int = 0

    def plus(self, other: Totals) -> Totals:
        """Return the sum, part by part."""
        return Totals(*map(add, self, other))

    def minus(self, other: Totals) -> Totals:
        """Return the difference, part by part."""
        return Totals(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A finished task. All of its `outputs` must already be durable.

    Raises:
        UnsupportedShapeError: See `counting.check_leaf`; also for a filtered leaf with outputs or records, and for
            counts that do not fit its number of records.
    """

    source_id: bytes
    lineage: Lineage
    kind: Terminal = "published"  # ``published``, or ``filtered`` for a task without output
    outputs: tuple[Output, ...] = ()  # its published outputs; empty if filtered
    records: int = 0  # records written, over all routes; none if filtered
    bytes: int = 0
    seconds: float = 0.0  # duration, from reading to the durable output
    # Counts of its records; None if all records that were read are written, or they were not counted.
    counts: RecordCounts | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)  # statistics of its function, by name

    def __post_init__(self) -> None:
        check_leaf(self.source_id, self.lineage, self.kind)
        try:
            lineage(self.lineage)
            integer(self.records)
            integer(self.bytes)
            seconds(self.seconds)
            if self.counts is not None:
                task_counts(self.counts, self.records)
            if self.statistics:
                task_statistics(self.statistics)
        except ValueError as error:
            raise UnsupportedShapeError(f"the task at {shown(self.lineage)} cannot be recorded: {error}") from None
        if self.kind == "filtered" and self.outputs:
            raise UnsupportedShapeError(f"expected a filtered task without outputs, found {self.outputs[0].name!r}")
        if self.kind == "filtered" and self.records:
            raise UnsupportedShapeError(f"expected a filtered task without written records, found {self.records}")

    def share(self) -> Totals:
        """Return the amounts that the leaf adds to the totals of the ledger."""
        return Totals(1, self.records, self.bytes, int(self.kind == "filtered"), round(1000 * self.seconds))

    @property
    def sketch_bytes(self) -> int:
        """Size of the sketches of its statistics, in bytes."""
        return sum(len(statistic.data) for statistic in self.statistics.values())

    def special_counts(self) -> RecordCounts | None:
        """Return its counts of records; None if it wrote exactly the records that it read."""
        return None if self.counts is None or self.counts.is_plain else self.counts


FAILURE_CHARACTERS = 4000  # longest message, reason or name of a failure, in characters. Longer ones are cut.


def failure_text(text: str) -> str:
    """Cut a text of a failure, so that no row is large; ``...`` marks the cut.

    Messages of user code can contain anything: characters that are not Unicode are escaped.
    """
    try:
        values.text(text)
    except ValueError:
        if not isinstance(text, str):
            raise
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= FAILURE_CHARACTERS else text[: FAILURE_CHARACTERS - 3] + "..."


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed. It keeps its source open and runs again in the next run.

    Texts longer than `FAILURE_CHARACTERS` are cut.
    """

    source_id: bytes
    lineage: Lineage
    task: str  # its name for people, `task.Task.name`
    reason: str  # one line that groups failures
    error: str = ""
    broke: bool = False  # whether it counts as a death of the worker; see `task.FailedTask`

    def __post_init__(self) -> None:
        with recordable(f"the failure of {shown(self.task)}"):
            id_bytes(self.source_id)
            lineage(self.lineage)
            flag(self.broke)
            for name in ("task", "reason", "error"):
                object.__setattr__(self, name, failure_text(getattr(self, name)))


class Mark(NamedTuple):
    """A task that a worker is processing: source, node (16 bytes each) and its name for people."""

    source_id: bytes
    node: bytes
    name: str

    def check(self) -> None:
        """Check the values. Raises UnsupportedShapeError."""
        with recordable(f"the open task {shown(self.name)}"):
            id_bytes(self.source_id)
            id_bytes(self.node)
            values.text(self.name)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The changes of one commit."""

    completed: list[bytes]  # ids of the sources that became complete
    fresh: int = 0  # leaves that were not recorded before
    seconds: float = 0.0


class SourceProgress(NamedTuple):
    """The progress of an open source."""

    applied: Mapping[bytes, int]  # the result of `LedgerStore.applied`
    attempts: Mapping[bytes, int]  # the result of `LedgerStore.attempts`
    replaces: bool  # whether the content at its URL has changed since this job registered the URL before


HISTORY_SECONDS = 10  # length of a step of `LedgerStore.history`, in seconds


class HistoryRow(NamedTuple):
    """The work that one run recorded in one step of time."""

    time: int  # start of the step, seconds since 1970 UTC
    run: str | None  # id of the run; None if it is not known
    totals: Totals
    completed: int
    failures: int


class SourceRow(NamedTuple):
    """A registered source."""

    source_id: bytes
    url: str  # URL; for a pack the URL of its first member
    size: int
    members: int  # number of packed sources; 0 for a plain source
    # ``complete``, ``failed`` (open, with a failure), ``open`` or ``gone`` (not complete, and not in the last listing).
    state: Literal["complete", "failed", "open", "gone"]
    completed: int  # time of its completion, seconds since 1970 UTC; 0 for other sources
    totals: Totals
    member_urls: tuple[str, ...] = ()  # URLs of the packed sources, in order; empty for a plain source
    counts: RecordCounts = RecordCounts()


class Withdrawn(NamedTuple):
    """The reasons why withdrawn tasks of a source run again."""

    rejected: tuple[str, ...] = ()  # reasons of the records that the tasks had rejected
    failed: tuple[str, ...] = ()  # reasons of the failures of the tasks

    def plus(self, other: Withdrawn) -> Withdrawn:
        """Return the reasons of both withdrawals, sorted."""
        return Withdrawn(*(tuple(sorted({*mine, *theirs})) for mine, theirs in zip(self, other, strict=True)))


def withdrawn_row(why: Withdrawn) -> list[Any]:
    """Return the reasons of a withdrawal as a JSON row."""
    return [list(reasons) for reasons in why]


def read_withdrawn(value: Any) -> Withdrawn:
    """Read a row of `withdrawn_row`. Raises ValueError."""
    return Withdrawn(*(tuple(values.text(reason) for reason in values.rows(reasons)) for reasons in row(value, 2)))


class TaskCountsRow(NamedTuple):
    """The record counts of a task that did not write exactly the records that it read."""

    url: str
    source_id: bytes
    node: bytes
    counts: RecordCounts


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A recorded output: its source, whether that source is complete, and the output."""

    url: str
    source_id: bytes
    complete: bool
    output: Output
    version: str = ""  # of the source
    size: int = 0  # of the source in bytes


class OutputColumns(NamedTuple):
    """Recorded outputs as three columns of equal length: ids of their sources, names, and sizes in bytes."""

    source_ids: list[bytes]
    names: list[str]
    sizes: list[int]


class ContentColumns(NamedTuple):
    """Recorded outputs as columns of equal length, with checksums, and routes, which are empty for the main dataset."""

    source_ids: list[bytes]
    names: list[str]
    sizes: list[int]
    checksums: list[str]
    routes: list[str]


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A recorded failure."""

    url: str
    source_id: bytes
    node: bytes
    task: str
    reason: str
    error: str
    attempts: int  # number of failures and worker deaths of the task
    last: float  # time of the last failure, seconds since 1970 UTC
    quarantined: bool  # whether the task is not started again until its failure is forgotten


def output_row(output: Output) -> list[Any]:
    """Return an output as a JSON row."""
    more = [output.nulled, output.route] if output.route else [output.nulled] if output.nulled else []
    return [output.name, output.size, output.checksum, output.records, output.first, *more]


def read_output(value: Any) -> Output:
    """Read a row of `output_row`. Raises ValueError, also for a name that leads out of the output root."""
    return Output(*row(value, 5, 6, 7))


MEASURED = ("read", "index", "function", "encode", "publish", "ledger")
"""The measured parts of a worker's time, in the order of the work."""

WAIT = "wait"  # the rest of a worker's time: waiting for tasks, and the overhead of the runner

PARTS = (*MEASURED, WAIT)


@dataclass(frozen=True)
class WorkTime:
    """The time that the worker processes of a run spent, by part of the work."""

    workers: int = 0  # number of worker processes, including those that died
    # Elapsed time by part, summed over the workers. The sum of all parts is the lifetime of the workers.
    seconds: Mapping[str, float] = field(default_factory=dict)
    # Processor time by part, in seconds, summed over all threads of the workers.
    cpu: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def summed(cls, parts: Iterable[WorkTime]) -> WorkTime:
        """Return the sum of several measurements."""
        found = list(parts)
        return cls(
            sum(each.workers for each in found),
            _added(each.seconds for each in found),
            _added(each.cpu for each in found),
        )

    @property
    def total(self) -> float:
        """Sum of the seconds of all parts."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the measurement as a JSON object, for `read_work_time`."""
        times = {"seconds": self.seconds, "cpu": self.cpu}
        rounded = {name: {part: round(value, 6) for part, value in found.items()} for name, found in times.items()}
        return {"workers": self.workers, **rounded}


def read_work_time(value: Any) -> dict[str, Any]:
    """Check the recorded working time of a run. Raises ValueError."""
    found = mapping(value)
    if not {"seconds", "cpu"} <= found.keys():
        raise ValueError(f"expected the keys seconds and cpu in the time of a run, found {shown(sorted(found))}")
    times = {name: mapping(found[name]) for name in ("seconds", "cpu")}
    for of in times.values():
        if not of.keys() <= set(PARTS):
            raise ValueError(f"expected times with the keys {', '.join(PARTS)}, found the keys {shown(sorted(of))}")
    read = {name: {part: seconds(of[part]) for part in PARTS if part in of} for name, of in times.items()}
    return {"workers": integer(found.get("workers", 0)), **read}


def _added(times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found = list(times)
    return {part: sum(each.get(part, 0.0) for each in found) for part in PARTS if any(part in each for each in found)}


class SetUps(NamedTuple):
    """The set-ups of user code in a run. Each worker process imports and builds user code before its first task."""

    times: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, found: Sequence[float]) -> SetUps:
        """Return the sum of set-ups, from their durations in seconds."""
        return cls(len(found), sum(found), max(found, default=0.0))

    def plus(self, other: SetUps) -> SetUps:
        """Return the sum of both."""
        return SetUps(self.times + other.times, self.seconds + other.seconds, max(self.longest, other.longest))


def read_set_ups(value: Any) -> dict[str, Any]:
    """Check the recorded set-ups of a run. Raises ValueError."""
    return _read_fields(value, "set-ups", {"times": integer, "seconds": seconds, "longest": seconds})


class Audit(NamedTuple):
    """The results of the audits of a run."""

    tasks: int = 0  # number of tasks that were computed again
    differ: int = 0  # number of these tasks whose results differ from the published ones
    found: str = ""  # the first difference, for people; empty without a difference
    job: str = ""  # fingerprint of the audited job


def read_audit(value: Any) -> dict[str, Any]:
    """Check the recorded audits of a run. Raises ValueError."""
    return _read_fields(value, "audits", {"tasks": integer, "differ": integer, "found": text, "job": text})


def _read_fields(value: Any, what: str, reads: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    found = mapping(value)
    if found.keys() != reads.keys():
        raise ValueError(f"expected the keys {tuple(reads)} in the {what} of a run, found {sorted(found)!r:.80}")
    return {name: read(found[name]) for name, read in reads.items()}


def audit_of(runs: list[dict[str, Any]], fingerprint: str) -> Audit:
    """Return the audits of all runs of a job together. The last audit decides whether results differ.

    Audits of other jobs that used the ledger do not count.
    """
    rows = [Audit(**run["audit"]) for run in runs if run.get("audit") and run["audit"]["job"] == fingerprint]
    last = rows[-1] if rows else Audit()
    return Audit(sum(row.tasks for row in rows), last.differ, last.found, fingerprint)
