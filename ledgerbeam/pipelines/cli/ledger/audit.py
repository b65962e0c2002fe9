"""``ledgerbeam ledger audit``: repeat a sample of the finished tasks of a job and compare the results."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile

from ledgerbeam.errors import JobMismatchError, LedgerError, NonDeterministicTaskError, UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import Totals
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.checks import OFF, parse_audit
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.audit import RunAudit
from ledgerbeam.pipelines.runners.job_files import kept_job, take_import_path


def audit(store: LedgerStore, args: argparse.Namespace) -> int:
    """Audit the job of a ledger. Returns 0, or 1 if results differ.

    Raises:
        JobMismatchError: The function has changed since the job ran.
        LedgerError: The ledger has no job that can be audited.
    """
    share = None if args.share == OFF else parse_audit(args.share)
    if share is None:
        raise UsageError(f"--share {args.share}: expected a share of the tasks such as 1% or 0.01, up to 100%")
    spec = _spec(store, args)
    spec = dataclasses.replace(spec, run=store.runs()[-1]["id"])
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-") as folder:
        run = RunAudit(spec, store, share, folder=folder, before=Totals(), warn=_warn, is_separate=True)
        try:
            run.settle_listed()
        except NonDeterministicTaskError:
            if not args.json:
                raise
        finally:
            run.end()
    found = run.found
    if not found.tasks:
        raise LedgerError(
            f"ledger {store.url}: no task can be audited: no task is finished, or the sources have changed; run the "
            "job again"
        )
    if args.json:
        print_json({"audit": {"tasks": found.tasks, "differ": found.differ}, "found": found.found})
    else:
        print(f"audited {count(found.tasks, 'task')}, {found.differ:,} differ")
    return 1 if found.differ else 0


def _spec(store: LedgerStore, args: argparse.Namespace) -> JobSpec:
    spec = kept_job(store.url, args.storage_options)
    take_import_path(spec.import_path)
    job = store.job()
    if job is None or spec.identity().fingerprint != job.fingerprint or not store.runs():
        raise LedgerError(
            f"ledger {store.url}: its last run has not ended, so the job is not known; run the job's command again, "
            "then audit it"
        )
    changed = spec.changed_code()
    if changed:
        raise JobMismatchError(
            f"ledger {store.url}: {', '.join(changed)} changed since the job ran, so the results cannot be compared; "
            "audit with the code of the run"
        )
    return spec


def _warn(text: str) -> None:
    print(text, file=sys.stderr)
