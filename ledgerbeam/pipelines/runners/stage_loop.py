"""Calls of jobs: the loop over their stages, from the state of the last run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import LedgerError, LedgerNotFoundError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import refuse_links
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.console.reporter import PartConsole, RunConsole, count_nulled
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs import claim
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.spec import FinishedStage, JobSpec, Stage, StageSources
from ledgerbeam.pipelines.outputs.recorded import forget_lost, remove_gone
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.ledger import Ledger
from ledgerbeam.pipelines.report.state import every_ledger, stage_ledgers, stage_tasks, stages_line
from ledgerbeam.pipelines.runners.run import (
    RunOptions,
    RunOutcome,
    checked_options,
    is_local_runner,
    run_job,
    warn_of_lost,
)
from ledgerbeam.pipelines.runners.waves import Waves, imports_of, require_descriptors

SHOWN_FAILURES = 3


@dataclass(frozen=True)
class PreparedCall:
    """A call whose values are valid, and which has not started."""

    job: JobSpec  # its job, with the ledger that the user has named
    how: RunOptions

    @property
    def command(self) -> str:
        """The user's command."""
        return self.job.user_command

    @property
    def has_stages(self) -> bool:
        """Whether the job has several stages."""
        return len(self.job.plan()) > 1

    def stages(self) -> list[JobSpec]:
        """Return the jobs of all stages that are known before the run, the last stage first."""
        return [stage.job for stage in reversed(self.job.plan())]

    def readers(self) -> list[JobSpec]:
        """Return the jobs of the first stages, which read the sources."""
        return [stage.job for stage in self.job.plan() if not stage.inputs()]

    def checked_options(self) -> list[str]:
        """Return the Beam options."""
        checked = [self.job] if self.job.reads_sources else self.readers()
        *_, found = (checked_options(job, self.how) for job in checked)
        return found

    def _previewed(self, console: RunConsole) -> Result:
        from ledgerbeam.pipelines.preview.dry_run import preview_plan  # noqa: PLC0415 - brings NumPy

        left_out, job = LeftOut(), self.job
        preview = preview_plan(job.plan(), lambda one: listed_pages(one, console.say, left_out), self.how, console.say)
        left = sum(number for state, number in preview.sources.items() if state not in ("complete", "gone"))
        summary = {**preview.values(), "ledger": job.ledger, "passed_over": left_out.passed_over}
        return Result(self.command, complete=not left, ledger=job.ledger, output=job.output, summary=summary)

    def result(self, console: RunConsole, waves: Waves | None = None) -> Result:
        """Run or preview the job. `waves` are shared with other calls; None for waves of this call alone.

        Raises:
            JobInterrupt: Ctrl-C ended the run; its state is saved.
            LedgerbeamError: The error that ended the run early. Everything recorded stays recorded.
        """
        beam_args = self.checked_options()
        if self.how.dry_run:
            return self._previewed(console)
        if self.how.only_failed is not None or self.how.only_rejected is not None:  # they need a ledger
            open_store(self.job.ledger, self.job.storage_options, read_only=True).close()
        with Waves(self.job.log_level, self.job.schemes()) if waves is None else nullcontext(waves) as used:
            if is_local_runner(beam_args):
                require_descriptors(self.job.workers)
                if not (is_local(self.job.ledger) and os.path.exists(self.job.ledger)):  # else it may show no work
                    used.prepare(imports_of(self.job, beam_args))
            return StageLoop(self.job, self.how, console, beam_args, used).run()


