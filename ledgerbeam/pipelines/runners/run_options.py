"""Options of a run, and their checks against the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.process import import_beam, logging_kept
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.owner import Existing
from ledgerbeam.pipelines.runners.beam import check_options, check_reach
from ledgerbeam.pipelines.runners.profiles import refuse_no_profile
from ledgerbeam.pipelines.runners.run import is_local_runner, require_local


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run, common to the calls of all jobs.

    Attributes:
        ledger: URL of the ledger; None for the default place.
        on_job_change: What to do with the ledger of another job.
        existing: What to do with shards of others in the output folder; None raises an error.
        only_failed: Run only sources with a failure of this reason.
        only_rejected: Repeat only tasks that rejected records for this reason.
        dry_run: Show the work without running it.
        force: Whether to repeat sources that are complete in the ledger.
        keep_runs: Whether to keep the run files of an exchange once all stages are complete.
        withdraws: Whether to remove the outputs of missing sources once all other sources are complete.
        options: Beam options.
        debug: Whether errors include whole tracebacks.
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
    """Return the Beam options of a run, checked against the job.

    Raises:
        UsageError: The options are invalid for the job.
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
    """Raise an error for a selection of sources or tasks that is invalid."""
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
