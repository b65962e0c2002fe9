"""``ledgerbeam ledger verify``: is every output there, as it was recorded?"""

from __future__ import annotations

import argparse
import os
import shlex
from glob import escape

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError
from ledgerbeam.io import Options, RangeReader, stat
from ledgerbeam.io.storage.ahead import map_ahead
from ledgerbeam.io.storage.client import CONCURRENCY
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore, Output
from ledgerbeam.ledger.model.checksums import content_checksum
from ledgerbeam.ledger.model.rows import OutputRow
from ledgerbeam.pipelines.console import count, counting, print_json
from ledgerbeam.redaction import without_secrets

__all__ = ["verify"]

READ_BYTES = 4 * 2**20
"""What a thread holds of an output at a time."""

WAITING = 4
"""Checks that wait for each thread."""


def verify(store: LedgerStore, args: argparse.Namespace) -> int:
    """Check every recorded output, several at a time; print a line for each that is not as recorded.

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

    def check(row: OutputRow) -> tuple[OutputRow, str | None]:
        look = _size_problem if args.sizes_only else _content_problem
        return row, look(url_of(row), row.output, options)

    for _ in store.task_counts():  # their reader checks that the sums of the ledger are those of its tasks
        pass
    problems: list[dict[str, str]] = []
    checked = size = 0
    threads = len(os.sched_getaffinity(0)) if isinstance(root, str) and is_local(root) else CONCURRENCY
    with counting("output") as advance:
        for row, problem in map_ahead(check, store.outputs(ordered=False), threads, WAITING * threads):
            checked, size = checked + 1, size + row.output.size
            advance(1, 0 if args.sizes_only else row.output.size)
            if problem is None:
                continue
            url, source = without_secrets(url_of(row)), without_secrets(row.url)
            problems.append({"output": url, "source": source, "problem": without_secrets(problem)})
            if not args.json:
                remedy = shlex.join(["ledgerbeam", "ledger", "forget", args.url, escape(source)])
                print(f"{url}: {without_secrets(problem)}; write it again with: {remedy}")
    if args.json:
        print_json({"outputs": checked, "bytes": size, "problems": problems, "ok": not problems})
    else:
        print(f"{count(checked, 'output')}, {count(size, 'byte')}, {count(len(problems), 'problem')}")
    return 1 if problems else 0


def _size_problem(url: str, output: Output, options: Options) -> str | None:
    """Return what is wrong with an output that can be seen without reading it, or None."""
    try:
        size = stat(url, options).size
    except SourceNotFoundError:
        return f"expected {output.size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    return None if size == output.size else f"expected {output.size} bytes, found {size}"


def _content_problem(url: str, output: Output, options: Options) -> str | None:
    """Return what is wrong with an output, or None."""
    try:
        with RangeReader(url, options) as reader:
            if reader.size != output.size:
                return f"expected {output.size} bytes, found {reader.size}"
            found = content_checksum(reader.blocks(READ_BYTES), like=output.checksum)
    except SourceNotFoundError:
        return f"expected {output.size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    return None if found == output.checksum else f"expected the checksum {output.checksum}, found {found}"
