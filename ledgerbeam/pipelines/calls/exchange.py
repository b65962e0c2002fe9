"""What the calls of exchanges ask for, and do by the stages of which they are made."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import cast

from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.exchange_stages import Stages
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.running import (
    PreparedCall,
    RunOptions,
    checked_options,
)
from ledgerbeam.pipelines.console.run_console import RunConsole
from ledgerbeam.pipelines.dedup.exact import DedupJob, ListedJob
from ledgerbeam.pipelines.exchange.buckets import remove_internal
from ledgerbeam.pipelines.exchange.jobs import GatherJob
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.removal import remove_gone
from ledgerbeam.pipelines.preview.dry_run import as_json, look_at_owner, preview_job
from ledgerbeam.pipelines.runners.waves import Waves


def exchange_result(
    job: GatherJob, how: RunOptions, console: RunConsole, *, keep_runs: bool, command: str = ""
) -> Result:
    """Run an exchange to its end.

    Args:
        job: Its second job, the ledger not yet resolved.
        how: How it is run.
        console: Told of it.
        keep_runs: Whether the run files stay once all is done.
        command: What was called for, if it is not that of the job.

    Raises:
        JobInterrupt: If Ctrl-C ended the run; its state is saved.
        LedgerError: If sources are left open though nothing failed.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: If the options cannot mean anything together.
    """
    return ExchangeCall(job.resolve_ledger(how.ledger), how, keep_runs, command).result(console)


def dedup_result(job: DedupJob, how: RunOptions, console: RunConsole, *, keep_runs: bool) -> Result:
    """Run a deduplication to its end: an exchange that decides, then the job that writes; see `exchange_result`."""
    return DedupCall(job.resolve_ledger(how.ledger), how, keep_runs).result(console)


@dataclasses.dataclass(frozen=True)
class StagedCall(PreparedCall):
    """A call of several jobs, one after the other.

    Attributes:
        keep_runs: Whether the run files stay once all is done.
    """

    keep_runs: bool

    @property
    @abstractmethod
    def exchange(self) -> GatherJob:
        """The exchange that it begins with."""

    def exchanges(self) -> list[GatherJob]:
        """Return the exchanges that it needs, from that which it begins with to that which reads the sources."""
        found = [self.exchange]
        while isinstance(before := next(iter(found[-1].first_writers().values())), GatherJob | ListedJob):
            found.append(before if isinstance(before, GatherJob) else before.decide())
        return found

    def readers(self) -> list[JobSpec]:
        """Return the first stages."""
        return [*self.exchanges()[-1].scatters()]

    def stages(self) -> list[JobSpec]:
        """Return the job, the exchanges that it needs, and the first stages."""
        return list({job.ledger: job for job in [self.job, *self.exchanges(), *self.readers()]}.values())

    def previewed(self, console: RunConsole) -> Result:
        """Find out what a run of the first stages would do, and whether the one behind them would begin."""
        return _previewed(self, self.exchanges()[-1], console)


@dataclasses.dataclass(frozen=True)
class ExchangeCall(StagedCall):
    """A call that is an exchange.

    Attributes:
        asked_for: What was called for, if it is not the command of the job.
    """

    asked_for: str = ""

    @property
    def command(self) -> str:
        """What was called for."""
        return self.asked_for or self.job.command

    @property
    def exchange(self) -> GatherJob:
        """The job."""
        return cast(GatherJob, self.job)

    def checked_options(self) -> list[str]:
        """Return the Beam options, which can mean something for all first stages."""
        *_, found = (checked_options(scatter, self.how) for scatter in self.exchange.scatters())
        return found

    def run(self, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
        """Run what is left of all stages."""
        with console.progress():
            stages = Stages(self.how, console, beam_args, waves, self.command)
            found = stages.exchange(self.exchange, keep_runs=self.keep_runs)
        if not found.is_complete:
            return stages.ended(found.reached, found.outcome)
        remove_gone(found.reached.job, found.reached.store)
        return stages.ended(found.reached, found.joined())


@dataclasses.dataclass(frozen=True)
class DedupCall(StagedCall):
    """A call that writes files without their duplicates."""

    @property
    def command(self) -> str:
        """What was called for, also if it is near duplicates."""
        return "dedup"

    @property
    def exchange(self) -> GatherJob:
        """The exchange that decides."""
        return cast(DedupJob, self.job).decide()

    def checked_options(self) -> list[str]:
        """Return the Beam options, which can mean something for the job that writes."""
        return checked_options(self.job, self.how)

    def run(self, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
        """Run what is left of all stages."""
        with console.progress():
            stages = Stages(self.how, console, beam_args, waves, self.command)
            stages.listed(self.job)  # before anything is made: a wrong pattern is an error at once
            opened = stages.open(self.job)
            stages.begin(opened, "dedup")
            found = stages.listed_job(opened, keep_runs=self.keep_runs, name="dedup")
            outcome = found.outcome
            if found.is_complete:
                last = found.reached
                if remove_gone(last.job, last.store):
                    outcome = dataclasses.replace(outcome, status=last.store.status())
                if not self.keep_runs:
                    remove_internal([cast(DedupJob, self.job).lists_folder], last.job, stages.writers)
        return stages.ended(found.reached, outcome)


def _previewed(call: StagedCall, job: GatherJob, console: RunConsole) -> Result:
    """Find out what a run of the first jobs would do, and whether the one behind them would begin.

    Args:
        call: What was called for.
        job: The exchange that reads its sources.
        console: Told of it.
    """
    how, whole = call.how, cast(ShardJob, call.job)
    left_out = LeftOut()
    listed = [listed_pages(scatter, console.say, left_out) for scatter in job.scatters()]
    try:
        store = open_store(job.ledger, job.storage_options, create=False, read_only=True)
    except LedgerNotFoundError:
        store = None
    stored = None if store is None else store.job()
    decided = job.decided(stored, how.on_job_change, console.say)
    preview, *others = (
        preview_job(scatter, pages, how.on_job_change, how.existing)
        for scatter, pages in zip(decided.scatters(), listed, strict=True)
    )
    for other in others:
        preview.add(other)
    look_at_owner(decided, store, how.existing, preview)
    preview.schema = decided.schemas_json()
    left = sum(number for state, number in preview.sources.items() if state not in ("complete", "gone"))
    summary = {**as_json(preview), "ledger": whole.ledger, "passed_over": left_out.passed_over}
    return Result(call.command, complete=not left, ledger=whole.ledger, output=whole.output, summary=summary)
