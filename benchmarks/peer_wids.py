"""wids' side of the tables; runs in the peers' environment, from a separate folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.serve import serve

sys.path.insert(0, str(Path(sys.prefix) / "wids"))

import wids  # type: ignore[import-not-found]


def read(url: str, cache: str, records: str) -> float:
    dataset = wids.ShardListDataset(url, cache_dir=cache, keep=True, transformations=[])
    with open(records, encoding="ascii") as file:
        wanted = [int(line) for line in file]
    started = time.perf_counter()
    for number in wanted:
        {name: value.read() if hasattr(value, "read") else value for name, value in dataset[number].items()}
    return time.perf_counter() - started


if __name__ == "__main__":
    serve({"read": read})
