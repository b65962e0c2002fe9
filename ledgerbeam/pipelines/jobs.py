"""``ledgerbeam index`` and ``ledgerbeam map``: from arguments to a run and its summary."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from fnmatch import fnmatchcase
from glob import escape
from itertools import islice
from typing import Any

from ledgerbeam.errors import LedgerError, StorageError, UsageError
from ledgerbeam.io import canonical_url, common_base, is_local
from ledgerbeam.ledger import LedgerStore, function_identity
from ledgerbeam.ledgers import open_ledger
from ledgerbeam.pipelines.listed import first_page_checked
from ledgerbeam.pipelines.redaction import printable, without_secrets
from ledgerbeam.pipelines.remote import check_options, check_reach
from ledgerbeam.pipelines.report import Reporter, count, print_json
from ledgerbeam.pipelines.run import Outcome, run_job
from ledgerbeam.pipelines.sources import source_listing
from ledgerbeam.pipelines.spec import JobSpec

__all__ = ["main"]

SHOWN_FAILURES = 3
FAILED_TASKS = 3


def main(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Runs an ``index`` or ``map`` job. Returns 0, 3 if some tasks failed, or 130 if it was interrupted."""
    reporter = Reporter(as_json=args.json, quiet=args.quiet)
    spec = _index_spec(args) if args.command == "index" else _map_spec(args)
    spec = spec.resolve_ledger(args.ledger)
    if beam_args:
        check_options(beam_args)
        check_reach(spec, beam_args)
    pages = first_page_checked(spec.listing().pages())
    if spec.output is not None and is_local(spec.output):
        _check_writable(spec.output)
    store = open_ledger(spec.ledger, spec.storage_options, create=True)
    resumed = store.job() is not None
    store.open_job(spec.job(), on_change=args.on_job_change)
    shown = os.path.relpath(spec.ledger) if is_local(spec.ledger) and not args.ledger else spec.ledger
    reporter.say(f"ledger: {shown} ({_state(store) if resumed else 'new'})")
    only = None if args.only_failed is None else _sources_that_failed(store, args.only_failed)
    force = getattr(args, "force", False)
    outcome = run_job(spec, store, pages, reporter, beam_args, force=force, only=only, debug=args.debug)
    if args.json:
        print_json(_summary(spec, outcome))
    else:
        _print_summary(spec, outcome, reporter)
    if outcome.status["tasks"]["failed"]:
        _warn_of_failures(spec, store, outcome, reporter)
    if outcome.interrupted:
        return 130
    left = outcome.status["sources"]["open"]
    if left and only is not None:
        reporter.warn(f"{count(left, 'source')} left open, since --only-failed did not ask for them")
    elif left:
        raise LedgerError(
            f"{spec.ledger}: {count(left, 'source')} left open, though nothing failed; "
            "another run may have taken the ledger over; run the same command again"
        )
    return FAILED_TASKS if outcome.status["tasks"]["failed"] else 0


def _state(store: LedgerStore) -> str:
    sources, tasks = (store.status()[name] for name in ("sources", "tasks"))
    complete, owing = count(sources["complete"], "source"), sources["open"] + sources["failed"]
    return f"going on: {complete} complete, {owing:,} open, {count(tasks['done'], 'task')} done"


def _sources_that_failed(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Returns the ids of the sources with a failure whose reason matches; their quarantined tasks are freed."""
    rows = [row for row in store.failures() if fnmatchcase(row.reason, pattern)]
    if not rows:
        raise UsageError(
            f"--only-failed {pattern}: no failure has such a reason; to see all: "
            f"ledgerbeam ledger failures {shlex.quote(store.url)}"
        )
    for url in sorted({row.url for row in rows if row.quarantined}):
        store.forget(escape(url), failures_only=True)
    return frozenset(row.source_id for row in rows)


def _common(args: argparse.Namespace) -> dict[str, Any]:
    listing = source_listing(args)
    return {
        "patterns": listing.patterns,
        "sources_from": listing.sources_from,
        "storage_options": args.storage_options,
        "index_root": args.index_root and canonical_url(args.index_root).rstrip("/"),
        "index_rule": args.index_rule,
        "group": args.group,
        "task_bytes": args.task_bytes,
        "workers": args.workers,
        "flush_interval": args.flush_interval,
    }


def _index_spec(args: argparse.Namespace) -> JobSpec:
    common = _common(args)
    return JobSpec("index", **common, base=common_base(common["patterns"]))


def _map_spec(args: argparse.Namespace) -> JobSpec:
    common = _common(args)
    base = canonical_url(args.base) if args.base else common_base(common["patterns"])
    identity = function_identity(args.function)
    output = canonical_url(args.output).rstrip("/")
    return JobSpec(
        "map",
        **common,
        function=args.function,
        function_source=identity["function_source"],
        base=base and base.rstrip("/") + "/",
        output=output,
        to=args.to,
        pack_bytes=args.pack,
        build_index=not args.no_index,
        check_purity=not args.no_purity_check,
    )


def _check_writable(folder: str) -> None:
    """Makes the output folder before any work is done, so that a wrong path or permission is told at once."""
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder}: expected a folder to write below, found a file") from None
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made: {error.strerror}; give another --output") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"{folder}: no permission to write; change it or give another --output")


def _summary(spec: JobSpec, outcome: Outcome) -> dict[str, Any]:
    return {
        "ledger": spec.ledger,
        "output": spec.output,
        "seconds": round(outcome.seconds, 3),
        "skipped": outcome.skipped,
        "interrupted": outcome.interrupted,
        **outcome.status,
    }


def _print_summary(spec: JobSpec, outcome: Outcome, reporter: Reporter) -> None:
    sources, tasks = outcome.status["sources"], outcome.status["tasks"]
    if outcome.interrupted:
        recorded = f"{count(tasks['done'], 'task')} and {count(sources['complete'], 'source')}"
        command = shlex.join(["ledgerbeam", *sys.argv[1:]])
        reporter.say(f"interrupted: {recorded} are recorded; to go on, run the same command again:\n  {command}")
        return
    where = f" -> {spec.output}" if spec.output else ""
    reporter.say(
        f"{'finished' if tasks['failed'] else 'done'}: {count(sources['complete'], 'source')} complete "
        f"({outcome.skipped:,} skipped as complete before), {count(outcome.done.tasks, 'task')} and "
        f"{count(outcome.done.records, 'record')} in this run, {outcome.seconds:,.1f} s{where}"
    )


def _warn_of_failures(spec: JobSpec, store: LedgerStore, outcome: Outcome, reporter: Reporter) -> None:
    sources, tasks = outcome.status["sources"], outcome.status["tasks"]
    reporter.warn(
        f"{count(tasks['failed'], 'task')} of {count(sources['failed'], 'source')} failed; run the same command again "
        f"to retry; to see all: ledgerbeam ledger failures {shlex.quote(spec.ledger)}"
    )
    for row in islice(store.failures(), SHOWN_FAILURES):
        reporter.warn(f"  {printable(without_secrets(row.error or row.reason))}")
