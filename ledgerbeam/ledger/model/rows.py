"""The rows that go into a ledger and come out of it."""

from __future__ import annotations

from collections.abc import Mapping
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
    output_name,
    row,
    seconds,
    shown,
)


@dataclass(frozen=True, slots=True)
class Output:
    """One durable object that a task published.

    Attributes:
        name: Path relative to the output root of the job. No two sources use the same name.
        size: Bytes.
        checksum: Of its content, see `checksums`.
        records: How many it holds.
        first: Orders the outputs of one source, normally the first record of the task's span.
        nulled: How many NaN and infinities, which its format does not have, were written as null.
        route: The dataset that it belongs to: empty for the main one, the name of a route, or `names.REJECTS`.

    Raises:
        UnsupportedShapeError: A value that no ledger can hold, for instance a name with ``..``.
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
    """What the recorded leaves of a ledger add up to.

    If a source changed or was forgotten, its share is subtracted, and added again when it has run.

    Attributes:
        tasks: Finished tasks, published or filtered.
        records: Records that they wrote, over all routes.
        bytes: Bytes that they wrote.
        filtered: Those of `tasks` that were filtered.
        milliseconds: Time that they took, added up over all workers.
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
    """A finished task. Everything in `outputs` must already be durable.

    Attributes:
        source_id: 16 bytes.
        lineage: Path from the source to the task.
        kind: ``published``, or ``filtered`` for a task without output.
        outputs: What it published; empty when filtered.
        records: Records that it wrote, over all routes; none when filtered.
        bytes: Bytes that it wrote.
        seconds: Time that it took, from reading to the durable output.
        counts: What became of its records; None if all records that were read are written, or they were not counted.
        statistics: What its function observed, by name.

    Raises:
        UnsupportedShapeError: See `counting.check_leaf`; also for a filtered leaf with outputs or records, and for
            counts of another number of records.
    """

    source_id: bytes
    lineage: Lineage
    kind: Terminal = "published"
    outputs: tuple[Output, ...] = ()
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    counts: RecordCounts | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)

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
            raise UnsupportedShapeError(f"a filtered leaf has no outputs, found {self.outputs[0].name!r}")
        if self.kind == "filtered" and self.records:
            raise UnsupportedShapeError(f"a filtered leaf has written no records, found {self.records}")

    def share(self) -> Totals:
        """Return what it adds to the totals of its ledger."""
        return Totals(1, self.records, self.bytes, int(self.kind == "filtered"), round(1000 * self.seconds))

    @property
    def sketch_bytes(self) -> int:
        """The size of its statistics."""
        return sum(len(statistic.data) for statistic in self.statistics.values())

    def special_counts(self) -> RecordCounts | None:
        """Return its counts if they say more than the number of its records does; None for a plain leaf."""
        return None if self.counts is None or self.counts.is_plain else self.counts


FAILURE_CHARACTERS = 4000
"""Longer messages, reasons and names of failures are cut."""


def failure_text(text: str) -> str:
    """Cut a text of a failure, so that no row is large; the end shows that there was more.

    Messages of user code hold anything: what is no text is escaped.
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

    Texts that are longer than `FAILURE_CHARACTERS` are cut.

    Attributes:
        source_id: 16 bytes.
        lineage: Path from the source to the task.
        task: Its name for people, `task.Task.name`.
        reason: One line that groups failures.
        error: The full message.
        broke: It counts as a death of the worker, see `task.FailedTask`.
    """

    source_id: bytes
    lineage: Lineage
    task: str
    reason: str
    error: str = ""
    broke: bool = False

    def __post_init__(self) -> None:
        try:
            id_bytes(self.source_id)
            lineage(self.lineage)
            flag(self.broke)
            for name in ("task", "reason", "error"):
                object.__setattr__(self, name, failure_text(getattr(self, name)))
        except ValueError as error:
            raise UnsupportedShapeError(f"the failure of {shown(self.task)} cannot be recorded: {error}") from None


