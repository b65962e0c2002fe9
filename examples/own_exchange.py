"""Restartable shuffle in two Beam pipelines: the second pipeline gets all records of a key together.

    python examples/own_exchange.py --output out --runs runs --ledger progress 'pages/*.jsonl' [BEAM OPTION...]

It drops empty texts, and keeps the longest text of each URL. Kill it at any time and run the same command again: it
resumes either pipeline.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ledgerbeam as lb
from ledgerbeam.ledger import Task
from ledgerbeam.transforms import (
    CommitTasks,
    Gather,
    GroupRecords,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    Scatter,
    SkipCompleted,
    WriteTasks,
)


def stripped(task: Task) -> Task:
    """Strip the texts of a task, and drop empty ones."""
    texts = [{**record, "text": record["text"].strip()} for record in task.records]
    return task.replace(records=[record for record in texts if record["text"]])


def longest(url: str, pages: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the page of a URL with the longest text. Of equally long texts it is the first by source and number."""
    return {"url": url, "text": max((page["text"] for page in pages), key=len)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Keep the longest text of each URL.")
    parser.add_argument("patterns", nargs="+", help="JSONL files of records with url and text, as names or wildcards")
    parser.add_argument("--output", required=True, help="folder of the outputs")
    parser.add_argument("--runs", required=True, help="folder for the files between the two pipelines")
    parser.add_argument("--ledger", required=True, help="folder of the ledgers of both pipelines")
    parser.add_argument("--size", default="64M", help="approximate size of tasks and buckets (default: 64M)")
    args, beam_args = parser.parse_known_args(argv)
    scattered = f"{args.ledger}/scatter"

    with lb.Pipeline(ledger=scattered, name="pages-by-url", options=beam_args) as pipeline:
        (
            pipeline
            | MatchSources(args.patterns)
            | SkipCompleted()
            | PlanTasks(args.size)
            | ReadTasks()
            | ProcessTask(stripped)
            | Scatter(args.runs, by="url", order="hash", bucket_bytes=args.size)
            | CommitTasks()
        )
    pipeline.result.raise_for_failures()

    with lb.Pipeline(ledger=f"{args.ledger}/gather", name="longest", options=beam_args) as pipeline:
        (
            pipeline
            | Gather(args.runs, ledger=scattered)
            | SkipCompleted()
            | PlanTasks(args.size)
            | ReadTasks()
            | ProcessTask(GroupRecords(longest, "jsonl", by="url"))
            | WriteTasks(args.output, "jsonl")
            | CommitTasks()
        )
    pipeline.result.raise_for_failures()
    records = pipeline.result.status["records"]
    print(f"{records['read']} pages gathered, {sum(records['written'].values())} written")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except lb.LedgerbeamError as error:
        sys.exit(f"own_exchange: {error}")
