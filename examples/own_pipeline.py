"""Restartable Beam pipeline, built from ledgerbeam's transforms.

    python examples/own_pipeline.py --output out --ledger progress 'texts/*.jsonl' [--runner=... BEAM OPTION...]

It drops texts that are repeated within a task, and writes short and long texts into separate shards. Kill it and run
the same command again: it does the remaining tasks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ledgerbeam as lb
from ledgerbeam.ledger import Task
from ledgerbeam.transforms import (
    CommitTasks,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)

LONG = 1000
"""Number of characters that makes a text long."""


def short_and_long(task: Task) -> list[Task] | None:
    """Divide a task into two: short texts and long texts. Drop a task without texts."""
    texts = {record["text"]: record for record in task.records if record["text"].strip()}
    if not texts:
        return None
    short = [record for text, record in texts.items() if len(text) < LONG]
    long = [record for text, record in texts.items() if len(text) >= LONG]
    return task.fan_out([short, long])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Sort texts into short and long ones.")
    parser.add_argument("patterns", nargs="+", help="JSONL files of records with a text, as names or wildcards")
    parser.add_argument("--output", required=True, help="folder of the outputs")
    parser.add_argument("--ledger", required=True, help="folder of the ledger")
    parser.add_argument(
        "--on-job-change",
        choices=["refuse", "restart", "accept"],
        default="refuse",
        help="what to do if this program has changed since the ledger was created (default: refuse)",
    )
    args, beam_args = parser.parse_known_args(argv)

    with lb.Pipeline(
        ledger=args.ledger, name="short-and-long", options=beam_args, on_job_change=args.on_job_change
    ) as pipeline:
        (
            pipeline
            | MatchSources(args.patterns)
            | SkipCompleted()
            | PlanTasks(task_records=10_000)
            | ReadTasks()
            | ProcessTask(short_and_long)
            | WriteTasks(args.output, "jsonl")
            | CommitTasks()
        )

    counts = pipeline.result.status["sources"]
    print(f"{counts['complete']} sources complete, {counts['open']} open, {counts['failed']} failed")
    return 3 if counts["failed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except lb.LedgerbeamError as error:
        sys.exit(f"own_pipeline: {error}")