@dataclass(eq=False)
class StageLoop:
    """One run of all stages of a job, and its result."""

    job: JobSpec
    how: RunOptions
    console: RunConsole
    beam_args: Sequence[str]
    waves: Waves

    def __post_init__(self) -> None:
        # The job that ran last, its ledger, and its outcome. They are set after the stages.
        self._job: JobSpec
        self._store: LedgerStore
        self._outcome: RunOutcome
        plan = self.job.plan()
        self._last = plan[-1]
        self._readers = [stage for stage in plan if not stage.inputs()]
        self._has_stages = len(plan) > 1
        self._pages: dict[str, Iterator[Page]] = {}
        self._left_out: dict[tuple[str, ...], LeftOut] = {}
        self._opened: dict[str, claim.OpenedJob] = {}
        self._stages: dict[str, Stage] = {}
        self._writers: set[str] = set()  # ids of ledgers
        self._done: dict[str, FinishedStage] = {}
        self._repaired: set[str] = set()
        self._outcomes: dict[str, RunOutcome] = {}
        self._ran: list[RunOutcome] = []
        self._summaries: dict[str, dict[str, Any]] = {}
        self._is_partial = False  # whether the run selected only some sources
        self._made: list[Any] = []  # result of the product of the job

    def run(self) -> Result:
        """Run all stages that are not complete, make the product of the job, and show the result and remaining work.

        Raises:
            JobInterrupt: Ctrl-C ended the run.
            LedgerError: Sources are open although nothing has failed.
        """
        with self.console.progress():
            for stage in self._readers:  # a wrong pattern is an error before anything is created
                self._pages[stage.job.ledger] = self._list(stage.job)
            self._begin(self._open(self._last))
            stage, self._outcome = self._run_stages()
        opened = self._opened[stage.job.ledger]
        self._job, self._store = opened.job, opened.store
        if self._outcome.is_complete:
            self._remove_gone()
            self._make_product(opened)
            if not self._job.reads_sources:
                self._count_sources_of_readers()
        if self._has_stages:
            self._sum_stages()
        result = self._result()
        self.console.ended(result)
        for line in self._lines():
            self.console.warn(line)
        if self._outcome.interrupted:
            tasks = self._outcome.status["tasks"]["done"]
            raise JobInterrupt(f"interrupted after {count(tasks, 'task')}; run the same call again to resume", result)
        for line in self._left():
            self.console.warn(line)
        return result

    def _begin(self, last: Stage) -> None:
        opened, how = self._opened[last.job.ledger], self.how
        url, store, options = last.job.ledger, opened.store, last.job.storage_options
        state = opened.state
        if self._has_stages and state != "new":
            state = f"resuming: {stages_line({**stage_ledgers(store, options), last.name: store})}"
        shown = os.path.relpath(url) if is_local(url) and not how.ledger else url
        self.console.say(f"ledger: {shown} ({state})")
        if how.only_failed is not None:
            claim.require_failed(every_ledger(store, options), how.only_failed)

    def _run_stages(self) -> tuple[Stage, RunOutcome]:
        """Run stages until the last one is complete, or a stage stays incomplete. Return the stage that ran last."""
        while True:
            stage = self._next()
            outcome = self._run_stage(stage)
            if outcome is not None and (not outcome.is_complete or stage.job.ledger == self._last.job.ledger):
                return stage, outcome

    def _next(self) -> Stage:
        """Return the first incomplete stage. Open the stages that depend on it, the last one first."""
        stage = self._open(self._last)
        while True:
            inputs = stage.inputs()
            waiting = next((one for one in inputs if one.job.ledger not in self._done), None)
            if waiting is not None:
                stage = self._open(waiting)
                continue
            longer = stage.longer([self._done[one.job.ledger] for one in inputs])
            if longer is None:
                return stage
            self._stages[stage.job.ledger] = stage = longer

    def _open(self, stage: Stage) -> Stage:
        """Open the ledger and check the output folder of a stage, once; return the stage with its stored values."""
        job = stage.job
        if job.ledger not in self._stages:
            if job.output is not None and job.output.startswith(f"{self._last.job.output}/"):
                refuse_links(str(self._last.job.output), [job.output])
            opened = claim.open_job(job, self.how.on_job_change, self.how.existing, self.console.say)
            opened.job.require_sources(opened.store)
            if opened.owner is not None and opened.owner.is_alone:
                self._writers.add(opened.store.ledger_id())
            self._opened[job.ledger] = opened
            self._stages[job.ledger] = stage = stage.with_job(opened.job)
            if self._has_stages:
                stage.require_others()
        return self._stages[job.ledger]

    def _run_stage(self, stage: Stage) -> RunOutcome | None:
        """Run a stage whose inputs are complete; return None if some of them must run again first."""
        job, store = stage.job, self._opened[stage.job.ledger].store
        inputs = [self._done[one.job.ledger] for one in stage.inputs()]
        self._mark_unused(stage)
        if inputs and job.keeps_shards:
            warn_of_lost(forget_lost(job, store), self.console)
        sources = stage.sources(store, self._done, self._list)
        if not sources.is_settled:
            if self._forget_lost(stage, sources, inputs):
                return None
            sources.settle(self.console.say)
        outcome = self._run(stage, sources)
        sources.check(store, is_complete=outcome.is_complete, has_run=outcome.done.tasks > 0)
        if outcome.is_complete:
            self._done[job.ledger] = FinishedStage(sources.job, store, sources)
            if outcome.done.tasks:
                for doubt in sources.job.doubts(store):
                    self.console.warn(doubt)
            if not self.how.keep_runs:
                sources.remove_inputs(self._writers)
        elif stage.target:
            self.console.warn(f"{stage.target}: nothing is written there before the first stage is complete")
        return outcome

    def _mark_unused(self, stage: Stage) -> None:
        """Record in the ledgers of unused stages that their sources are gone. Stop at the first missing ledger."""
        for url in stage.unused():
            try:
                store = open_store(url, stage.job.storage_options, create=False)
            except LedgerNotFoundError:
                return
            known = {one for page in store.source_ids() for one in page}
            if known - store.gone_ids():
                store.note_listing(store.runs()[-1]["id"], listed=0, finished=True, gone=known)

    def _forget_lost(self, stage: Stage, sources: StageSources, inputs: Sequence[FinishedStage]) -> bool:
        """If outputs of input stages are lost, return True, and let the input stages run again, at most once."""
        ledger = stage.job.ledger
        if not stage.job.keeps_shards:
            forget_lost(stage.job, self._opened[ledger].store)  # later stages read the other outputs, too
        if ledger in self._repaired:
            return False
        lost = sum(forget_lost(one.job, one.store) for one in inputs)
        if lost:
            if text := sources.lost_text(lost):
                self.console.warn(text)
            self._repaired = {ledger, *(self._repaired - self._done.keys())}
            self._done.clear()
        return lost > 0

    def _list(self, job: JobSpec) -> Iterator[Page]:
        """Return the listing of a job, whose first page was checked. A listing is used only once."""
        if job.ledger in self._pages:
            return self._pages.pop(job.ledger)
        left_out = self._left_out[job.sources().names] = LeftOut()
        return listed_pages(job, self.console.say, left_out)

    def _run(self, stage: Stage, sources: StageSources) -> RunOutcome:
        """Run the tasks of a stage: the selection of a partial run, or all open tasks."""
        job, opened, how = sources.job, self._opened[stage.job.ledger], self.how
        store = opened.store
        only: frozenset[bytes] | None = None
        asked: dict[str, str] | None = None
        if how.only_failed is not None:
            asked = claim.partial_run(store, "failed", how.only_failed)
            only = claim.sources_that_failed(store, how.only_failed)
            if self._has_stages and not only:  # another stage has failed
                only = None
        if how.only_rejected is not None:
            asked = claim.partial_run(store, "rejected", how.only_rejected)
            only = claim.withdraw_rejected(store, how.only_rejected)
        self._is_partial = only is not None
        console = self.console
        if self._has_stages:
            status, state = store.status(), "new"
            if any(status["sources"].values()):
                state = f"{'complete' if status['complete'] else 'resuming'}, {stage_tasks(store)} tasks done"
            console.say(f"{stage.name}: {state}")
            console = PartConsole(console, stage.name)
        shared: dict[str, Any] = {"waves": self.waves, "owner": opened.owner, "debug": how.debug}
        pages, args = sources.pages(), self.beam_args
        outcome = run_job(job, store, pages, console, args, **shared, force=how.force, only=only, asked=asked)
        self._outcomes[job.ledger] = outcome
        self._ran.append(outcome)
        self._summaries[stage.name] = {
            "ledger": job.ledger,
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            **{part: outcome.status[part] for part in ("complete", "sources", "tasks", "bytes")},
            "records": shown_records(outcome.records),
            "done": done_json(outcome),
        }
        return outcome

    def _remove_gone(self) -> None:
        """Remove the outputs of missing sources, if the job or the user asks for it."""
        if not (self.how.withdraws or self._job.removes_gone):
            return
        removed = remove_gone(self._job, self._store)
        if removed and not self._job.removes_gone:
            self.console.say(f"removed {count(removed, 'output')} of missing sources")
        if removed:
            self._outcome = replace(self._outcome, status=self._store.status())

    def _make_product(self, opened: claim.OpenedJob) -> None:
        """Make the product of a complete job. The job runs once more if shards are missing."""
        job = self._job
        product = job.product()
        if product is None:
            return

        def rewrite(lost: int) -> bool:
            warn_of_lost(lost, self.console)
            shared: dict[str, Any] = {"waves": self.waves, "owner": opened.owner, "debug": self.how.debug}
            with self.console.progress():
                pages = listed_pages(job, self.console.say)
                self._outcome = run_job(job, self._store, pages, self.console, self.beam_args, **shared)
            return self._outcome.is_complete

        self._made = product.make(job, self._store, rewrite=rewrite, say=self.console.say)

    def _count_sources_of_readers(self) -> None:
        """Set the sources of the outcome of an exchange to the sources of the stages that read them."""
        first = [self._outcomes[stage.job.ledger] for stage in self._readers]
        self._outcome = replace(
            self._outcome,
            status={**self._outcome.status, "sources": _summed([one.status["sources"] for one in first])},
            skipped=sum(one.skipped for one in first),
            completed=sum(one.completed for one in first),
        )

    def _sum_stages(self) -> None:
        outcome = self._outcome
        self._outcome = replace(
            outcome,
            status={**outcome.status, "tasks": _summed([one["tasks"] for one in self._summaries.values()])},
            done=outcome.done._replace(tasks=sum(one.done.tasks for one in self._ran)),
            seconds=sum(one.seconds for one in self._ran),
        )

    def _result(self) -> Result:
        outcome, product = self._outcome, self._job.product()
        ledger = Ledger(self._store, self._job.storage_options)
        return Result(
            command=self._last.job.user_command,
            sources=outcome.completed,
            tasks=outcome.done.tasks,
            records=outcome.run_records,
            seconds=outcome.seconds,
            complete=outcome.is_complete,
            interrupted=outcome.interrupted,
            ledger=self._last.job.ledger,
            output=(self._job.output if product is None else product.place(self._job)) or None,
            outputs=ledger.outputs(),
            failures=ledger.failures(),
            rejects=ledger.rejects(),
            summary=self._summary(),
            warnings=(*self._stale(), *self._left_by_choice()),
            _stats=ledger.stats,
        )

    def _summary(self) -> dict[str, Any]:
        product, outcome = self._job.product(), self._outcome
        nulled, is_listed_here = count_nulled(self._store), is_local_runner(self.beam_args)
        return {
            "ledger": self._last.job.ledger,
            "output": self._job.output,
            **({} if product is None else {product.name: self._made}),
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            # None for runners that list inside of the pipeline.
            "passed_over": sum(one.passed_over for one in self._left_out.values()) if is_listed_here else None,
            "interrupted": outcome.interrupted,
            "out_of_date": outcome.out_of_date,
            "unrecorded": outcome.unrecorded,
            "limited": outcome.limited,
            "submitted": outcome.submitted,
            **outcome.status,
            "records": shown_records(outcome.records),
            "done": done_json(outcome),
            **({} if nulled is None else {"nulled": nulled}),
            **({"stages": self._summaries} if self._has_stages else {}),
        }

    def _lines(self) -> Iterator[str]:
        status, ledger = self._outcome.status, shlex.quote(self._last.job.ledger)
        if rejected := sum(status["records"]["rejected"].values()):
            yield f"{count(rejected, 'record')} rejected so far; to see them: ledgerbeam ledger rejects {ledger}"
        if failed := status["tasks"]["failed"]:
            shown = list(islice(self._store.failures(), SHOWN_FAILURES))
            which = " tasks that are not quarantined" if any(row.quarantined for row in shown) else ""
            yield (
                f"{count(failed, 'task')} of {count(status['sources']['failed'], 'source')} failed; run the same "
                f"command again to retry{which}; to see all: ledgerbeam ledger failures {ledger}"
            )
            if (product := self._job.product()) is not None:
                yield product.not_made(self._job)
            for row in shown:
                yield f"  {printable(without_secrets(row.error or row.reason))}"

    def _stale(self) -> Iterator[str]:
        """Yield messages about problems of the outputs without a failed task."""
        outcome, where = self._outcome, self._job.output or "the indexes"
        if outcome.out_of_date:
            yield (
                f"{where}: kept {count(outcome.out_of_date, 'stale output')}, because another run may still use this "
                "ledger; when it has ended, run the same command again to remove them"
            )
        if outcome.unrecorded:
            yield f"{where}: found {count(outcome.unrecorded, 'shard')} that this ledger has not recorded"

    def _left_by_choice(self) -> Iterator[str]:
        """Yield a message with the number of open sources after a run with a limit or a selection."""
        left = self._outcome.status["sources"]["open"]
        if self._outcome.spent:
            yield f"{self._outcome.spent}; {count(left, 'source')} listed so far still open"
        elif left and self._is_partial and not self._outcome.limited and not self._outcome.interrupted:
            yield (
                f"{count(left, 'source')} left open, because this run selected only some; to process them, run the "
                "same command without --only-failed and --only-rejected"
            )

    def _left(self) -> Iterator[str]:
        outcome, job = self._outcome, self._job
        if outcome.out_of_date:
            yield next(self._stale())
        yield from self._left_by_choice()
        left = outcome.status["sources"]["open"]
        if outcome.submitted:
            yield (
                "the pipeline is staged. After the service has run it, run the same command again without "
                "--template_location, to do the remaining work and remove stale outputs. To see the progress: "
                f"ledgerbeam ledger status {job.ledger}"
            )
        elif outcome.limited and not outcome.spent:
            yield (
                f"stopped after {count(int(job.task_limit or 0), 'task')} because of --limit-tasks; "
                f"{count(left, 'source')} listed so far still open; to resume, run the same command again"
            )
        elif left and not self._is_partial and not outcome.spent:
            raise LedgerError(
                f"{job.ledger}: {count(left, 'source')} left open, although nothing failed; {job.why_open}"
            )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(one[name] for one in counts) for name in counts[0]}


def done_json(outcome: RunOutcome) -> dict[str, Any]:
    """Return the totals of a run."""
    records = shown_records(outcome.run_records)
    return {**outcome.done._asdict(), "written": outcome.done.records, "records": records}
