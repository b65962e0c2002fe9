"""What every command that runs a job does, from its options to its exit status."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.pipelines.commands.dry_run import dry_run
from ledgerbeam.pipelines.commands.summary import RunSummary
from ledgerbeam.pipelines.console import Reporter
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.opening import open_job
from ledgerbeam.pipelines.jobs.retry import sources_that_failed, withdraw_rejected
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.beam import check_options, check_reach
from ledgerbeam.pipelines.runners.run import RunOutcome, is_local_runner, require_local, run_job, warn_of_lost

__all__ = ["run_job_command"]


def run_job_command(job: JobSpec, args: argparse.Namespace, beam_args: list[str], *, force: bool = False) -> int:
    """Run a job, and make of its outputs what it is to make of them.

    Args:
        job: The job, its ledger not yet resolved.
        args: What all commands of jobs are given.
        beam_args: Beam options of the user.
        force: Whether sources that the ledger holds as complete are done again.

    Returns:
        0, also of a dry run, 3 if some tasks failed or outputs out of date were left, or 130 if it was interrupted.
    """
    reporter = Reporter(as_json=args.json, quiet=args.quiet)
    job = job.resolve_ledger(args.ledger)
    if job.devices and not is_local_runner(beam_args):
        raise UsageError("--devices is for the local runner: on another, give each of its workers its device")
    if beam_args:
        check_options(beam_args)
        check_reach(job, beam_args)
    if args.dry_run:
        return dry_run(job, args, force=force)
    again = getattr(args, "only_rejected", None)
    if again is not None and args.only_failed is not None:
        raise UsageError("--only-rejected and --only-failed choose different tasks; give one of them, then the other")
    if again is not None or args.only_failed is not None or job.task_limit is not None:
        require_local(beam_args)
    left_out = LeftOut()
    with reporter.progress():
        pages = listed_pages(job, reporter.say, left_out)
        opened = open_job(job, args.on_job_change, getattr(args, "existing", None), reporter.say)
        job, store = opened.job, opened.store
        shown = os.path.relpath(job.ledger) if is_local(job.ledger) and not args.ledger else job.ledger
        reporter.say(f"ledger: {shown} ({opened.state})")
        only = None if args.only_failed is None else sources_that_failed(store, args.only_failed)
        if again is not None:
            only = withdraw_rejected(store, again)
        run = partial(run_job, job, store, reporter=reporter, beam_args=beam_args, owner=opened.owner, debug=args.debug)
        outcome: RunOutcome = run(pages, force=force, only=only)

    def rewrite(lost: int) -> bool:
        nonlocal outcome
        warn_of_lost(lost, reporter)
        with reporter.progress():
            outcome = run(listed_pages(job, reporter.say))
        return outcome.is_complete

    made: list[Any] = []
    product = job.product()
    if product is not None and outcome.is_complete:
        made = product.make(job, store, rewrite=rewrite, say=reporter.say)
    passed_over = left_out.passed_over if is_local_runner(beam_args) else None  # others list inside of the pipeline
    return RunSummary(job, store, outcome, made, passed_over, is_partial=only is not None).print(reporter)
