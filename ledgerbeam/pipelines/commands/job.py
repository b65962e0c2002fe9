"""The commands that run a job, such as ``ledgerbeam map``: from arguments to a run and its summary."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from itertools import islice
from typing import Any

from ledgerbeam.errors import (
    LedgerbeamError,
    LedgerError,
    LedgerNotFoundError,
    PublicationError,
    StorageError,
    UsageError,
)
from ledgerbeam.io import Page, is_local, remove_stale_temporaries
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import LedgerStore, dataset_manifest, fault_point
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.console import Reporter, count, count_nulled, print_json
from ledgerbeam.pipelines.jobs.from_arguments import job_spec
from ledgerbeam.pipelines.jobs.listing import first_page_checked
from ledgerbeam.pipelines.jobs.megatron_parts import MegatronParts, MergedDataset
from ledgerbeam.pipelines.jobs.metadata import publish_shards
from ledgerbeam.pipelines.jobs.owner import OutputOwner
from ledgerbeam.pipelines.jobs.recorded import forget_lost
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.jobs.stamp import OutputStamp
from ledgerbeam.pipelines.runners.beam import check_options, check_reach
from ledgerbeam.pipelines.runners.run import RunOutcome, run_job, warn_of_lost
from ledgerbeam.redaction import HIDDEN, command_without_secrets, printable, without_secrets

__all__ = ["main"]

SHOWN_FAILURES = 3
NOT_ALL = 3


def main(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Runs a job. Returns 0, 3 if some tasks failed or outputs out of date were left, or 130 if it was interrupted."""
    reporter = Reporter(as_json=args.json, quiet=args.quiet)
    spec = job_spec(args).resolve_ledger(args.ledger)
    if beam_args:
        check_options(beam_args)
        check_reach(spec, beam_args)
    pages = first_page_checked(_pages(spec, reporter), spec)
    if spec.output is not None and is_local(spec.output):
        _check_writable(spec.output)
    owner = None if spec.output is None else OutputOwner(spec, args.existing)
    known = _open_if_there(spec)
    if owner is not None:
        owner.check(known)
    store = known or open_ledger(spec.ledger, spec.storage_options, create=True)
    if owner is not None and args.on_job_change == "restart":
        owner.begin_restart(store)
    resumed = store.job() is not None
    store.open_job(spec.job(), on_change=args.on_job_change)
    if owner is not None and owner.is_new:
        store.drop_stale(store.stale_outputs())  # they lie in another folder, where the ledger's job wrote before
    shown = os.path.relpath(spec.ledger) if is_local(spec.ledger) and not args.ledger else spec.ledger
    reporter.say(f"ledger: {shown} ({_state(store) if resumed else 'new'})")
    only = None if args.only_failed is None else _sources_that_failed(store, args.only_failed)
    force = getattr(args, "force", False)
    run = partial(run_job, spec, store, reporter=reporter, beam_args=beam_args, owner=owner, debug=args.debug)
    outcome = run(pages, force=force, only=only)
    datasets: list[MergedDataset] = []
    if spec.merged is not None and outcome.status["complete"] and not outcome.interrupted:
        outcome, datasets = _merged(spec, store, outcome, run, reporter, drop=args.drop_parts)
    urls: list[str] = []
    if spec.published is not None and outcome.status["complete"] and not outcome.interrupted:
        urls = _published(spec, spec.published, store, reporter)
    nulled = count_nulled(store)
    if args.json:
        print_json({**_summary(spec, outcome, datasets, urls), **({} if nulled is None else {"nulled": nulled})})
    else:
        _print_summary(spec, outcome, reporter)
        if nulled:
            reporter.say(f"{count(nulled, 'number')} that JSON does not have (NaN, infinities) written as null so far")
    if outcome.status["tasks"]["failed"]:
        _warn_of_failures(spec, store, outcome, reporter)
    if outcome.interrupted:
        return 130
    if outcome.out_of_date:
        reporter.warn(
            f"{spec.output or 'the indexes'}: {count(outcome.out_of_date, 'output')} out of date left beside the right "
            "ones, since another run may still be at work on this ledger; once that has ended, run the same command "
            "again: it removes them"
        )
    left = outcome.status["sources"]["open"]
    if left and only is not None:
        reporter.warn(f"{count(left, 'source')} left open, since --only-failed did not ask for them")
    elif left:
        raise LedgerError(
            f"{spec.ledger}: {count(left, 'source')} left open, though nothing failed; "
            "another run may have taken the ledger over; run the same command again"
        )
    return NOT_ALL if outcome.status["tasks"]["failed"] or outcome.out_of_date or outcome.unrecorded else 0


