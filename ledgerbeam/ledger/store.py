"""What every ledger can do, and the rows that go in and come out.

A store keeps four promises:

- what `LedgerStore.commit` returned for is there after any crash;
- a source is complete exactly when all of its leaves were committed, in whatever order, by however many writers,
  however often each;
- committing a leaf again changes nothing, and committing it with another result is an error;
- every method that changes something does so entirely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import add
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger.counting import Terminal, check_leaf
from ledgerbeam.ledger.identity import Lineage
from ledgerbeam.ledger.job import Job, OnJobChange
from ledgerbeam.ledger.task import Source

MAX_ATTEMPTS = 3
"""After this many worker deaths a task that was in work each time is quarantined."""


@dataclass(frozen=True, slots=True)
class Output:
    """One durable object that a task published.

    Attributes:
        name: path relative to the output root of the job. No two sources use the same name.
        size: bytes.
        checksum: of its content, see `content_checksum`.
        records: how many it holds.
        first: orders the outputs of one source, normally the first record of the task's span.
    """

    name: str
    size: int
    checksum: str
    records: int
    first: int = 0


def content_checksum(chunks: Iterable[bytes]) -> str:
    """The checksum of an output's content, given in chunks: BLAKE2b of 16 bytes as hexadecimal digits."""
    digest = blake2b(digest_size=16)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


