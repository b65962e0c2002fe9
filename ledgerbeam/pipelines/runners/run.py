"""One run of a job: options, listing, skipping of complete sources, the runner, and cleaning up."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.process import import_beam, logging_kept
from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answers import adopt
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.ledger.model.rows import audit_of
from ledgerbeam.ledger.opening import run_folders
from ledgerbeam.ledger.worker.run_folders import RunFolder
from ledgerbeam.pipelines.console.reporter import RunConsole
from ledgerbeam.pipelines.console.run_progress import RunProgress, count
from ledgerbeam.pipelines.jobs.checks import difference_error
from ledgerbeam.pipelines.jobs.listing import JobListing
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.owner import MOST_STRANGERS, Existing, OutputOwner
from ledgerbeam.pipelines.report.lineage import run_lineage
from ledgerbeam.pipelines.report.run_info import DONE, TASKS_FAILED, others_may_work, run_elsewhere, run_info
from ledgerbeam.pipelines.runners.audit import RunAudit
from ledgerbeam.pipelines.runners.beam import BeamRunner, check_options
from ledgerbeam.pipelines.runners.job_files import keep_job, launched_job
from ledgerbeam.pipelines.runners.local import LocalRunner
from ledgerbeam.pipelines.runners.profiles import refuse_no_profile
from ledgerbeam.pipelines.runners.waves import Waves

# Effect of two concurrent runs on tasks. Launchers of local runs see each other's claims.
_SHARED = "the runs share its tasks"
_REPEATED = "nothing is lost, but tasks may be done twice"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run, common to the calls of all jobs."""

    ledger: str | None  # URL of the ledger; None for the default place
    on_job_change: OnJobChange  # what to do with the ledger of another job
    existing: Existing | None = None  # what to do with shards of others in the output folder; None raises an error
    only_failed: str | None = None  # run only sources with a failure of this reason
    only_rejected: str | None = None  # repeat only tasks that rejected records for this reason
    dry_run: bool = False
    force: bool = False  # whether to repeat sources that are complete in the ledger
    keep_runs: bool = False  # whether to keep the run files of an exchange once all stages are complete
    withdraws: bool = False  # whether to remove the outputs of missing sources once all other sources are complete
    options: Sequence[str] = ()
    debug: bool = False


def checked_options(job: JobSpec, how: RunOptions) -> list[str]:
    """Return the Beam options of a run, checked against the job."""
    if isinstance(how.options, str):
        expected = "a list of Beam options such as ['--runner=PrismRunner']"
        raise UsageError(f"options: expected {expected}, found {how.options!r}")
    beam_args = list(how.options)
    if job.devices and not is_local_runner(beam_args):
        raise UsageError("--devices works on the local runner only; another runner has options of its own")
    if job.limits and not is_local_runner(beam_args):
        raise UsageError("--rate and --budget work on the local runner only; leave them out")
    if job.profile is not None:
        if how.dry_run:
            raise UsageError("--profile cannot be used with --dry-run; leave one of them out")
        if not is_local_runner(beam_args):
            raise UsageError(
                "--profile works on the local runner only; on another runner, use Beam's own profiles, by cProfile: "
                "-- --profile_cpu --profile_location=URL"
            )
        refuse_no_profile(job.profile, job.storage_options)
    for option in ("only_failed", "only_rejected"):
        if how.dry_run and getattr(how, option) is not None:
            raise UsageError(f"--dry-run always shows all open work: leave --{option.replace('_', '-')} out")
    if how.only_rejected is not None and how.only_failed is not None:
        raise UsageError("--only-rejected and --only-failed choose different tasks; run the command once with each")
    if how.only_rejected is not None or how.only_failed is not None or (job.task_limit is not None and not how.dry_run):
        require_local(beam_args)
    if beam_args:
        import_beam()
        with logging_kept():
            check_options(beam_args, job.places())
    return beam_args


def require_local(beam_args: Sequence[str]) -> None:
    """Raise an error for a partial run on another runner than the local one."""
    if not is_local_runner(beam_args):
        options = "--only-failed, --only-rejected and --limit-tasks"
        raise UsageError(f"{options} work on the local runner only; without them, all open tasks run")


