"""What every ledger can do, and its rows.

A store keeps four promises:

- once `LedgerStore.commit` has returned, its rows are there after any crash;
- a source is complete exactly when all of its leaves were committed, in any order, by any number of writers, any number
of times each;
- committing a leaf again changes nothing, and committing it with another result is an error;
- every method that changes something does so entirely or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.job import Job, OnJobChange
from ledgerbeam.ledger.model.rows import (
    CommitResult,
    ContentColumns,
    Failure,
    FailureRow,
    HistoryRow,
    Leaf,
    Mark,
    Output,
    OutputColumns,
    OutputRow,
    SourceProgress,
    SourceRow,
    TaskCountsRow,
    Totals,
    Withdrawn,
)
from ledgerbeam.ledger.model.runs import Audit, SetUps, WorkTime
from ledgerbeam.ledger.model.task import Source

Noted: TypeAlias = SetUps | WorkTime | Audit
"""What a launcher notes of a run while it works."""

MAX_ATTEMPTS = 3
"""After this many worker deaths a task that was in work each time is quarantined."""


class LedgerSink(Protocol):
    """The part of a ledger that a worker needs: recording. Every store is a sink."""

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        """Record finished and failed tasks, durably; see `LedgerStore.commit`."""

    def close(self) -> None:
        """Return up what it holds open. It opens again when it is used again."""


class LedgerStore(LedgerSink, Protocol):
    """A ledger. Thread-safe; may be pickled and used after a fork: each process opens it anew."""

    @property
    def url(self) -> str:
        """Where the ledger lies."""

    def ledger_id(self) -> str:
        """Return the id of this ledger: 32 hexadecimal digits, random, made with it. A copy has the same.

        Raises:
            LedgerNotFoundError: No job has taken a remote ledger yet, so there is none.
        """

    def environment_id(self) -> str:
        """Return the id of the local files through which the ledger is read: for a local ledger its own id.

        Launchers that find the same one here lie on one host and share a folder, whatever name the host has.
        """

    def open_job(self, job: Job, on_change: OnJobChange = "refuse") -> None:
        """Take the ledger for a job. From then on this store, and its pickled copies, commit for that job only.

        Args:
            job: What is about to run.
            on_change: For a ledger of another job: ``refuse``; ``restart`` drops all progress and supersedes all
                outputs; ``accept`` keeps the progress.

        Raises:
            JobMismatchError: The ledger is of another job, and `on_change` is ``refuse``.
        """

    def job(self) -> Job | None:
        """Return the job that the ledger was last taken for; None for a new ledger."""

    def register(self, sources: Sequence[Source]) -> None:
        """Enter sources into the job. A source that is known already is left as it is.

        A URL that is known under another identity has changed: the old source and its progress go, and its outputs
        are superseded (see `stale_outputs`). A pack takes over the URL of each of its members.
        """

    def completed_mask(self, ids: Sequence[bytes]) -> list[bool]:
        """Tell for each of a page of source ids whether it is complete. Meant for pages of thousands."""

    def completed_count(self) -> int:
        """Return number of complete sources; costs nothing."""

    def source_count(self) -> int:
        """Return number of registered sources, complete or not; costs nothing."""

    def applied(self, source_id: bytes) -> dict[bytes, int]:
        """Return the entries of an open source, delta by node, `identity.ROOT` included. Empty once it is complete."""

    def progress(self, ids: Sequence[bytes]) -> list[SourceProgress | None]:
        """Return how far each of a page of sources is, in their order.

        It is None for a source that is complete, replaced or unknown.
        """

    def finished(self, tasks: Sequence[tuple[bytes, Lineage]]) -> list[bool]:
        """Tell for tasks, each by its source's id and its lineage, whether they and all that grew from them are done.

        It reads what is asked for only; as of the last `refresh`.
        """

    def pending(self, source_id: bytes) -> int:
        """Return live tasks of a source: 0 for a complete or unknown one."""

    def attempts(self, source_id: bytes) -> dict[bytes, int]:
        """Return worker deaths of a source's unfinished tasks, by node. `MAX_ATTEMPTS` and more mean quarantine.

        A failure that `Failure.broke` counts as a death.
        """

    def failed_mask(self, ids: Sequence[bytes], run: str = "") -> list[bool]:
        """Tell for each of a page of source ids whether it has a failure.

        Args:
            ids: Of sources.
            run: Id of a run: only failures that were recorded since it began count, and quarantined tasks. Empty for
                all.
        """

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        """Record finished and failed tasks, durably, in one transaction.

        Leaves of complete sources change nothing. What those of replaced sources have published is superseded, and in a
        local ledger those that have taken their place run again if it was written over their outputs. A failure of a
        finished task changes nothing. That of one which has fanned out is recorded, and cleared by the next leaf below
        it. When a leaf is in error all the others are recorded before the error is raised.

        Raises:
            NonDeterministicTaskError: A task ended otherwise than recorded: another fan-out, or other outputs.
            NegativePendingCountError: The rows of a source contradict each other.
            JobMismatchError: Meanwhile the ledger was taken for another job. Nothing was recorded.
            LedgerError: A source was never registered.
            DiskFullError: Nothing was recorded, nothing recorded before is lost.
        """

    def record_deaths(self, marks: Sequence[Mark]) -> list[Mark]:
        """Count a worker's death against the tasks that it had in work.

        Returns:
            Those that are quarantined by it: they died `MAX_ATTEMPTS` times and are recorded as failed.
        """

    def forget(self, pattern: str, *, failures_only: bool = False) -> list[str]:
        """Make sources run again.

        Args:
            pattern: Shell pattern over whole URLs (``*`` also matches ``/``); a pack matches by any member.
            failures_only: Drop only failures and quarantine, so that finished tasks stay finished.

        Returns:
            URLs of the sources it applied to, sorted.
        """

    def file_times(self, ids: Sequence[bytes]) -> dict[bytes, list[int]]:
        """Return what `note_file_times` noted of sources, by id; those of which nothing is noted are left out."""

    def note_file_times(self, times: Mapping[bytes, list[int]]) -> None:
        """Note when the local files of open sources were last changed, in nanoseconds since 1970, for each file.

        It is known on this host only: files of other hosts have times of their own.
        """

    def forget_sources(self, ids: Iterable[bytes]) -> None:
        """Make sources run again, by id: their progress goes, their outputs are superseded. Unknown ids are ignored."""

    def withdraw(self, tasks: Iterable[tuple[bytes, Collection[bytes]]]) -> int:
        """Make single finished tasks run again, also those of complete sources; the other tasks stay done.

        Their records count no more until they have run. What they have published is superseded, as that of a source
        that is forgotten: it is not stale before the source is complete, and not if they publish it again. A source is
        forgotten as a whole if its tasks can no longer be distinguished, since some have fanned out. A crash meanwhile
        may forget a whole source too: nothing is lost but time. Call it when no worker of this ledger runs, and before
        the run begins that is to do them: in a remote ledger all that a run records has the run's number.

        Args:
            tasks: Nodes of tasks by source, as `rejected_tasks` returns them; those that are not finished are ignored.

        Returns:
            Number of tasks that run again.
        """

    def withdraw_failures(self, reasons: Mapping[bytes, Collection[str]], quarantined: Iterable[bytes]) -> None:
        """Note that failed tasks are to run again, durably: `withdrawn` has their sources until these are complete.

        Args:
            reasons: For which tasks of open sources have failed, by source id.
            quarantined: Ids of those sources whose failures are dropped, so that their tasks are started again.
        """

    def withdrawn(self) -> Iterator[tuple[bytes, Withdrawn]]:
        """Return the open sources of which tasks were withdrawn and the source has not been complete since, with why.

        It is read in pages, by source id.
        """

    def stale_outputs(self) -> list[str]:
        """Name of outputs that were superseded and not written again, sorted.

        An output of a replaced source is stale once what replaced it is complete: for a pack, every source that
        took over one of its members. A name that any source has as its output now is never stale. Ask when no
        worker of this ledger runs: between publishing an object and recording it, it looks stale.
        """

    def superseded_names(self) -> Iterator[list[str]]:
        """Name of all outputs that were superseded, stale or not, in pages; some have been written again by now."""

    def drop_stale(self, names: Iterable[str]) -> None:
        """Forget stale outputs, after their objects were deleted. Names that are not stale are ignored."""

    def set_gone(self, ids: Iterable[bytes]) -> None:
        """Return which sources the last listing no longer had; replace what was said before. Their outputs stay."""

    def source_urls(self, ids: Iterable[bytes]) -> dict[bytes, str]:
        """Return the URLs of registered sources by id, of a pack that of its first member; unknown ids are left out."""

    def gone_ids(self) -> set[bytes]:
        """Return the ids of the registered sources that the last finished listing no longer had, complete or not."""

    def source_ids(self) -> Iterator[list[bytes]]:
        """Return the ids of all registered sources, in pages, sorted."""

    def begin_run(self, info: Mapping[str, Any]) -> str:
        """Record that a run begins; `info` is shown by `status`. Returns the run's id."""

    def note_listing(self, run: str, *, listed: int, finished: bool, gone: Iterable[bytes] = ()) -> None:
        """Record how many sources a run has listed. A finished listing also sets what is gone."""

    def note(self, run: str, found: Noted) -> None:
        """Record what is known of a run so far; it replaces what was noted of the same kind, and only grows.

        Args:
            run: Its ID.
            found: How often user code was set up, where the time of the workers went, or what audits found.
        """

    def end_run(self, run: str, outcome: str, *, tidied: bool = False) -> None:
        """Record how a run ended. A run that began and has no outcome was killed, or still runs.

        Args:
            run: Its id.
            outcome: For people.
            tidied: Whether it has left no output that it did not record, nor a run before it.
        """

    def status(self) -> dict[str, Any]:
        """Return a JSON object that says how far the job is.

        ``{"job", "sources": {"complete", "open", "failed"}, "tasks": {"done", "failed"}, "records", "bytes",
        "filtered", "complete", "listed", "gone", "audit": {"tasks", "differ"}, "last_run"}``. A source with a
        failure counts as failed, one that is gone and unfinished as gone only. ``complete`` needs a finished listing,
        and a source unless that listing found none. ``records`` is what `RecordCounts.as_dict` makes of `records`.
        """

    def totals(self) -> Totals:
        """Return what the recorded leaves add up to."""

    def records(self) -> RecordCounts:
        """Return what became of the records of every recorded task; costs nothing."""

    def task_counts(self) -> Iterator[TaskCountsRow]:
        """Return what became of the records of each task that did not just write all that it read, by source id.

        It is read in pages; the other tasks have written what is left of the numbers of their sources.
        """

    def statistics(self) -> Iterator[tuple[str, Statistic]]:
        """Return the statistics of every recorded task, each with its name, in bounded memory.

        A task counts once, however often it ran. One that is recorded or forgotten meanwhile may be there or not.
        """

    def rejected_tasks(self, reason: str | None = None) -> Iterator[tuple[bytes, list[bytes]]]:
        """Return which tasks have rejected records, as `withdraw` takes them: nodes of tasks by source id, sorted.

        Args:
            reason: Only those with records that were rejected for this reason; None for any.
        """

    def history(self, since: float = 0.0) -> list[HistoryRow]:
        """Return what was recorded when and by which run, in the order of time, then runs.

        One row for each `HISTORY_SECONDS` in which a run has recorded anything.

        Args:
            since: Seconds since 1970 UTC; only the step that it falls into, and what comes after.
        """

    def recorded(self, since: float = 0.0) -> dict[str | None, HistoryRow]:
        """Return what each run has recorded since, as one row for each; its time is that of its last step.

        It is the sum of `history`, and takes a small part of its time.
        """

    def durations(self) -> dict[float, int]:
        """Return how many tasks took how long: seconds (a logarithmic scale, steps of 9 %) to number, ascending."""

    def sources(self) -> Iterator[SourceRow]:
        """Return every registered source and how far it is, by id."""

    def runs(self) -> list[dict[str, Any]]:
        """Return every run in order, as ``last_run`` of `status` shows one."""

    def failures(self) -> Iterator[FailureRow]:
        """Return the recorded failures, by source URL, then task.

        Of all that there are, only keys are held in memory.
        """

    def outputs(self, *, ordered: bool = True) -> Iterator[OutputRow]:
        """Return the recorded outputs.

        Args:
            ordered: By source URL, then `Output.first`, then name, which holds all source URLs in memory. Else in an
                order that means nothing, in bounded memory.
        """

    def failure_count(self) -> int:
        """Return number of recorded failures, also of sources that are gone; costs nothing."""

    def source_outputs(self, source_id: bytes) -> list[Output]:
        """Return the recorded outputs of a source, in no order."""

    def output_count(self) -> int:
        """Return number of recorded outputs; costs nothing."""

    def output_columns(self) -> Iterator[OutputColumns]:
        """Return the recorded outputs in pages of columns: a third of the time of `outputs`, in bounded memory."""

    def content_columns(self) -> Iterator[ContentColumns]:
        """Return the recorded outputs with their checksums, in pages of columns, as `output_columns` does."""

    def refresh(self) -> None:
        """Take in what other hosts have recorded since. Does nothing for a ledger that all its users share."""
