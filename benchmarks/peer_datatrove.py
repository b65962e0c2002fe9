"""The side of datatrove in the table of near duplicates: `python -m benchmarks.peer_datatrove WORK WORD...`.

It runs in the peers' environment, as datatrove's documentation shows, in two processes where datatrove supports them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

PROCESSES = 2


def dedup(sources: str, folder: str, bands: str, rows: str, ngram: str) -> None:
    """Sign, pair, cluster and filter, with datatrove's words and hashes. The remaining records are in `FOLDER/kept`."""
    minhash: Any = importlib.import_module("datatrove.pipeline.dedup.minhash")
    executor: Any = importlib.import_module("datatrove.executor").LocalPipelineExecutor
    readers: Any = importlib.import_module("datatrove.pipeline.readers")
    writers: Any = importlib.import_module("datatrove.pipeline.writers")
    settings = minhash.MinhashConfig(n_grams=int(ngram), num_buckets=int(bands), hashes_per_bucket=int(rows))
    reading = readers.JsonlReader(sources, glob_pattern="*.jsonl")
    files = len(list(Path(sources).glob("*.jsonl")))
    signed, paired, gone = (f"{folder}/{name}" for name in ("signed", "paired", "gone"))
    stages = (
        ([reading, minhash.MinhashDedupSignature(signed, settings)], files),
        ([minhash.MinhashDedupBuckets(signed, paired, config=settings)], int(bands)),
        ([minhash.MinhashDedupCluster(paired, gone, config=settings)], 1),
        ([reading, minhash.MinhashDedupFilter(gone), writers.JsonlWriter(f"{folder}/kept", compression=None)], files),
    )
    for number, (steps, tasks) in enumerate(stages):
        executor(pipeline=steps, tasks=tasks, workers=PROCESSES, logging_dir=f"{folder}/logs-{number}").run()


def cluster(paired: str, gone: str, bands: str, rows: str) -> None:
    """Find the documents to remove, from pairs in files of datatrove's format."""
    minhash: Any = importlib.import_module("datatrove.pipeline.dedup.minhash")
    settings = minhash.MinhashConfig(num_buckets=int(bands), hashes_per_bucket=int(rows))
    minhash.MinhashDedupCluster(paired, gone, config=settings).run()


WORKS = {work.__name__: work for work in (dedup, cluster)}

if __name__ == "__main__":
    WORKS[sys.argv[1]](*sys.argv[2:])
