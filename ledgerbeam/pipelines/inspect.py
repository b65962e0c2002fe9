"""``ledgerbeam ledger ...``: look at a ledger while its job runs or after it, or make it forget."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io import RangeReader
from ledgerbeam.ledger import FailureRow, LedgerStore, OutputRow, RemoteStore, compact, content_checksum
from ledgerbeam.ledgers import open_ledger
from ledgerbeam.pipelines.report import print_json, print_table

__all__ = ["main"]

READ_BYTES = 8 * 2**20


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Runs one action on a ledger. Returns 0; ``verify`` returns 1 if an output is not as recorded."""
    store = open_ledger(
        args.url, args.storage_options, create=False, read_only=args.action not in ("forget", "compact")
    )
    return _ACTIONS[args.action](store, args)


def _status(store: LedgerStore, args: argparse.Namespace) -> int:
    status = store.status()
    if args.json:
        print_json(status)
        return 0
    sources, tasks, run = status["sources"], status["tasks"], status["last_run"]
    job = status["job"] or {"pipeline": "none yet", "parameters": {}}
    rows = [("job", job["pipeline"])]
    rows += [(f"  {name}", f"{value}") for name, value in sorted(job["parameters"].items()) if value is not None]
    rows.append(("state", "complete" if status["complete"] else "not complete"))
    rows.append(
        (
            "sources",
            f"{sources['complete']:,} complete, {sources['open']:,} open, {sources['failed']:,} failed",
        )
    )
    if status["gone"]:
        rows.append(("gone", f"{status['gone']:,} not in the last listing; their outputs are kept"))
    rows.append(
        (
            "tasks",
            f"{tasks['done']:,} done, {tasks['failed']:,} failed, {status['filtered']:,} without output",
        )
    )
    rows.append(("records", f"{status['records']:,} ({status['bytes']:,} bytes)"))
    if run:
        rows.append(("last run", _run_line(run)))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    return 0


def _failures(store: LedgerStore, args: argparse.Namespace) -> int:
    rows = list(store.failures())
    if args.json:
        print_json({"failures": [_failure_json(row) for row in rows]})
        return 0
    if not rows:
        print("no failures")
        return 0
    for reason, count in Counter(row.reason for row in rows).most_common():
        print(f"{count:,} x {reason}")
    print()
    columns = ["task", "times", "last", "error"]
    print_table(columns, [[r.task, f"{r.attempts}", _time(r.last), r.error or r.reason] for r in rows])
    if any(row.quarantined for row in rows):
        example = next(row.url for row in rows if row.quarantined)
        command = shlex.join(["ledgerbeam", "ledger", "forget", args.url, example, "--failures-only"])
        print(f"\nA quarantined task is not started again until it is forgotten, for example:\n  {command}")
    return 0


def _failure_json(row: FailureRow) -> dict[str, Any]:
    return {
        "source": row.url,
        "task": row.task,
        "reason": row.reason,
        "error": row.error,
        "attempts": row.attempts,
        "last": _time(row.last),
        "quarantined": row.quarantined,
    }


def _outputs(store: LedgerStore, args: argparse.Namespace) -> int:
    if args.json:
        print_json({"outputs": [_output_json(row) for row in store.outputs()]})
        return 0
    for row in store.outputs():
        print(f"{row.output.name}\t{row.output.records}\t{row.output.size}\t{row.url}")
    return 0


def _output_json(row: OutputRow) -> dict[str, Any]:
    return {**dataclasses.asdict(row.output), "source": row.url, "complete": row.complete}


def _verify(store: LedgerStore, args: argparse.Namespace) -> int:
    job = store.job()
    root = job.parameters.get("output") if job else None
    checked = 0
    problems: list[dict[str, str]] = []
    for row in store.outputs(ordered=False):
        checked += 1
        url = f"{root}/{row.output.name}" if root else row.output.name
        problem = _output_problem(url, row, args.storage_options)
        if problem:
            problems.append({"output": url, "source": row.url, "problem": problem})
            if not args.json:
                print(f"{url}: {problem}; write it again with: "
                      f"{shlex.join(['ledgerbeam', 'ledger', 'forget', args.url, row.url])}")  # fmt: skip
    if args.json:
        print_json({"outputs": checked, "problems": problems, "ok": not problems})
    else:
        print(f"{checked:,} outputs, {len(problems):,} problems")
    return 1 if problems else 0


def _output_problem(url: str, row: OutputRow, options: dict[str, Any]) -> str | None:
    """Returns what is wrong with a recorded output, or None."""
    try:
        with RangeReader(url, options) as reader:
            if reader.size != row.output.size:
                return f"expected {row.output.size} bytes, found {reader.size}"
            starts = range(0, reader.size, READ_BYTES)
            found = content_checksum(reader.read(start, min(start + READ_BYTES, reader.size)) for start in starts)
    except LedgerbeamError as error:
        return str(error)
    if found != row.output.checksum:
        return f"expected the checksum {row.output.checksum}, found {found}"
    return None


def _forget(store: LedgerStore, args: argparse.Namespace) -> int:
    forgotten: list[str] = []
    for pattern in args.patterns:
        found = store.forget(pattern, failures_only=args.failures_only)
        if not found:
            raise UsageError(f"{pattern}: no source of the ledger matches; its URLs are absolute, and * also matches /")
        forgotten += found
    if args.json:
        print_json({"forgotten": forgotten})
    else:
        print(f"{len(forgotten):,} sources forgotten; the next run does them again")
    return 0


def _compact(store: LedgerStore, args: argparse.Namespace) -> int:
    if not isinstance(store, RemoteStore):
        raise UsageError(f"ledger {args.url}: only a remote ledger is compacted; a local one needs none")
    done = compact(store)
    if args.json:
        print_json(dataclasses.asdict(done))
    else:
        print(f"{done.replaced:,} objects replaced by a snapshot of {done.parts:,}, {done.bytes:,} bytes")
    return 0


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _run_line(run: dict[str, Any]) -> str:
    ended, info = run["ended"], run["info"]
    outcome = run["outcome"] or "running, or killed"
    took = f", {ended - run['began']:,.1f} s" if ended else ""
    return f"{run['id']}: {outcome}, began {_time(run['began'])}{took}, process {info.get('pid')} on {info.get('host')}"


_ACTIONS: dict[str, Callable[[LedgerStore, argparse.Namespace], int]] = {
    "status": _status,
    "failures": _failures,
    "outputs": _outputs,
    "verify": _verify,
    "forget": _forget,
    "compact": _compact,
}
