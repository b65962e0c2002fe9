"""``ledgerbeam ledger verify``: is every output there, and the metadata of the dataset, as it was recorded?"""

from __future__ import annotations

import argparse
import os
import shlex
from glob import escape

from ledgerbeam.io import Options
from ledgerbeam.io.storage.ahead import map_ahead
from ledgerbeam.io.storage.client import CONCURRENCY
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import OutputRow
from ledgerbeam.pipelines.console import count, counting, print_json
from ledgerbeam.pipelines.jobs.contents import content_problem, size_problem
from ledgerbeam.pipelines.jobs.published import published_files
from ledgerbeam.redaction import without_secrets

__all__ = ["verify"]

WAITING = 4
"""Checks that wait for each thread."""


def verify(store: LedgerStore, args: argparse.Namespace) -> int:
    """Check every recorded output, several at a time, then metadata; print a line for each that is not as recorded.

    Returns:
        0, or 1 if there were any.

    Raises:
        LedgerDamagedError: The numbers of records that the ledger has are not those of its tasks.
    """
    job = store.job()
    root = job.parameters.get("output") if job else None
    options: Options = args.storage_options

    def url_of(row: OutputRow) -> str:
        return f"{root}/{row.output.name}" if root else row.output.name

    def problem_of(url: str, size: int, checksum: str) -> str | None:
        found = size_problem(url, size, options) if args.sizes_only else content_problem(url, size, checksum, options)
        return None if found is None else without_secrets(found)

    def check(row: OutputRow) -> tuple[OutputRow, str | None]:
        return row, problem_of(url_of(row), row.output.size, row.output.checksum)

    def tell(url: str, source: str | None, problem: str, remedy: str) -> None:
        problems.append({"output": url, "source": source, "problem": problem})
        if not args.json:
            print(f"{url}: {problem}; {remedy}")

    for _ in store.task_counts():  # their reader checks that the sums of the ledger are those of its tasks
        pass
    problems: list[dict[str, str | None]] = []
    checked = size = 0
    threads = len(os.sched_getaffinity(0)) if isinstance(root, str) and is_local(root) else CONCURRENCY
    with counting("output") as advance:
        for row, problem in map_ahead(check, store.outputs(ordered=False), threads, WAITING * threads):
            checked, size = checked + 1, size + row.output.size
            advance(1, 0 if args.sizes_only else row.output.size)
            if problem is not None:
                source = without_secrets(row.url)
                remedy = shlex.join(["ledgerbeam", "ledger", "forget", args.url, escape(source)])
                tell(without_secrets(url_of(row)), source, problem, f"write it again with: {remedy}")
    metadata = published_files(store, options)
    for file in metadata:
        problem = problem_of(file.url, file.size, file.checksum)
        if problem is not None:
            remedy = f"to write this metadata again, run its job again with --to {file.form}"
            tell(without_secrets(file.url), None, problem, remedy)
    if args.json:
        counted = {"outputs": checked, "bytes": size, "metadata": len(metadata)}
        print_json({**counted, "problems": problems, "ok": not problems})
    else:
        of_metadata = [count(len(metadata), "file") + " of metadata"] if metadata else []
        said = [count(checked, "output"), count(size, "byte"), *of_metadata, count(len(problems), "problem")]
        print(", ".join(said))
    return 1 if problems else 0