def _pages(spec: JobSpec, reporter: Reporter) -> Iterator[Page]:
    """Lists the job's sources, and says at the end how many files were left out."""
    listing = spec.listing()
    if isinstance(listing, GraphSource):
        return listing.pages()

    def say(number: int) -> None:
        reporter.say(f"left out of the sources, since this job writes there itself: {count(number, 'file')}")

    return listing.pages(say)


def _open_if_there(spec: JobSpec) -> LedgerStore | None:
    """Opens the job's ledger if it exists: a run that is refused makes none."""
    try:
        return open_ledger(spec.ledger, spec.storage_options, create=False)
    except LedgerNotFoundError:
        return None


def _state(store: LedgerStore) -> str:
    sources, tasks = (store.status()[name] for name in ("sources", "tasks"))
    complete, owing = count(sources["complete"], "source"), sources["open"] + sources["failed"]
    return f"going on: {complete} complete, {owing:,} open, {count(tasks['done'], 'task')} done"


def _sources_that_failed(store: LedgerStore, pattern: str) -> frozenset[bytes]:
    """Returns the ids of the sources with a failure whose reason matches; their quarantined tasks are freed."""
    sources: set[bytes] = set()
    quarantined: set[str] = set()
    for row in store.failures():
        if fnmatchcase(row.reason, pattern):
            sources.add(row.source_id)
            if row.quarantined:
                quarantined.add(row.url)
    if not sources:
        raise UsageError(
            f"--only-failed {pattern}: no failure has such a reason; to see all: "
            f"ledgerbeam ledger failures {shlex.quote(store.url)}"
        )
    for url in sorted(quarantined):
        store.forget(escape(url), failures_only=True)
    return frozenset(sources)


def _merged(
    spec: JobSpec,
    store: LedgerStore,
    outcome: RunOutcome,
    run: Callable[..., RunOutcome],
    reporter: Reporter,
    *,
    drop: bool,
) -> tuple[RunOutcome, list[MergedDataset]]:
    """Merges the parts of a complete job unless that is done; parts that are missing are made again first.

    Returns:
        How the last run ended, and the datasets; none if that run left the job incomplete.
    """
    parts = MegatronParts(spec, store)
    datasets = parts.merged()
    if datasets is None:
        if lost := forget_lost(spec, store):
            warn_of_lost(lost, reporter)
            outcome = run(_pages(spec, reporter))
            if outcome.interrupted or not outcome.status["complete"]:
                return outcome, []
            parts = MegatronParts(spec, store)
        datasets = parts.merge()
        for dataset in datasets:
            reporter.say(_describe(dataset, f"{count(dataset.parts, 'part')} merged -> "))
    else:
        for dataset in datasets:
            reporter.say(_describe(dataset, "up to date: "))
    if drop:
        parts.drop()
    return outcome, datasets


def _describe(dataset: MergedDataset, what: str) -> str:
    return (
        f"{what}{dataset.prefix}: {count(dataset.documents, 'document')} ({dataset.empty_documents:,} empty), "
        f"{count(dataset.sequences, 'sequence')}, {count(dataset.tokens, 'token')} of {dataset.dtype}"
    )


