"""Energon's side of the tables; runs in the peers' environment."""

from __future__ import annotations

import time

from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator  # type: ignore[import-not-found]

from benchmarks.serve import serve


def prepare(folder: str, shard: str) -> float:
    """Index a shard with one worker: write its `.tar.idx` and, in the same pass, the SQLite index of the dataset."""
    started = time.perf_counter()
    WebdatasetPreparator.prepare_dataset(folder, [shard], split_parts_ratio=[("train", 1.0)], workers=1)
    return time.perf_counter() - started


if __name__ == "__main__":
    serve({"prepare": prepare})
