"""A restartable Beam pipeline of one's own, made of ledgerbeam's transforms.

    python examples/own_pipeline.py --output out --ledger progress 'texts/*.jsonl' [--runner=... BEAM OPTION...]

It drops texts that were seen before in their task, and writes short and long ones into shards of their own. Kill it
and run the same command again: it does what is left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ledgerbeam.io import ObjectFolder, SourceListing, canonical_url, common_base
from ledgerbeam.ledger import Job, Task, code_identity
from ledgerbeam.opening import open_ledger
from ledgerbeam.transforms import (
    CommitTasks,
    LedgerHandle,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)

LONG = 1000


def short_and_long(task: Task) -> list[Task] | None:
    """Fans a task out into two, or filters it: a task may become none, one or many."""
    texts = {record["text"]: record for record in task.records if record["text"].strip()}
    if not texts:
        return None
    short = [record for text, record in texts.items() if len(text) < LONG]
    long = [record for text, record in texts.items() if len(text) >= LONG]
    return task.fan_out([short, long])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Sort texts into short and long ones.")
    parser.add_argument("patterns", nargs="+")
    parser.add_argument("--output", required=True)
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--on-job-change", choices=["refuse", "restart", "accept"], default="refuse")
    args, beam_args = parser.parse_known_args(argv)

    patterns = tuple(canonical_url(pattern) for pattern in args.patterns)
    output = canonical_url(args.output)
    # What shapes the output, edits of the function included: the ledger of another job is refused.
    job = Job("short-and-long", {"output": output, "functions": code_identity(short_and_long)})
    store = open_ledger(canonical_url(args.ledger), create=True)  # a folder, or s3://bucket/ledger
    store.open_job(job, on_change=args.on_job_change)
    ledger = LedgerHandle(store.url, job.fingerprint)

    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner", *beam_args])) as pipeline:
        (
            pipeline
            | MatchSources(SourceListing(patterns))
            | SkipCompleted(ledger)
            | "SpreadSources" >> beam.Reshuffle()
            | PlanTasks(ledger, task_records=10_000)
            | "SpreadTasks" >> beam.Reshuffle()  # the last barrier: from here to the ledger is one fused stage
            | ReadTasks(ledger=ledger)
            | ProcessTask(short_and_long, ledger)
            | WriteTasks(output, "jsonl", common_base(patterns), ledger=ledger)
            | CommitTasks(ledger)
        )

    store.refresh()
    stale = store.stale_outputs()  # of sources that changed, and of what the job did before it was restarted
    ObjectFolder(output).delete(stale)
    store.drop_stale(stale)
    counts = store.status()["sources"]
    print(f"{counts['complete']} sources complete, {counts['open']} open, {counts['failed']} failed")
    return 3 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
