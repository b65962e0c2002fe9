"""``ledgerbeam ledger`` verify and audit: check outputs, datasets and metadata, or repeat some tasks."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from glob import escape
from itertools import chain
from typing import Any, NamedTuple

from ledgerbeam._base.extensions import load_extension
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import JobMismatchError, LedgerError, NonDeterministicTaskError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.client import CONCURRENCY, map_ahead
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import Totals
from ledgerbeam.pipelines.console.reporter import counting, print_json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.checks import OFF, parse_audit
from ledgerbeam.pipelines.outputs.published import content_problem, published_files, size_problem
from ledgerbeam.pipelines.runners.audit import RunAudit
from ledgerbeam.pipelines.runners.job_files import kept_job, take_import_path

_METADATA = "to write this metadata again, run its job again with --to {}"
WAITING = 4  # number of queued checks per thread


class _Check(NamedTuple):
    """A file, or a span of a file, with its recorded size and checksum."""

    url: str
    size: int  # of the file, in bytes
    checksum: str  # of the content or of the span
    remedy: str
    source: str | None = None  # URL of the source of an output; None for a file made of all outputs
    span: tuple[int, int] | None = None  # first byte and end; None for the whole file


def verify(store: LedgerStore, args: argparse.Namespace) -> int:
    """Check all outputs, merged datasets and metadata, several files at a time. Print a line for each problem.

    Returns 0, or 1 for problems. LedgerDamagedError: the ledger's record counts differ from the sums over its tasks.
    """
    job = store.job()
    root = job.parameters.get("output") if job else None
    options: Options = args.storage_options

    def check(one: _Check) -> tuple[_Check, str | None]:
        if args.sizes_only:
            problem = size_problem(one.url, one.size, options)
        else:
            problem = content_problem(one.url, one.size, one.checksum, options, one.span)
        return one, None if problem is None else without_secrets(problem)

    for _ in store.task_counts():  # reading checks that the ledger's sums equal the sums over its tasks
        pass
    datasets = load_extension("ledgerbeam.products", "megatron").noted(store, options)
    metadata = published_files(store, options)
    there = set(ObjectFolder(str(root), options).names("")) if datasets else None
    checks = chain(
        _of_outputs(store, args.url, str(root or ""), there),
        _of_datasets(datasets, options, sizes_only=args.sizes_only),
        (_Check(one.url, one.size, one.checksum, _METADATA.format(one.form)) for one in metadata),
    )
    problems: list[dict[str, str | None]] = []
    checked = size = 0
    threads = len(os.sched_getaffinity(0)) if isinstance(root, str) and is_local(root) else CONCURRENCY
    with counting("output") as advance:
        for one, problem in map_ahead(check, checks, threads, WAITING * threads):
            is_output = one.source is not None
            checked, size = checked + is_output, size + is_output * one.size
            start, stop = one.span or (0, one.size)
            advance(is_output, 0 if args.sizes_only else stop - start)
            if problem is not None:
                url = without_secrets(one.url)
                problems.append({"output": url, "source": one.source, "problem": problem})
                if not args.json:
                    print(f"{url}: {problem}; {one.remedy}")
    if args.json:
        counted = {"outputs": checked, "bytes": size, "datasets": len(datasets), "metadata": len(metadata)}
        print_json({**counted, "problems": problems, "ok": not problems})
    else:
        said = [count(checked, "output"), count(size, "byte")]
        said += [count(len(datasets), "dataset")] if datasets else []
        said += [count(len(metadata), "file") + " of metadata"] if metadata else []
        print(", ".join([*said, count(len(problems), "problem")]))
    return 1 if problems else 0


def _of_outputs(store: LedgerStore, ledger: str, root: str, there: set[str] | None) -> Iterator[_Check]:
    """Yield the checks of all outputs; if some may have been merged and removed, only of the names in `there`."""
    for row in store.outputs(ordered=False):
        output, source = row.output, without_secrets(row.url)
        if there is None or output.name in there:
            remedy = f"write it again with: {shlex.join(['ledgerbeam', 'ledger', 'forget', ledger, escape(source)])}"
            url = f"{root}/{output.name}" if root else output.name
            yield _Check(url, output.size, output.checksum, remedy, source)


def _of_datasets(datasets: list[Any], options: Options, *, sizes_only: bool) -> Iterator[_Check]:
    """Yield the checks of the `.idx` of merged datasets, and of the bytes of each part in the `.bin`."""
    for dataset in datasets:
        index, data = f"{dataset.prefix}.idx", f"{dataset.prefix}.bin"
        remedy = f"to merge the parts again, delete {without_secrets(index)} and run the job again"
        yield _Check(index, dataset.index_size, dataset.index_checksum, remedy)
        if size_problem(data, dataset.size, options) is not None:
            yield _Check(data, dataset.size, "", remedy)
        elif not sizes_only:
            for part, span in dataset.spans():
                yield _Check(data, dataset.size, part.checksum, remedy, span=span)


def audit(store: LedgerStore, args: argparse.Namespace) -> int:
    """Repeat a sample of the finished tasks of a job, and compare the results. Returns 0, or 1 if results differ."""
    share = None if args.share == OFF else parse_audit(args.share)
    if share is None:
        raise UsageError(f"--share {args.share}: expected a share of the tasks such as 1% or 0.01, up to 100%")
    spec, job, runs = kept_job(store.url, args.storage_options), store.job(), store.runs()
    take_import_path(spec.import_path)
    if job is None or spec.identity().fingerprint != job.fingerprint or not runs:
        raise LedgerError(
            f"ledger {store.url}: the job of its last run was not stored, as the run did not end; run the job's "
            "command again, then the audit"
        )
    if changed := spec.changed_code():
        raise JobMismatchError(
            f"ledger {store.url}: {', '.join(changed)} changed since the job ran, so the results cannot be compared; "
            "audit with the code of the run"
        )
    spec = dataclasses.replace(spec, run=runs[-1]["id"])
    warn = partial(print, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-") as folder:
        run = RunAudit(spec, store, share, folder=folder, before=Totals(), warn=warn, is_separate=True)
        try:
            run.settle_listed()
        except NonDeterministicTaskError:
            if not args.json:
                raise
    found = run.found
    if not found.tasks:
        why = "no task is finished, or the sources have changed"
        raise LedgerError(f"ledger {store.url}: no task can be audited: {why}; run the job again")
    if args.json:
        print_json({"audit": {"tasks": found.tasks, "differ": found.differ}, "found": found.found})
    else:
        print(f"audited {count(found.tasks, 'task')}, {found.differ:,} differ")
    return 1 if found.differ else 0
