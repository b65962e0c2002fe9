"""What every call that runs a job does, from the job to its result."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from ledgerbeam._base.beam_import import import_beam, logging_kept
from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import LedgerError, UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.console.reporter import count_nulled
from ledgerbeam.pipelines.console.run_console import RunConsole
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.claim import open_job
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.retry import partial_run, require_failed, sources_that_failed, withdraw_rejected
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.owner import Existing
from ledgerbeam.pipelines.outputs.removal import remove_gone
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.ledger import Ledger
from ledgerbeam.pipelines.runners.beam import check_options, check_reach
from ledgerbeam.pipelines.runners.profiles import refuse_no_profile
from ledgerbeam.pipelines.runners.run import RunOutcome, is_local_runner, require_local, run_job, warn_of_lost
from ledgerbeam.pipelines.runners.waves import Waves, require_descriptors

SHOWN_FAILURES = 3


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a job is run: what the calls of all jobs take.

    Attributes:
        ledger: Where progress is kept; None for the default place.
        on_job_change: What to do with the ledger of another job.
        existing: What to do with shards of others in the output folder; None refuses them.
        only_failed: Do only the sources with a failure of this reason.
        only_rejected: Do again only the tasks that rejected records for this reason.
        dry_run: Find out what would be done.
        force: Whether sources that the ledger holds as complete are done again.
        withdraws: Whether the outputs of sources that are gone go, too, once all others are complete.
        options: Beam options.
        debug: Whether errors carry whole tracebacks.
    """

    ledger: str | None
    on_job_change: OnJobChange
    existing: Existing | None = None
    only_failed: str | None = None
    only_rejected: str | None = None
    dry_run: bool = False
    force: bool = False
    withdraws: bool = False
    options: Sequence[str] = ()
    debug: bool = False


def done_json(outcome: RunOutcome) -> dict[str, Any]:
    """Return what a run has done."""
    records = shown_records(outcome.run_records)
    return {**outcome.done._asdict(), "written": outcome.done.records, "records": records}


def job_result(job: JobSpec, how: RunOptions, console: RunConsole) -> Result:
    """Run a job, and make of its outputs what it is to make of them.

    Args:
        job: The job, its ledger not yet resolved.
        how: How it is run.
        console: Told of it.

    Raises:
        JobInterrupt: If Ctrl-C ended the run; its state is saved.
        LedgerError: If sources are left open though nothing failed.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: If the options cannot mean anything together.
    """
    return JobCall(job.resolve_ledger(how.ledger), how).result(console)


