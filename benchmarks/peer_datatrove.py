"""The side of datatrove in two tables, near and decontaminating: `python -m benchmarks.peer_datatrove WORK WORD...`.

It runs in the peers' environment, as datatrove's documentation shows, in two processes where datatrove supports them.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
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


def decontaminate(sources: str, sets: str, folder: str, ngram: str) -> None:
    """Index the n-grams of evaluation sets, and drop documents that have one. The others are in `FOLDER`.

    The step `NGramsDecontIndexer` needs lighteval, and downloads its tasks. Here its function makes the n-grams, and
    each question is a whole label, so the index has all n-grams of the question.
    """
    decont: Any = importlib.import_module("datatrove.pipeline.decont.n_grams")
    executor: Any = importlib.import_module("datatrove.executor").LocalPipelineExecutor
    readers: Any = importlib.import_module("datatrove.pipeline.readers")
    writers: Any = importlib.import_module("datatrove.pipeline.writers")
    config = decont.NGramsDecontConfig(n_grams=int(ngram))
    parts = {
        "tokenizer": decont.load_word_tokenizer(decont.Languages.english),
        "hash_func": decont.create_hash_func(config.hash_config),
    }
    indexer = SimpleNamespace(config=config, **parts)
    index = Path(folder) / "_index"
    index.mkdir(parents=True)
    for path in sorted(Path(sets).glob("*.jsonl")):
        hashes: set[int] = set()
        for line in path.read_text().splitlines():
            hashes.update(decont.NGramsDecontIndexer.compute_hashes(indexer, json.loads(line)["question"]))
        decont.np.array(list(hashes), config.hash_config.np_descr).tofile(index / f"{path.stem}.index.hashes")
    steps = [
        readers.JsonlReader(sources, glob_pattern="*.jsonl"),
        decont.NGramsDecontFilter(str(index), config),
        writers.JsonlWriter(folder, output_filename="${rank}.jsonl", compression=None),
    ]
    files = len(list(Path(sources).glob("*.jsonl")))
    executor(pipeline=steps, tasks=files, workers=PROCESSES, logging_dir=f"{folder}/_logs").run()


WORKS = {work.__name__: work for work in (dedup, cluster, decontaminate)}

if __name__ == "__main__":
    WORKS[sys.argv[1]](*sys.argv[2:])