def is_local_runner(beam_args: Sequence[str]) -> bool:
    """Return whether Beam options select the local runner."""
    runners = [word for word in beam_args if word.startswith("--runner")]
    return not runners or runners == ["--runner=FnApiRunner"]


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run."""

    status: dict[str, Any]  # status of the ledger after the run
    skipped: int  # number of sources that were complete before the run
    done: Totals  # totals that the run has recorded
    run_records: RecordCounts  # outcomes of the records of all tasks that were recorded during the run
    seconds: float  # duration of the run
    interrupted: bool  # whether Ctrl-C or SIGTERM ended the run
    out_of_date: int = 0  # number of stale outputs that were kept because another run may be active
    # Number of shards in the job's folder that the ledger has not recorded, at most `MOST_STRANGERS`, and of outputs
    # that it has forgotten because their sources are missing.
    unrecorded: int = 0
    limited: bool = False  # whether the limit of tasks, or a budget, ended the run with work left
    completed: int = 0  # number of sources that became complete in the run
    submitted: bool = False  # whether the pipeline was only submitted as a template. The run has not ended then.
    spent: str = ""  # the budget that ended the run with work left, in words; empty for none

    @property
    def records(self) -> RecordCounts:
        """Outcomes of the records of all recorded tasks."""
        return RecordCounts(**self.status["records"])

    @property
    def is_complete(self) -> bool:
        """Whether every source of the job is complete."""
        return bool(self.status["complete"]) and not self.interrupted


def run_job(
    spec: JobSpec,
    store: LedgerStore,
    pages: Iterator[Page],
    reporter: RunConsole,
    beam_args: Sequence[str] = (),
    *,
    waves: Waves,
    owner: OutputOwner | None = None,
    force: bool = False,
    only: Collection[bytes] | None = None,
    asked: Mapping[str, str] | None = None,
    debug: bool = False,
) -> RunOutcome:
    """Run a job until every source is complete or has recorded failures.

    Args:
        pages: The listing of the sources. Runners other than the local one list the sources themselves.
        beam_args: The user's Beam options. A ``--runner`` other than FnApiRunner selects another runner.
        owner: The owner of the output folder, which was checked; None if the job has no output folder.
        only: IDs of the only sources to run; None runs all open sources.
        asked: Selection of a partial run, see `partial_run`; None for other runs.

    Raises:
        LedgerbeamError: The error that ended the run early. Everything recorded stays recorded.
    """
    if only is not None or spec.task_limit is not None:
        require_local(beam_args)
    started = time.monotonic()
    folders = run_folders(store)
    is_local = is_local_runner(beam_args)
    if others := folders.remove_dead():
        processes = ", ".join(str(other.pid) for other in others)
        effect = _SHARED if is_local else _REPEATED
        reporter.warn(f"another run is at work on this ledger (processes {processes}): {effect}")
    last = store.status()["last_run"]
    clean = last is None or (last["outcome"] in (DONE, TASKS_FAILED) and last["tidied"])
    elsewhere = None if last is None or clean else run_elsewhere(last, store)
    if elsewhere:
        reporter.warn(
            f"an older run may still be at work on this ledger ({elsewhere}): "
            f"{_SHARED if is_local and last['info'].get('runner') == 'local' else _REPEATED}, and stale outputs stay "
            "until the next run"
        )
    # Before the run starts: a run on a remote ledger records nothing for sources that are forgotten after its start.
    if force:
        for pattern in spec.sources().forget_patterns():
            store.forget(pattern)
    # If the index of a source belongs to other content, tasks that ended before may have used its positions, too.
    if store.status()["tasks"]["failed"]:
        store.forget_sources({row.source_id for row in store.failures() if row.reason == IndexMismatchError.__name__})
    lost = recorded.forget_lost(spec, store) if spec.keeps_shards else 0  # else asked when it is made: they may be gone
    warn_of_lost(lost, reporter)
    runner_name = "local" if is_local else " ".join(word for word in beam_args if word.startswith("--runner"))
    info = run_info(store, spec, runner_name, reporter.command)
    if owner is not None and owner.keeps:
        info["existing"] = "keep"
    if asked is not None:
        info["only"] = dict(asked)
    run = store.begin_run(info)
    answers = AnswersPlace.of(store.url, spec.answers, spec.storage_options) if spec.calls_are_async else None
    if answers is not None:
        adopt(answers, store.url)
        if not answers.is_kept and last is not None and (earlier := last["info"].get("answers")):
            reporter.warn(f"the last run has kept answers at {earlier}; to use them, give --answers {earlier}")
    listed = JobListing(spec, store, pages, run, only=only)
    complete_before = store.completed_count()
    if not is_local:
        reporter.update(RunProgress(stage="working"))
    outcome, tidied, deaths, left, limited = "failed", False, 0, 0, False
    spent = ""
    before, run_records = store.totals(), RecordCounts()
    unrecorded: list[str] = []
    forgotten: list[str] = []
    submitted = False
    with run_lineage(spec, store, run, runner_name, reporter.warn) as lineage:
        try:
            with folders.enter(run) as folder:
                if owner is not None:
                    owner.claim(store, info["token"])
                runner: LocalRunner | BeamRunner = BeamRunner(spec, store, beam_args)
                if is_local:
                    runner = LocalRunner(spec, store, reporter, beam_args, folder=folder, waves=waves, debug=debug)
                try:
                    runner.run(listed)
                    fault_point("run.worked")
                    # Another launcher may be at work on a task that is recorded now, and needs its answers.
                    if answers is not None and not others_may_work(run, store, folders):
                        answers.pack() if answers.is_kept else answers.forget_complete(store)
                    submitted = runner.submitted
                    if not is_local and not submitted:
                        _audit(launched_job(spec, run, reporter), store, before, folder, reporter)
                    elif not clean and spec.audit_share is not None and not store.status()["audit"]["tasks"]:
                        # The last run ended before its audit.
                        _audit(launched_job(spec, run, reporter), store, Totals(), folder, reporter)
                    if owner is not None and not submitted:
                        owner.check_kept(store)  # before anything is removed there
                    if spec.reject_limit is not None and not submitted:
                        spec.reject_limit.check(store, ended=True)
                    if spec.audit_share is not None and store.status()["audit"]["differ"]:
                        raise difference_error(audit_of(store.runs(), spec.identity().fingerprint).found)
                    tidied = clean and not runner.deaths and not lost  # others may have replaced lost outputs
                    with folder.alone() as alone:
                        if alone and not elsewhere and not submitted:
                            if foreign := recorded.remove_superseded(spec, store):
                                kept = f"kept {count(len(foreign), 'stale output')} outside of the folders of this job"
                                shown = without_secrets(foreign[0])
                                reporter.warn(f"{kept}, such as {shown}; remove those that you do not need")
                            if spec.keeps_shards and store.status()["complete"]:
                                forgotten = recorded.forgotten_outputs(spec, store)
                                _warn_of_forgotten(forgotten, str(spec.output), reporter)
                            if owner is None or not spec.keeps_shards:
                                tidied = True
                            elif not tidied and store.status()["complete"]:
                                unrecorded = owner.strangers(store)
                                _warn_of_unrecorded(unrecorded, str(spec.output), reporter)
                                tidied = not unrecorded  # otherwise the next run searches for them again
                        else:
                            left = recorded.count_superseded(store)
                finally:
                    if spec.can_be_audited and store.totals().tasks != before.tasks:
                        keep_job(launched_job(spec, run, reporter))
                    deaths, limited, spent = runner.deaths, runner.stopped, runner.spent
                    run_records = runner.records
            outcome = TASKS_FAILED if store.status()["tasks"]["failed"] else DONE
        except KeyboardInterrupt:
            outcome = "interrupted"
        finally:
            if not submitted:
                store.end_run(run, outcome, tidied=tidied)
                if not clean or deaths or outcome not in (DONE, TASKS_FAILED):
                    recorded.sweep_temporaries(spec)
            lineage.note(store, None if submitted else outcome, _recorded(listed, store, run))
    done, completed = _recorded(listed, store, run), _completed(listed, store, complete_before)
    facts = (time.monotonic() - started, outcome == "interrupted", left, len(unrecorded) + len(forgotten))
    return RunOutcome(store.status(), listed.skipped, done, run_records, *facts, limited, completed, submitted, spent)


def _audit(spec: JobSpec, store: LedgerStore, before: Totals, folder: RunFolder, reporter: RunConsole) -> None:
    """Audit the tasks of a run on another runner than the local one."""
    if (share := spec.audit_share) is None:
        return
    RunAudit(spec, store, share, folder=folder.path, before=before, warn=reporter.warn).settle_listed()


def _recorded(listed: JobListing, store: LedgerStore, run: str) -> Totals:
    if listed.found and listed.skipped == listed.found:  # everything was complete before, so the history is not read
        return Totals()
    found = store.recorded().get(run)
    return Totals() if found is None else found.totals


def _completed(listed: JobListing, store: LedgerStore, before: int) -> int:
    """Return the number of sources that became complete in a run: those listed as open that are not open now."""
    if not listed.found:  # the runner lists the sources itself, or there are none
        return max(0, store.completed_count() - before)
    left = store.status()["sources"]
    return max(0, listed.found - listed.skipped - left["open"] - left["failed"])


def warn_of_lost(number: int, reporter: RunConsole) -> None:
    """Show a warning that outputs are missing and will be written again."""
    if number:
        reporter.warn(f"missing since earlier runs: {count(number, 'output')}, to be written again from the sources")


def _warn_of_unrecorded(names: list[str], folder: str, reporter: RunConsole) -> None:
    if names:
        more = "at least " if len(names) == MOST_STRANGERS else ""
        reporter.warn(
            f"{folder}: found {more}{count(len(names), 'shard')} that this ledger has not recorded, such as "
            f"{printable(names[0])}. A killed run left them, and their sources have changed since, or another program "
            "wrote them; remove them, then run the same command again"
        )


def _warn_of_forgotten(names: Sequence[str], folder: str, reporter: RunConsole) -> None:
    if names:
        reporter.warn(
            f"{folder}: found {count(len(names), 'output')} of missing sources, such as {printable(names[0])}. The "
            "ledger has forgotten these outputs, because their sources were to be processed again; put the sources "
            "back, or remove these outputs, then run the same command again"
        )