class Mark(NamedTuple):
    """A task that a worker has in work: source, node (16 bytes each) and its name for people."""

    source_id: bytes
    node: bytes
    name: str

    def check(self) -> None:
        """Check the values. Raises UnsupportedShapeError."""
        try:
            id_bytes(self.source_id)
            id_bytes(self.node)
            values.text(self.name)
        except ValueError as error:
            raise UnsupportedShapeError(f"the mark of {shown(self.name)} cannot be recorded: {error}") from None


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What one commit changed.

    Attributes:
        completed: Ids of the sources that became complete.
        fresh: Leaves that were not recorded before.
        seconds: Time that the store took.
    """

    completed: list[bytes]
    fresh: int = 0
    seconds: float = 0.0


class SourceProgress(NamedTuple):
    """How far an open source is.

    Attributes:
        applied: The result of `LedgerStore.applied`.
        attempts: The result of `LedgerStore.attempts`.
        replaces: It took over a URL: the content there has changed since this job registered it before.
    """

    applied: Mapping[bytes, int]
    attempts: Mapping[bytes, int]
    replaces: bool


HISTORY_SECONDS = 10
"""The step of `LedgerStore.history`."""


class HistoryRow(NamedTuple):
    """What one run recorded in one step of time.

    Attributes:
        time: Begin of the step, seconds since 1970 UTC.
        run: Id of the run that recorded it; None where no run is known.
        totals: Of the leaves that were recorded in it.
        completed: Sources that became complete in it.
        failures: Failures that were recorded in it.
    """

    time: int
    run: str | None
    totals: Totals
    completed: int
    failures: int


class SourceRow(NamedTuple):
    """A registered source.

    Attributes:
        source_id: 16 bytes.
        url: Of its first member, if it is a pack.
        size: Bytes.
        members: Number of packed sources; 0 for a plain one.
        state: ``complete``, ``failed`` (open, with a failure), ``open`` or ``gone`` (not complete, and not in the
            last listing).
        completed: Time of its completion, seconds since 1970 UTC; 0 for others.
        totals: Of its recorded leaves.
        member_urls: Of the packed sources, in order; empty for a plain one.
        counts: What became of the records of its recorded leaves.
    """

    source_id: bytes
    url: str
    size: int
    members: int
    state: Literal["complete", "failed", "open", "gone"]
    completed: int
    totals: Totals
    member_urls: tuple[str, ...] = ()
    counts: RecordCounts = RecordCounts()


class Withdrawn(NamedTuple):
    """Why tasks of a source were withdrawn that have not run again.

    Attributes:
        rejected: Reasons of the records that they had rejected.
        failed: Reasons for which they had failed.
    """

    rejected: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def plus(self, other: Withdrawn) -> Withdrawn:
        """Return the reasons of both, sorted."""
        return Withdrawn(*(tuple(sorted({*mine, *theirs})) for mine, theirs in zip(self, other, strict=True)))


def withdrawn_row(why: Withdrawn) -> list[Any]:
    """Return the reasons of a withdrawal as a JSON row."""
    return [list(reasons) for reasons in why]


def read_withdrawn(value: Any) -> Withdrawn:
    """Read a row of `withdrawn_row`. Raises ValueError."""
    return Withdrawn(*(tuple(values.text(reason) for reason in values.rows(reasons)) for reasons in row(value, 2)))


class TaskCountsRow(NamedTuple):
    """What became of the records of a task that did not just write all that it read.

    Attributes:
        url: Of its source.
        source_id: 16 bytes.
        node: 16 bytes.
        counts: Of its records.
    """

    url: str
    source_id: bytes
    node: bytes
    counts: RecordCounts


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A recorded output: the URL and id of its source, whether that source is complete, and the output."""

    url: str
    source_id: bytes
    complete: bool
    output: Output


class OutputColumns(NamedTuple):
    """Recorded outputs as three columns of one length: the ids of their sources, their names, their sizes in bytes."""

    source_ids: list[bytes]
    names: list[str]
    sizes: list[int]


class ContentColumns(NamedTuple):
    """Recorded outputs as columns of one length, with what they hold.

    Attributes:
        source_ids: The ids of their sources.
        names: Their names.
        sizes: Their sizes in bytes.
        checksums: Of their contents.
        routes: The datasets that they belong to.
    """

    source_ids: list[bytes]
    names: list[str]
    sizes: list[int]
    checksums: list[str]
    routes: list[str]


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A recorded failure.

    Attributes:
        url: Of the source.
        source_id: 16 bytes.
        node: 16 bytes.
        task: Name for people.
        reason: One line.
        error: The full message.
        attempts: How often the task failed, or its worker died.
        last: Time of the last failure, seconds since 1970 UTC.
        quarantined: The task is not started again until it is forgotten.
    """

    url: str
    source_id: bytes
    node: bytes
    task: str
    reason: str
    error: str
    attempts: int
    last: float
    quarantined: bool


def output_row(output: Output) -> list[Any]:
    """Return an output as a JSON row."""
    more = [output.nulled, output.route] if output.route else [output.nulled] if output.nulled else []
    return [output.name, output.size, output.checksum, output.records, output.first, *more]


def read_output(value: Any) -> Output:
    """Read a row of `output_row`. Raises ValueError, also for a name that leads out of the output root."""
    return Output(*row(value, 5, 6, 7))