@dataclass(frozen=True)
class PreparedCall(ABC):
    """What a call asks for: checked, and not begun.

    Attributes:
        job: Its job, with the ledger that the user asks about.
        how: How it is run.
    """

    job: JobSpec
    how: RunOptions

    @property
    def command(self) -> str:
        """What was called for."""
        return self.job.command

    @abstractmethod
    def readers(self) -> list[JobSpec]:
        """Return the jobs that read the sources: the one that is all of the call, or the first stages."""

    def stages(self) -> list[JobSpec]:
        """Return its jobs, from the last to those that read the sources, as far as they are known before they run."""
        return [self.job]

    @abstractmethod
    def checked_options(self) -> list[str]:
        """Return the Beam options, which can mean something for the jobs; raises UsageError."""

    @abstractmethod
    def run(self, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
        """Run what is left."""

    @abstractmethod
    def previewed(self, console: RunConsole) -> Result:
        """Find out what a run would do."""

    def result(self, console: RunConsole, waves: Waves | None = None) -> Result:
        """Do what was called for, unless the call was only to be prepared; see `prepared`.

        Args:
            console: Told of it.
            waves: Start the waves, if several calls share them.

        Raises:
            JobInterrupt: If Ctrl-C ended the run; its state is saved.
            LedgerbeamError: What ended the run early. All that was recorded stays recorded.
            UsageError: If the options cannot mean anything together.
        """
        asked = _asked.get()
        if asked is not None:
            asked.append(self)
            return Result(self.command, complete=False, ledger=self.job.ledger, output=self.job.output)
        beam_args = self.checked_options()
        if self.how.dry_run:
            return self.previewed(console)
        if self.how.only_failed is not None or self.how.only_rejected is not None:  # of a job that has a ledger
            open_store(self.job.ledger, self.job.storage_options, read_only=True).close()
        if waves is not None:
            prepare_waves(waves, self.job, beam_args)
            return self.run(console, beam_args, waves)
        with Waves(self.job.log_level, self.job.schemes()) as own:
            prepare_waves(own, self.job, beam_args)
            return self.run(console, beam_args, own)


_asked: ContextVar[list[PreparedCall] | None] = ContextVar("asked", default=None)
"""Where calls are put that are only to be prepared; None where they are to be done."""


def prepared(call: Callable[..., Result], *args: Any, **options: Any) -> PreparedCall:
    """Return what a call asks for, without doing it.

    Args:
        call: One that runs a job.
        args: Of the call.
        options: Likewise.

    Raises:
        LedgerbeamError: What the call raises before it begins.
    """
    found: list[PreparedCall] = []
    token = _asked.set(found)
    try:
        call(*args, **options)
    finally:
        _asked.reset(token)
    return found[0]


@dataclass(frozen=True)
class JobCall(PreparedCall):
    """A call that is one job."""

    def readers(self) -> list[JobSpec]:
        """Return the job."""
        return [self.job]

    def checked_options(self) -> list[str]:
        """Return the Beam options; see `checked_options`."""
        return checked_options(self.job, self.how)

    def run(self, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
        """Run the job."""
        return _job_result(self.job, self.how, console, beam_args, waves)

    def previewed(self, console: RunConsole) -> Result:
        """Find out what a run of the job would do."""
        return _previewed(self.job, self.how, console)


def _job_result(job: JobSpec, how: RunOptions, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
    left_out = LeftOut()
    with console.progress():
        pages = listed_pages(job, console.say, left_out)
        opened = open_job(job, how.on_job_change, how.existing, console.say)
        job, store = opened.job, opened.store
        job.require_sources(store)
        shown = os.path.relpath(job.ledger) if is_local(job.ledger) and not how.ledger else job.ledger
        console.say(f"ledger: {shown} ({opened.state})")
        only, asked = None, None
        if how.only_failed is not None:
            require_failed([store], how.only_failed)
            asked = partial_run(store, "failed", how.only_failed)
            only = sources_that_failed(store, how.only_failed)
        if how.only_rejected is not None:
            asked = partial_run(store, "rejected", how.only_rejected)
            only = withdraw_rejected(store, how.only_rejected)
        run = partial(
            run_job,
            job,
            store,
            reporter=console,
            beam_args=beam_args,
            waves=waves,
            owner=opened.owner,
            debug=how.debug,
        )
        outcome: RunOutcome = run(pages, force=how.force, only=only, asked=asked)

    def rewrite(lost: int) -> bool:
        nonlocal outcome
        warn_of_lost(lost, console)
        with console.progress():
            outcome = run(listed_pages(job, console.say))
        return outcome.is_complete

    if how.withdraws and outcome.is_complete:
        if removed := remove_gone(job, store):
            console.say(f"{count(removed, 'output')} of sources that are gone removed")
        outcome = replace(outcome, status=store.status())
    made: list[Any] = []
    product = job.product()
    if product is not None and outcome.is_complete:
        made = product.make(job, store, rewrite=rewrite, say=console.say)
    passed_over = left_out.passed_over if is_local_runner(beam_args) else None  # others list inside of the pipeline
    if outcome.is_complete and outcome.done.tasks:
        tell_doubts(job, store, console)
    return Ending(job, store, outcome, made, passed_over, only is not None).told(console)


def prepare_waves(waves: Waves, job: JobSpec, beam_args: Sequence[str]) -> None:
    """Have the waves of a call prepared, unless its ledger may soon say that all is done.

    Args:
        waves: Of the call, or of several.
        job: One of the call's, its ledger resolved.
        beam_args: Beam options of the user.

    Raises:
        StorageError: If processes of waves may not open as many files as they need.
    """
    if not is_local_runner(beam_args):
        return
    require_descriptors(job.workers)
    if not (is_local(job.ledger) and os.path.exists(job.ledger)):
        waves.prepare(job.parts_of_beam())


def tell_doubts(job: JobSpec, store: LedgerStore, console: RunConsole) -> None:
    """Tell what looks like a mistake in what was asked for."""
    for doubt in job.doubts(store):
        console.warn(doubt)


def checked_options(job: JobSpec, how: RunOptions) -> list[str]:
    """Return the Beam options of a run, which can mean something for the job.

    Raises:
        UsageError: They cannot.
    """
    if isinstance(how.options, str):
        raise UsageError(
            f"options: expected a list of Beam options such as ['--runner=PrismRunner'], found {how.options!r}"
        )
    beam_args = list(how.options)
    if job.devices and not is_local_runner(beam_args):
        raise UsageError("--devices is for the local runner: on another, give each of its workers its device")
    if job.profile is not None:
        _check_profile(job.profile, job.storage_options, beam_args, dry_run=how.dry_run)
    _check_choice(job, how, beam_args)
    if beam_args:
        import_beam()
        with logging_kept():
            check_options(beam_args)
            check_reach(job, beam_args)
    return beam_args


def _check_choice(job: JobSpec, how: RunOptions, beam_args: Sequence[str]) -> None:
    """Refuse a choice of some sources or tasks that cannot be made."""
    for option in ("only_failed", "only_rejected"):
        if how.dry_run and getattr(how, option) is not None:
            raise UsageError(f"--dry-run shows everything that is open: leave --{option.replace('_', '-')} out")
    if how.only_rejected is not None and how.only_failed is not None:
        raise UsageError("--only-rejected and --only-failed choose different tasks; give one of them, then the other")
    if how.only_rejected is not None or how.only_failed is not None or (job.task_limit is not None and not how.dry_run):
        require_local(beam_args)


def _check_profile(url: str, options: Mapping[str, Any], beam_args: Sequence[str], *, dry_run: bool) -> None:
    if dry_run:
        raise UsageError("--dry-run runs nothing that could be profiled: leave --profile out")
    if not is_local_runner(beam_args):
        raise UsageError(
            "--profile is for the local runner; on another, Beam's own options have each worker profiled by cProfile: "
            "-- --profile_cpu --profile_location=URL"
        )
    refuse_no_profile(url, options)


def _previewed(job: JobSpec, how: RunOptions, console: RunConsole) -> Result:
    """Find out what a run of a job would do."""
    from ledgerbeam.pipelines.preview.dry_run import as_json, preview_job

    left_out = LeftOut()
    pages = listed_pages(job, console.say, left_out)
    preview = preview_job(job, pages, how.on_job_change, how.existing, force=how.force, say=console.say)
    left = sum(number for state, number in preview.sources.items() if state not in ("complete", "gone"))
    summary = {**as_json(preview), "passed_over": left_out.passed_over}
    return Result(job.command, complete=not left, ledger=job.ledger, output=job.output, summary=summary)


@dataclass(frozen=True)
class Ending:
    """How a run ended, on its way to a `Result`.

    Attributes:
        job: The job.
        store: Its ledger.
        outcome: How its run ended.
        made: What was made of its outputs.
        passed_over: How many listed files were no sources; None if it is not known.
        is_partial: Whether the run was to do only some sources.
        command: What was called for, if the job is one stage of it; empty for the job's own command.
        whole: The ledger of what was called for, if the job is one stage of it; empty for the job's own.
        stages: How the stages of it ended, by name, if there are several.
    """

    job: JobSpec
    store: LedgerStore
    outcome: RunOutcome
    made: list[Any] = field(default_factory=list)
    passed_over: int | None = None
    is_partial: bool = False
    command: str = ""
    whole: str = ""
    stages: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def _ledger(self) -> str:
        """The ledger that the user asks about all of it."""
        return self.whole or self.job.ledger

    def told(self, console: RunConsole) -> Result:
        """Return the result, and tell of it and of what is left.

        Raises:
            JobInterrupt: If Ctrl-C ended the run.
            LedgerError: If sources are left open though nothing failed.
        """
        result = self._result()
        console.ended(result)
        for line in self._lines():
            console.warn(line)
        if self.outcome.interrupted:
            tasks = self.outcome.status["tasks"]["done"]
            raise JobInterrupt(f"{count(tasks, 'task')} are recorded; the same call goes on with the others", result)
        for line in self._left():
            console.warn(line)
        return result

    def _result(self) -> Result:
        outcome, product = self.outcome, self.job.product()
        ledger = Ledger(self.store, self.job.storage_options)
        return Result(
            command=self.command or self.job.command,
            sources=outcome.completed,
            tasks=outcome.done.tasks,
            records=outcome.run_records,
            seconds=outcome.seconds,
            complete=outcome.is_complete,
            interrupted=outcome.interrupted,
            ledger=self._ledger,
            output=(self.job.output if product is None else product.place(self.job)) or None,
            outputs=ledger.outputs(),
            failures=ledger.failures(),
            rejects=ledger.rejects(),
            summary=self._summary(),
            warnings=(*self._stale(), *self._left_by_choice()),
            _stats=ledger.stats,
        )

    def _summary(self) -> dict[str, Any]:
        product, outcome = self.job.product(), self.outcome
        nulled = count_nulled(self.store)
        return {
            "ledger": self._ledger,
            "output": self.job.output,
            **({} if product is None else {product.name: self.made}),
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            "passed_over": self.passed_over,
            "interrupted": outcome.interrupted,
            "out_of_date": outcome.out_of_date,
            "unrecorded": outcome.unrecorded,
            "limited": outcome.limited,
            "submitted": outcome.submitted,
            **outcome.status,
            "records": shown_records(outcome.records),
            "done": done_json(outcome),
            **({} if nulled is None else {"nulled": nulled}),
            **({"stages": dict(self.stages)} if self.stages else {}),
        }

    def _lines(self) -> Iterator[str]:
        """Yield what is to be known of records that were rejected, and of tasks that failed."""
        status, ledger = self.outcome.status, shlex.quote(self._ledger)
        rejected = sum(status["records"]["rejected"].values())
        if rejected:
            yield f"{count(rejected, 'record')} rejected so far; to see them: ledgerbeam ledger rejects {ledger}"
        if failed := status["tasks"]["failed"]:
            shown = list(islice(self.store.failures(), SHOWN_FAILURES))
            which = " those that are not quarantined" if any(row.quarantined for row in shown) else ""
            yield (
                f"{count(failed, 'task')} of {count(status['sources']['failed'], 'source')} failed; run the same "
                f"command again to retry{which}; to see all: ledgerbeam ledger failures {ledger}"
            )
            product = self.job.product()
            if product is not None:
                yield product.not_made(self.job)
            for row in shown:
                yield f"  {printable(without_secrets(row.error or row.reason))}"

    def _stale(self) -> Iterator[str]:
        """Yield what is wrong with the outputs though no task failed."""
        outcome, where = self.outcome, self.job.output or "the indexes"
        if outcome.out_of_date:
            yield (
                f"{where}: {count(outcome.out_of_date, 'output')} out of date left beside the right ones, since "
                "another run may still be at work on this ledger; once that has ended, run the same command again: it "
                "removes them"
            )
        if outcome.unrecorded:
            yield f"{where}: {count(outcome.unrecorded, 'shard')} there that this ledger has not recorded"

    def _left_by_choice(self) -> Iterator[str]:
        """Yield how many sources a partial run has left open."""
        left = self.outcome.status["sources"]["open"]
        if left and self.is_partial and not self.outcome.limited and not self.outcome.interrupted:
            yield (
                f"{count(left, 'source')} left open, since this run was to do only some; run the same command without "
                "--only-failed and --only-rejected to do them"
            )

    def _left(self) -> Iterator[str]:
        """Yield what is left of the work."""
        outcome, job = self.outcome, self.job
        if outcome.out_of_date:
            yield next(self._stale())
        yield from self._left_by_choice()
        left = outcome.status["sources"]["open"]
        if outcome.submitted:
            yield (
                "when the service has run what is staged, run the same command again without --template_location: it "
                f"does what is left and removes what is out of date; until then: ledgerbeam ledger status {job.ledger}"
            )
        elif outcome.limited:
            yield (
                f"stopped after {count(int(job.task_limit or 0), 'task')}, as --limit-tasks asks; "
                f"{count(left, 'source')} of those listed so far left open; the same command continues with them"
            )
        elif left and not self.is_partial:
            raise LedgerError(f"{job.ledger}: {count(left, 'source')} left open, though nothing failed; {job.why_open}")
