"""The store protocol: the methods of every ledger.

A store keeps four promises:

- once `LedgerStore.commit` has returned, its rows survive any crash;
- a source is complete exactly when all of its leaves were committed, in any order, by any number of writers, any number
  of times;
- committing a leaf again changes nothing, and committing it with another result is an error;
- every method that changes something does so entirely or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from ledgerbeam.ledger.model import rows
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.job import Job, OnJobChange
from ledgerbeam.ledger.model.task import Source

# A measurement that a launcher records of a run while it works.
Noted: TypeAlias = rows.SetUps | rows.WorkTime | rows.Audit

MAX_ATTEMPTS = 3  # number of worker deaths after which a task that was in work each time is quarantined


class LedgerSink(Protocol):
    """The part of a ledger that workers need: recording. Every store is a sink."""

    def commit(self, leaves: Sequence[rows.Leaf], failures: Sequence[rows.Failure] = ()) -> rows.CommitResult:
        """Record finished and failed tasks, durably; see `LedgerStore.commit`."""

    def close(self) -> None:
        """Close open resources. The next use opens them again."""


class LedgerStore(LedgerSink, Protocol):
    """A ledger. Thread-safe; may be pickled and used after a fork: each process opens it anew."""

    @property
    def url(self) -> str:
        """Path or URL of the ledger."""

    def ledger_id(self) -> str:
        """Return the id of this ledger: 32 hexadecimal digits, random, created with it. A copy has the same id.

        Raises:
            LedgerNotFoundError: No job has opened a remote ledger yet, so it does not exist.
        """

    def environment_id(self) -> str:
        """Return the id of the local files through which the ledger is read; for a local ledger its own id.

        Launchers with the same environment id are on one host and share a folder, even if the host has several names.
        """

    def open_job(self, job: Job, on_change: OnJobChange = "refuse") -> None:
        """Open the ledger for a job. From then on this store, and its pickled copies, commit for that job only.

        Args:
            job: The job to run.
            on_change: For a ledger of another job: ``refuse``; ``restart`` drops all progress and supersedes all
                outputs; ``accept`` keeps the progress.

        Raises:
            JobMismatchError: The ledger is of another job, and `on_change` is ``refuse``.
        """

    def job(self) -> Job | None:
        """Return the job that the ledger was last opened for; None for a new ledger."""

    def register(self, sources: Sequence[Source]) -> None:
        """Register sources. Sources that are registered already stay unchanged.

        A URL that is registered under another identity has changed: the old source and its progress are removed, and
        its outputs are superseded (see `stale_outputs`). A pack takes over the URL of each of its members.
        """

    def completed_mask(self, ids: Sequence[bytes]) -> list[bool]:
        """Return for each source id of a page, which may have thousands of ids, whether the source is complete."""

    def completed_count(self) -> int:
        """Return the number of complete sources, in constant time."""

    def source_count(self) -> int:
        """Return the number of registered sources, complete or not, in constant time."""

    def applied(self, source_id: bytes) -> dict[bytes, int]:
        """Return the changes of an open source's count: delta by node of each `counting.Entry`. Empty if complete."""

    def progress(self, ids: Sequence[bytes]) -> list[rows.SourceProgress | None]:
        """Return the progress of each source of a page of source ids, in their order.

        A complete, replaced or unknown source has no progress: None.
        """

    def finished(self, tasks: Sequence[tuple[bytes, Lineage]]) -> list[bool]:
        """Return for each task whether it and all tasks that it fanned out into are done.

        Only the rows of these tasks are read, with the state of the last `refresh`.

        Args:
            tasks: Source id and lineage of each task.
        """

    def pending(self, source_id: bytes) -> int:
        """Return the number of unfinished tasks of a source; 0 for a complete or unknown source."""

    def attempts(self, source_id: bytes) -> dict[bytes, int]:
        """Return the worker deaths of a source's unfinished tasks, by task id. `MAX_ATTEMPTS` or more mean quarantine.

        A failure with `Failure.broke` counts as a death.
        """

    def failed_mask(self, ids: Sequence[bytes], run: str = "") -> list[bool]:
        """Return for each id of a page of source ids whether the source has a failure.

        Args:
            ids: Ids of sources.
            run: Id of a run, to count only quarantined tasks and failures recorded since the run started. Empty: count
                all.
        """

    def commit(self, leaves: Sequence[rows.Leaf], failures: Sequence[rows.Failure] = ()) -> rows.CommitResult:
        """Record finished and failed tasks, durably, in one transaction.

        Leaves of complete sources change nothing. The outputs of leaves of replaced sources are superseded. If such an
        output has overwritten an output of the source that replaced it, a local ledger makes the replacing source run
        again. A failure of a finished task changes nothing. A failure of a task that has fanned out is recorded, and
        cleared by the next leaf below the task. If a leaf is in error, all others are recorded before the error is
        raised.

        Raises:
            NonDeterministicTaskError: A task ended differently than recorded: another fan-out, or other outputs.
            NegativePendingCountError: The rows of a source contradict each other.
            JobMismatchError: Another job has opened the ledger meanwhile. Nothing was recorded.
            LedgerError: The source of a task was never registered.
            DiskFullError: Nothing was recorded, nothing recorded before is lost.
        """

    def record_deaths(self, marks: Sequence[rows.Mark]) -> list[rows.Mark]:
        """Count a worker's death against the tasks that it was processing.

        Returns:
            The tasks that are now quarantined, that is recorded as failed: their workers died `MAX_ATTEMPTS` times.
        """

    def forget(self, pattern: str, *, failures_only: bool = False) -> list[str]:
        """Make sources run again.

        Args:
            pattern: Shell pattern over whole URLs (``*`` also matches ``/``); a pack matches by any member.
            failures_only: Drop only failures and quarantine, so that finished tasks stay finished.

        Returns:
            URLs of the matching sources, sorted.
        """

    def file_times(self, ids: Sequence[bytes]) -> dict[bytes, list[int]]:
        """Return the times recorded by `note_file_times`, by source id; sources without times are left out."""

    def note_file_times(self, times: Mapping[bytes, list[int]]) -> None:
        """Record when the local files of open sources were last changed, in nanoseconds since 1970, for each file.

        The times are stored on this host only, since other hosts have files with other times.
        """

    def forget_sources(self, ids: Iterable[bytes]) -> None:
        """Make sources run again, by id: progress is removed, outputs are superseded. Unknown ids are ignored."""

    def withdraw(self, tasks: Iterable[tuple[bytes, Collection[bytes]]]) -> int:
        """Make single finished tasks run again, also of complete sources; the other tasks stay done.

        The records of the tasks stop counting until the tasks have run. Their outputs are superseded, like the outputs
        of a forgotten source: they become stale only when the source is complete, and only if they were not published
        again. A source is forgotten as a whole if its tasks cannot be distinguished because some have fanned out. A
        crash meanwhile may also forget a whole source: then all of its tasks run again. Call it while no worker of this
        ledger runs, and before `begin_run` of the run that processes the tasks: a remote ledger ignores earlier runs'
        results.

        Args:
            tasks: Ids of tasks by source, as `rejected_tasks` returns them. Unfinished tasks are ignored.

        Returns:
            Number of tasks that run again.
        """

    def withdraw_failures(self, reasons: Mapping[bytes, Collection[str]], quarantined: Iterable[bytes]) -> None:
        """Record durably that failed tasks will run again. `withdrawn` yields their sources until they are complete.

        Args:
            reasons: Reasons of the failures of tasks of open sources, by source id.
            quarantined: Ids of those sources whose failures are dropped, so that their tasks are started again.
        """

    def withdrawn(self) -> Iterator[tuple[bytes, rows.Withdrawn]]:
        """Yield the sources that have withdrawn tasks and are not complete since then, with the reasons.

        The rows are read in pages, in the order of source ids.
        """

    def stale_outputs(self) -> list[str]:
        """Return the names of outputs that were superseded and not written again, sorted.

        An output of a replaced source is stale once its replacement is complete: for a pack, every source that took
        over one of its members. A name that is now an output of any source is never stale. Call it when no worker of
        this ledger runs: between publishing an object and recording it, the object looks stale.
        """

    def superseded_names(self) -> Iterator[list[str]]:
        """Yield the names of all superseded outputs in pages, stale or not; some may have been written again."""

    def drop_stale(self, names: Iterable[str]) -> None:
        """Forget stale outputs, after their objects were deleted. Names that are not stale are ignored."""

    def set_gone(self, ids: Iterable[bytes]) -> None:
        """Replace the set of registered sources that are missing from the last listing. Their outputs stay."""

    def source_urls(self, ids: Iterable[bytes]) -> dict[bytes, str]:
        """Return the URLs of registered sources by id; for a pack the URL of its first member. Skip unknown ids."""

    def gone_ids(self) -> set[bytes]:
        """Return the ids of the registered sources missing from the last finished listing, complete or not."""

    def source_ids(self) -> Iterator[list[bytes]]:
        """Yield the ids of all registered sources, in pages, sorted."""

    def begin_run(self, info: Mapping[str, Any]) -> str:
        """Record the start of a run, with `info` for `status`. Return the run's id."""

    def note_listing(self, run: str, *, listed: int, finished: bool, gone: Iterable[bytes] = ()) -> None:
        """Record the number of sources that a run has listed. A finished listing also sets the gone sources."""

    def note(self, run: str, found: Noted) -> None:
        """Record a measurement of a run. It replaces the last one of its kind; measurements only grow.

        Args:
            run: Id of the run.
            found: The set-ups of user code, the working time of the workers, or the results of audits.
        """

    def end_run(self, run: str, outcome: str, *, tidied: bool = False) -> None:
        """Record the end of a run. A run without an outcome was killed, or is still running.

        Args:
            run: Id of the run.
            outcome: The outcome, for people.
            tidied: Whether all unrecorded outputs of this run and of earlier runs were removed.
        """

    def status(self) -> dict[str, Any]:
        """Return the progress of the job as a JSON object.

        ``{"job", "sources": {"complete", "open", "failed"}, "tasks": {"done", "failed"}, "records", "bytes",
        "filtered", "complete", "listed", "gone", "audit": {"tasks", "differ"}, "last_run"}``. A source with a failure
        counts as failed; a gone and unfinished source counts only as gone. ``complete``: the listing has finished, no
        source is open or failed, and a source is complete unless none was listed. ``records`` is the result of
        `records` as a JSON object, see `RecordCounts.as_dict`.
        """

    def totals(self) -> rows.Totals:
        """Return the sum over the recorded leaves."""

    def records(self) -> RecordCounts:
        """Return the counts of the records of all recorded tasks, in constant time."""

    def task_counts(self) -> Iterator[rows.TaskCountsRow]:
        """Yield the record counts of each task, unless the task wrote exactly the records that it read.

        The rows are read in pages, in the order of source ids. A source's remaining records are of its other tasks.
        """

    def statistics(self) -> Iterator[tuple[str, Statistic]]:
        """Yield the statistics of every recorded task, each with its name, in bounded memory.

        A task counts once, regardless of retries. A task recorded or forgotten meanwhile may be included or not.
        """

    def rejected_tasks(self, reason: str | None = None) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the tasks with rejected records, in the form for `withdraw`: task ids by source id, sorted.

        Args:
            reason: Reason of the rejected records; None for any reason.
        """

    def history(self, since: float = 0.0) -> list[rows.HistoryRow]:
        """Return the recorded work by time, then run: a row for each step of `HISTORY_SECONDS` with work of a run.

        Args:
            since: Seconds since 1970 UTC. Rows start with the step of this time.
        """

    def recorded(self, since: float = 0.0) -> dict[str | None, rows.HistoryRow]:
        """Return the work that each run has recorded since a time, as one row with the time of the run's last step.

        It is the sum of `history`, but much faster.
        """

    def durations(self) -> dict[float, int]:
        """Return the number of tasks by duration in seconds, ascending, on a logarithmic scale with steps of 9 %."""

    def sources(self) -> Iterator[rows.SourceRow]:
        """Yield every registered source and its progress, by id."""

    def runs(self) -> list[dict[str, Any]]:
        """Return every run in order, in the form of ``last_run`` of `status`."""

    def failures(self) -> Iterator[rows.FailureRow]:
        """Yield the recorded failures, by source URL, then task.

        The keys of all failures are in memory at once, but only a page of their messages.
        """

    def outputs(self, *, ordered: bool = True) -> Iterator[rows.OutputRow]:
        """Yield the recorded outputs.

        Args:
            ordered: Whether to order them by source URL, then `Output.first`, then name. This holds all source URLs in
                memory. False yields an arbitrary order in bounded memory.
        """

    def failure_count(self) -> int:
        """Return the number of recorded failures, also of gone sources, in constant time."""

    def source_outputs(self, source_id: bytes) -> list[rows.Output]:
        """Return the recorded outputs of a source, in no order."""

    def output_count(self) -> int:
        """Return the number of recorded outputs, in constant time."""

    def output_columns(self) -> Iterator[rows.OutputColumns]:
        """Yield the recorded outputs in pages of columns: three times as fast as `outputs`, in bounded memory."""

    def content_columns(self) -> Iterator[rows.ContentColumns]:
        """Yield the recorded outputs with their checksums, in pages of columns, like `output_columns`."""

    def refresh(self) -> None:
        """Read what other hosts have recorded since the last call. Do nothing for a local ledger."""
