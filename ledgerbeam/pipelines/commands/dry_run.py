"""``--dry-run`` of every job: what a run would do, and why."""

from __future__ import annotations

import argparse

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.pipelines.console import Reporter, count, print_json
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.preview import WORK, JobPreview, as_json, preview_job
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.redaction import printable, without_secrets

__all__ = ["dry_run"]

_WHY = {
    "new": "this ledger does not know them",
    "changed": "they are not what they were when they were done",
    "failed": "tasks of them failed",
    "open": "begun, or waiting",
    "complete": "skipped",
    "gone": "not listed any more; their outputs stay",
}


def dry_run(job: JobSpec, args: argparse.Namespace, *, force: bool) -> int:
    """Print what a run of a job would do; nothing is written.

    Args:
        job: The job, its ledger resolved.
        args: What all commands of jobs are given.
        force: Whether complete sources are done again.

    Returns:
        0, also where the run itself would be refused: that is part of the answer.

    Raises:
        UsageError: With an option that chooses tasks by what the ledger holds of them.
    """
    for option in ("only_failed", "only_rejected"):
        if getattr(args, option, None) is not None:
            raise UsageError(f"--dry-run shows everything that is open: leave --{option.replace('_', '-')} out")
    reporter = Reporter(as_json=args.json, quiet=args.quiet)
    left_out = LeftOut()
    pages = listed_pages(job, reporter.say, left_out)
    preview = preview_job(
        job, pages, args.on_job_change, getattr(args, "existing", None), force=force, say=reporter.say
    )
    if args.json:
        print_json({**as_json(preview), "passed_over": left_out.passed_over})
    else:
        for line in _lines(preview):
            reporter.say(printable(without_secrets(line)))
    return 0


def _lines(preview: JobPreview) -> list[str]:
    lines = [f"ledger: {preview.ledger} ({'new' if preview.is_new else 'there'})"]
    lines += [f"the job has changed: {line}" for line in preview.differences]
    for state in (*WORK, "complete", "gone"):
        if number := preview.sources[state]:
            shown = ", ".join(preview.examples[state]) + (", ..." if number > len(preview.examples[state]) else "")
            lines.append(f"{count(number, 'source')} {state} ({_WHY[state]}): {shown}")
    if preview.removed:
        shown = ", ".join(preview.outputs) + (", ..." if preview.removed > len(preview.outputs) else "")
        lines.append(f"{count(preview.removed, 'output')} out of date removed in the end: {shown}")
    lines += [f"the run would be refused: {line}" for refusal in preview.refusals for line in refusal.splitlines()]
    lines.append(f"about {count(preview.tasks, 'task')} to do; nothing was written")
    return lines
