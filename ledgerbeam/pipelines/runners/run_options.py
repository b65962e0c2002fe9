"""Options of a run, and which of them a job can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.beam_import import import_beam, logging_kept
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.owner import Existing
from ledgerbeam.pipelines.runners.beam import check_options, check_reach
from ledgerbeam.pipelines.runners.profiles import refuse_no_profile
from ledgerbeam.pipelines.runners.run import is_local_runner, require_local


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
        keep_runs: Whether the run files of an exchange stay once all stages are complete.
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
    keep_runs: bool = False
    withdraws: bool = False
    options: Sequence[str] = ()
    debug: bool = False


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
