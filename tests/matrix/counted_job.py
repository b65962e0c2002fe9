"""The chain of transforms over some files, and the counters that its runner gives at the end, as JSON.

A command line: `python -m tests.matrix.counted_job FOLDER [BEAM OPTION ...]`. Workers are on this machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from ledgerbeam.ledger import Job
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.sources.listing import SourceListing
from ledgerbeam.transforms import (
    CommitTasks,
    MapRecords,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle, give_values

TASK_RECORDS = 10


def counted(folder: str, options: Sequence[str]) -> dict[str, int]:
    """Run the chain over `FOLDER/in`; return each counter, and of each distribution how many values it has."""
    job = Job("counted", {"folder": folder})
    store = open_local_store(f"{folder}/ledger", create=True)
    store.open_job(job)
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    (
        pipeline
        | MatchSources()
        | SkipCompleted()
        | PlanTasks(task_records=TASK_RECORDS)
        | ReadTasks()
        | ProcessTask(MapRecords("tests.matrix.work:count", "jsonl"))
        | WriteTasks(f"{folder}/out", "jsonl")
        | CommitTasks()
    )
    listing = SourceListing((f"{folder}/in/*.jsonl",))
    give_values(pipeline, ChainValues(LedgerHandle(store.url, job.fingerprint), listing, base=f"{folder}/in/"))
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("ledgerbeam"))
    # `result` is what was committed, where a runner tells it, else what was attempted.
    told: dict[str, int] = {}
    for row in found["counters"]:
        told[row.key.metric.name] = told.get(row.key.metric.name, 0) + (row.result or 0)
    for row in found["distributions"]:
        told[row.key.metric.name] = told.get(row.key.metric.name, 0) + (row.result.count if row.result else 0)
    store.close()
    return told


if __name__ == "__main__":
    print(json.dumps(counted(sys.argv[1], sys.argv[2:])))
    # A thread of gRPC that Beam leaves behind may hold a lock which the interpreter waits for as it ends, for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