def _published(spec: JobSpec, form: str, store: LedgerStore, reporter: Reporter) -> list[str]:
    """Publishes the metadata of a complete job's shards unless that is done, and returns its URLs."""
    root = str(spec.output)
    shards = list(dataset_manifest(store))
    note = OutputStamp(spec, f"published-{form}", shards)
    noted = note.read()
    if noted is not None:
        urls = list(noted["files"])
        reporter.say(f"up to date: {urls[-1]}")
        return urls
    fault_point("published.before")
    if note.begin():  # publishing was killed
        remove_stale_temporaries(root)
    try:
        done = publish_shards(shards, root, form, spec.storage_options, ledger=spec.ledger)
    except LedgerbeamError as error:
        others = "--to tar makes do without" + (", --to webdataset writes that of wids" if form != "wids" else "")
        raise PublicationError(
            f"{root}: all outputs are written and recorded, but not the metadata of {form}: {error}\nRun the same "
            f"command to try again; {others}; none of them writes the outputs again"
        ) from error
    fault_point("published.after")
    note.end(done.urls)
    reporter.say(
        f"{count(done.shards, 'shard')} with {count(done.records, 'record')} published as {form}: {done.urls[-1]}"
    )
    return done.urls


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


def _summary(spec: JobSpec, outcome: RunOutcome, datasets: list[MergedDataset], urls: list[str]) -> dict[str, Any]:
    merged = {} if spec.merged is None else {"datasets": [asdict(dataset) for dataset in datasets]}
    return {
        "ledger": spec.ledger,
        "output": spec.output,
        **merged,
        **({} if spec.published is None else {"published": urls}),
        "seconds": round(outcome.seconds, 3),
        "skipped": outcome.skipped,
        "interrupted": outcome.interrupted,
        "out_of_date": outcome.out_of_date,
        "unrecorded": outcome.unrecorded,
        **outcome.status,
    }


def _print_summary(spec: JobSpec, outcome: RunOutcome, reporter: Reporter) -> None:
    sources, tasks = outcome.status["sources"], outcome.status["tasks"]
    if outcome.interrupted:
        recorded = f"{count(tasks['done'], 'task')} and {count(sources['complete'], 'source')}"
        command = shlex.join(["ledgerbeam", *command_without_secrets(sys.argv[1:])])
        hint = f"\nput your own in place of {HIDDEN}, or in the environment of the store's client"
        reporter.say(
            f"interrupted: {recorded} are recorded; to go on, run the same command again:\n  {command}"
            f"{hint if HIDDEN in command else ''}"
        )
        return
    output = spec.merged or spec.output
    where = f" -> {output}" if output else ""
    reporter.say(
        f"{'finished' if tasks['failed'] else 'done'}: {count(sources['complete'], 'source')} complete "
        f"({outcome.skipped:,} skipped as complete before), {count(outcome.done.tasks, 'task')} and "
        f"{count(outcome.done.records, 'record')} in this run, {outcome.seconds:,.1f} s{where}"
    )


def _warn_of_failures(spec: JobSpec, store: LedgerStore, outcome: RunOutcome, reporter: Reporter) -> None:
    sources, tasks = outcome.status["sources"], outcome.status["tasks"]
    reporter.warn(
        f"{count(tasks['failed'], 'task')} of {count(sources['failed'], 'source')} failed; run the same command again "
        f"to retry; to see all: ledgerbeam ledger failures {shlex.quote(spec.ledger)}"
    )
    if spec.merged is not None:
        reporter.warn(f"{spec.merged}: not merged, since documents are missing; what was there before stays")
    if spec.published is not None:
        reporter.warn(
            f"{spec.output}: not published as {spec.published}, since records are missing; metadata that is there "
            "already is of the shards as they were before"
        )
    for row in islice(store.failures(), SHOWN_FAILURES):
        reporter.warn(f"  {printable(without_secrets(row.error or row.reason))}")