class Totals(NamedTuple):
    """What the recorded leaves of a ledger add up to.

    A source that changed, or that was forgotten, takes its share away and adds it again when it has run.

    Attributes:
        tasks: finished tasks, published or filtered.
        records: records that they took in.
        bytes: bytes that they took in.
        filtered: those of `tasks` that were filtered.
        milliseconds: time that they took, added up over all workers.
    """

    tasks: int = 0
    records: int = 0
    bytes: int = 0
    filtered: int = 0
    milliseconds: int = 0

    def plus(self, other: Totals) -> Totals:
        """The sum, part by part."""
        return Totals(*map(add, self, other))

    def minus(self, other: Totals) -> Totals:
        """The difference, part by part."""
        return Totals(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A finished task. Everything in `outputs` must already be durable.

    Attributes:
        source_id: 16 bytes.
        lineage: path from the source to the task.
        kind: ``published``, or ``filtered`` for a task without output.
        outputs: what it published; empty when filtered.
        records: records that it took in.
        bytes: bytes that it took in.
        seconds: time that it took, from reading to the durable output.

    Raises:
        UnsupportedShapeError: see `counting.check_leaf`; also for a filtered leaf with outputs.
    """

    source_id: bytes
    lineage: Lineage
    kind: Terminal = "published"
    outputs: tuple[Output, ...] = ()
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        check_leaf(self.source_id, self.lineage, self.kind)
        if self.kind == "filtered" and self.outputs:
            raise UnsupportedShapeError(f"a filtered leaf has no outputs, found {self.outputs[0].name!r}")

    def share(self) -> Totals:
        """What it adds to the totals of its ledger."""
        return Totals(1, self.records, self.bytes, int(self.kind == "filtered"), round(1000 * self.seconds))


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed. It keeps its source open and runs again in the next run.

    Attributes:
        source_id: 16 bytes.
        lineage: path from the source to the task.
        task: its name for people, `task.Task.name`.
        reason: one line that groups failures.
        error: the full message.
    """

    source_id: bytes
    lineage: Lineage
    task: str
    reason: str
    error: str = ""


class Mark(NamedTuple):
    """A task that a worker has in work: source, node (16 bytes each) and its name for people."""

    source_id: bytes
    node: bytes
    name: str


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What one commit changed.

    Attributes:
        completed: ids of the sources that became complete.
        fresh: leaves that were not recorded before.
        seconds: time that the store took.
    """

    completed: list[bytes]
    fresh: int = 0
    seconds: float = 0.0


class Progress(NamedTuple):
    """How far an open source is.

    Attributes:
        applied: what `LedgerStore.applied` gives.
        attempts: what `LedgerStore.attempts` gives.
        replaces: it took over a URL: what lies there has changed since this job entered it before.
    """

    applied: Mapping[bytes, int]
    attempts: Mapping[bytes, int]
    replaces: bool


HISTORY_SECONDS = 10
"""The step of `LedgerStore.history`."""


class HistoryRow(NamedTuple):
    """What was recorded in one step of time.

    Attributes:
        time: begin of the step, seconds since 1970 UTC.
        totals: of the leaves that were recorded in it.
        completed: sources that became complete in it.
        failures: failures that were recorded in it.
    """

    time: int
    totals: Totals
    completed: int
    failures: int


class SourceRow(NamedTuple):
    """A registered source.

    Attributes:
        source_id: 16 bytes.
        url: of its first member, if it is a pack.
        size: bytes.
        members: number of packed sources; 0 for a plain one.
        state: ``complete``, ``failed`` (open, with a failure), ``open`` or ``gone`` (not complete, and not in the
            last listing).
        completed: time of its completion, seconds since 1970 UTC; 0 for others.
        totals: of its recorded leaves.
    """

    source_id: bytes
    url: str
    size: int
    members: int
    state: Literal["complete", "failed", "open", "gone"]
    completed: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A recorded output: the URL and id of its source, whether that source is complete, and the output."""

    url: str
    source_id: bytes
    complete: bool
    output: Output


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A recorded failure.

    Attributes:
        url: of the source.
        source_id: 16 bytes.
        node: 16 bytes.
        task: name for people.
        reason: one line.
        error: the full message.
        attempts: how often the task failed, or its worker died.
        last: time of the last failure, seconds since 1970 UTC.
        quarantined: the task is not started again until it is forgotten.
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


class LedgerSink(Protocol):
    """What a worker needs of a ledger: to record. Every store is one."""

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        """Record finished and failed tasks, durably; see `LedgerStore.commit`."""

    def close(self) -> None:
        """Give up what it holds open. It opens again when it is used again."""


class LedgerStore(LedgerSink, Protocol):
    """A ledger. Thread-safe; may be pickled and carried through fork: it is opened anew where it arrives."""

    @property
    def url(self) -> str:
        """Where the ledger lies."""

    def open_job(self, job: Job, on_change: OnJobChange = "refuse") -> None:
        """Take the ledger for a job. From then on this store, and its pickled copies, commit for that job only.

        Args:
            job: what is about to run.
            on_change: for a ledger of another job: ``refuse``; ``restart`` drops all progress and supersedes all
                outputs; ``accept`` keeps the progress.

        Raises:
            JobMismatchError: the ledger is of another job, and `on_change` is ``refuse``.
        """

    def job(self) -> Job | None:
        """The job that the ledger was last taken for; None for a new ledger."""

    def register(self, sources: Sequence[Source]) -> None:
        """Enter sources into the job. A source that is known already is left as it is.

        A URL that is known under another identity has changed: the old source and its progress go, and its outputs
        are superseded (see `stale_outputs`). A pack takes over the URL of each of its members.
        """

    def completed_mask(self, ids: Sequence[bytes]) -> NDArray[np.bool_]:
        """Tell for each of a page of source ids whether it is complete. Meant for pages of thousands."""

    def completed_count(self) -> int:
        """Number of complete sources; costs nothing."""

    def applied(self, source_id: bytes) -> dict[bytes, int]:
        """The entries of an open source, delta by node, `identity.ROOT` included. Empty once it is complete."""

    def progress(self, ids: Sequence[bytes]) -> list[Progress]:
        """What is known of each of a page of open sources, in their order."""

    def pending(self, source_id: bytes) -> int:
        """Live tasks of a source: 0 for a complete or unknown one."""

    def attempts(self, source_id: bytes) -> dict[bytes, int]:
        """Worker deaths of a source's unfinished tasks, by node. `MAX_ATTEMPTS` and more mean quarantine."""

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        """Record finished and failed tasks, durably, in one transaction.

        Leaves of complete or replaced sources change nothing. A failure of a finished task changes nothing. When a
        leaf is in error all the others are recorded before the error is raised.

        Raises:
            NonDeterministicTaskError: a task ended otherwise than recorded: another fan-out, or other outputs.
            NegativePendingCountError: the rows of a source contradict each other.
            JobMismatchError: meanwhile the ledger was taken for another job. Nothing was recorded.
            LedgerError: a source was never registered.
            DiskFullError: nothing was recorded, nothing recorded before is lost.
        """

    def blame(self, marks: Sequence[Mark]) -> list[Mark]:
        """Count a worker's death against the tasks that it had in work.

        Returns:
            Those that are quarantined by it: they died `MAX_ATTEMPTS` times and are recorded as failed.
        """

    def forget(self, pattern: str, *, failures_only: bool = False) -> list[str]:
        """Make sources run again.

        Args:
            pattern: shell pattern over whole URLs (``*`` also matches ``/``); a pack matches by any member.
            failures_only: drop only failures and quarantine, so that finished tasks stay finished.

        Returns:
            URLs of the sources it applied to, sorted.
        """

    def stale_outputs(self) -> list[str]:
        """Names of outputs that were superseded and not written again, sorted.

        An output of a replaced source is stale once what replaced it is complete: for a pack, every source that
        took over one of its members. A name that any source has as its output now is never stale. Ask when no
        worker of this ledger runs: between publishing an object and recording it, it looks stale.
        """

    def drop_stale(self, names: Iterable[str]) -> None:
        """Forget stale outputs, after their objects were deleted. Names that are not stale are ignored."""

    def set_gone(self, ids: Iterable[bytes]) -> None:
        """Say which sources the last listing no longer had; replaces what was said before. Their outputs stay."""

    def source_ids(self) -> Iterator[list[bytes]]:
        """The ids of all registered sources, in pages, sorted."""

    def begin_run(self, info: Mapping[str, Any]) -> str:
        """Record that a run begins; `info` is shown by `status`. Returns the run's id."""

    def note_listing(self, run: str, *, listed: int, finished: bool, gone: Iterable[bytes] = ()) -> None:
        """Record how many sources a run has listed. A finished listing also sets what is gone."""

    def end_run(self, run: str, outcome: str) -> None:
        """Record how a run ended. A run that began and has no outcome was killed, or still runs."""

    def status(self) -> dict[str, Any]:
        """A JSON object that says how far the job is.

        ``{"job", "sources": {"complete", "open", "failed"}, "tasks": {"done", "failed"}, "records", "bytes",
        "filtered", "complete", "listed", "gone", "last_run"}``. A source with a failure counts as failed, one that
        is gone and unfinished as gone only. ``complete`` needs a finished listing and a source.
        """

    def totals(self) -> Totals:
        """What the recorded leaves add up to."""

    def history(self) -> list[HistoryRow]:
        """What was recorded when, in time order: one row for each `HISTORY_SECONDS` in which anything was."""

    def durations(self) -> dict[float, int]:
        """How many tasks took how long: seconds (a logarithmic scale, steps of 9 %) to number, ascending."""

    def sources(self) -> Iterator[SourceRow]:
        """Every registered source and how far it is, by id."""

    def runs(self) -> list[dict[str, Any]]:
        """Every run in order, as ``last_run`` of `status` shows one."""

    def failures(self) -> Iterator[FailureRow]:
        """The recorded failures, by source URL, then task."""

    def outputs(self, *, ordered: bool = True) -> Iterator[OutputRow]:
        """The recorded outputs.

        Args:
            ordered: by source URL, then `Output.first`, then name, which holds all source URLs in memory. Else in an
                order that means nothing, in bounded memory.
        """

    def refresh(self) -> None:
        """Take in what other hosts have recorded since. Does nothing for a ledger that all its users share."""
