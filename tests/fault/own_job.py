"""The job of the suite as a pipeline that a user has built.

A command line: `python -m tests.fault.own_job ROOT WORKERS [BEAM OPTION ...]`; all of the job lies below the root.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import ledgerbeam as lb
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
from tests.fault.corpus import TASK_BYTES
from tests.fault.findings import FLUSH_SECONDS

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Return 0 if all is done, 3 if tasks have failed."""
    root, workers, *options = argv
    work = MapRecords("tests.fault.traced:work", "jsonl", on_error="reject")
    with lb.Pipeline(
        ledger=f"{root}/ledger",
        name="own",
        options=options,
        workers=int(workers),
        flush_interval=FLUSH_SECONDS,
        audit="off",  # it calls the function again, as after a crash
    ) as pipeline:
        (
            pipeline
            | MatchSources(f"{root}/in/*.jsonl")
            | SkipCompleted()
            | PlanTasks(task_bytes=TASK_BYTES)
            | ReadTasks("reject")
            | ProcessTask(work)
            | WriteTasks(f"{root}/out", "jsonl")
            | CommitTasks()
        )
    return 3 if pipeline.result.status["tasks"]["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
