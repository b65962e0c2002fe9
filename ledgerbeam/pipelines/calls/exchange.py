"""What every call of an exchange does: its jobs one after the other, wherever the last run has ended."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, cast

from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import Totals
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.running import Ending, RunOptions, checked_options
from ledgerbeam.pipelines.jobs.buckets import ExchangeRuns, are_complete
from ledgerbeam.pipelines.jobs.exchange import GatherJob
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.opening import OpenedJob, open_job
from ledgerbeam.pipelines.jobs.preview import as_json, look_at_owner, preview_job
from ledgerbeam.pipelines.jobs.recorded import forget_lost
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.run_console import RunConsole
from ledgerbeam.pipelines.run_progress import count
from ledgerbeam.pipelines.runners.run import RunOutcome, is_local_runner, run_job, warn_of_lost

__all__ = ["exchange_result"]


def exchange_result(job: GatherJob, how: RunOptions, console: RunConsole, *, keep_runs: bool = False) -> Result:
    """Run an exchange to its end.

    Args:
        job: Its second job, the ledger not yet resolved.
        how: How it is run.
        console: Told of it.
        keep_runs: Whether the run files stay once all is done.

    Raises:
        JobInterrupt: If Ctrl-C ended the run; its state is saved.
        LedgerError: If sources are left open though nothing failed.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: If the options cannot mean anything together.
    """
    job = job.resolve_ledger(how.ledger)
    beam_args = checked_options(job.scatter(), how)
    if how.dry_run:
        return _previewed(job, how, console)
    stages = _Stages(how, console, beam_args, job.command)
    with console.progress():
        # Before anything is made: a wrong pattern is an error at once.
        pages = stages.listed(job.scatter())
        gather = stages.open(job)
        job = cast(GatherJob, gather.job)
        shown = os.path.relpath(job.ledger) if is_local(job.ledger) and not how.ledger else job.ledger
        console.say(f"ledger: {shown} ({gather.state})")
        scatter = stages.open(job.scatter())
        scattered = stages.run("scatter", scatter, pages)
        runs = ExchangeRuns(job, scatter.store)
        page = None
        if scattered.is_complete:
            warn_of_lost(forget_lost(job, gather.store), console)
            page = runs.known()
            if page is None or not are_complete(page, gather.store):
                lost = forget_lost(scatter.job, scatter.store)
                if lost:
                    console.warn(f"{count(lost, 'run file')} of earlier runs are gone; their sources are done again")
                    scattered = stages.run("scatter", scatter, stages.listed(scatter.job))
                    runs = ExchangeRuns(job, scatter.store)
                page = runs.tabulate() if scattered.is_complete else None
        if page is None:
            console.warn(f"{job.output}: nothing is written there before all of the sources are scattered")
            return stages.ended(scatter, scattered)
        console.say(f"{count(len(runs), 'run file')} of {count(runs.size, 'byte')} -> {count(len(page), 'bucket')}")
        gather = dataclasses.replace(gather, job=job.with_state(runs.state))
        gathered = stages.run("gather", gather, iter([page]))
        if gathered.is_complete and not keep_runs:
            runs.remove()
    return stages.ended(gather, _joined(scattered, gathered) if gathered.is_complete else gathered)


class _Stages:
    """Runs the jobs of an exchange, and tells of them."""

    def __init__(self, how: RunOptions, console: RunConsole, beam_args: list[str], command: str) -> None:
        self._how = how
        self._console = console
        self._beam_args = beam_args
        self._command = command
        self._left_out = LeftOut()
        self._done: dict[str, dict[str, Any]] = {}

    def listed(self, job: JobSpec) -> Iterator[Page]:
        """Return the listing of a job, whose first page was checked."""
        self._left_out = LeftOut()
        return listed_pages(job, self._console.say, self._left_out)

    def open(self, job: Any) -> OpenedJob:
        """Take the ledger of a job for it."""
        return open_job(job, self._how.on_job_change, self._how.existing, self._console.say)

    def run(self, name: str, opened: OpenedJob, pages: Iterator[Page]) -> RunOutcome:
        """Run a job."""
        how = self._how
        self._console.say(f"{name}: {opened.state}")
        outcome = run_job(
            opened.job,
            opened.store,
            pages,
            self._console,
            self._beam_args,
            owner=opened.owner,
            force=how.force,
            debug=how.debug,
        )
        self._done[name] = {
            "ledger": opened.job.ledger,
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            **{part: outcome.status[part] for part in ("complete", "sources", "tasks", "bytes")},
            "records": shown_records(outcome.records),
            "done": {**outcome.done._asdict(), "records": shown_records(outcome.run_records)},
        }
        return outcome

    def ended(self, opened: OpenedJob, outcome: RunOutcome) -> Result:
        """Return how the exchange has ended, with the job that it came to, and tell of it.

        Raises:
            JobInterrupt: If Ctrl-C ended the run.
            LedgerError: If sources are left open though nothing failed.
        """
        passed_over = self._left_out.passed_over if is_local_runner(self._beam_args) else None
        ending = Ending(
            opened.job, opened.store, outcome, passed_over=passed_over, command=self._command, stages=self._done
        )
        return ending.told(self._console)


def _joined(scattered: RunOutcome, gathered: RunOutcome) -> RunOutcome:
    """Return how both jobs of an exchange have ended as one: the sources are those of the first."""
    tasks = {name: scattered.status["tasks"][name] + gathered.status["tasks"][name] for name in ("done", "failed")}
    first, second = scattered.done, gathered.done
    return dataclasses.replace(
        gathered,
        status={**gathered.status, "sources": scattered.status["sources"], "tasks": tasks},
        skipped=scattered.skipped,
        done=Totals(**{**second._asdict(), "tasks": first.tasks + second.tasks}),
        seconds=scattered.seconds + gathered.seconds,
        completed=scattered.completed,
    )


def _previewed(job: GatherJob, how: RunOptions, console: RunConsole) -> Result:
    """Find out what a run of the first job would do, and whether the second one would begin."""
    left_out = LeftOut()
    pages = listed_pages(job.scatter(), console.say, left_out)
    try:
        store = open_ledger(job.ledger, job.storage_options, create=False, read_only=True)
    except LedgerNotFoundError:
        store = None
    stored = None if store is None else store.job()
    decided = job.decided(stored, how.on_job_change, console.say)
    preview = preview_job(decided.scatter(), pages, how.on_job_change, how.existing, say=console.say)
    look_at_owner(decided, store, how.existing, preview)
    preview.schema = decided.schemas_json()
    left = sum(number for state, number in preview.sources.items() if state not in ("complete", "gone"))
    summary = {**as_json(preview), "ledger": job.ledger, "passed_over": left_out.passed_over}
    return Result(job.command, complete=not left, ledger=job.ledger, output=job.output, summary=summary)
