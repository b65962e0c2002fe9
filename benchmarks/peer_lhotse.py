"""lhotse's side of the tables; runs in the peers' environment."""

from __future__ import annotations

import time

from lhotse.indexing import IndexedJsonlReader, IndexedTarReader, create_jsonl_index, create_tar_index
from lhotse.shar.readers.indexed import LazyIndexedSharIterator

from benchmarks.serve import serve


def index_jsonl(path: str, output: str) -> float:
    started = time.perf_counter()
    create_jsonl_index(path, output_path=output)
    return time.perf_counter() - started


def index_tar(path: str, output: str) -> float:
    started = time.perf_counter()
    create_tar_index(path, output_path=output)
    return time.perf_counter() - started


def read_jsonl(path: str, index: str, records: str) -> float:
    reader = IndexedJsonlReader(path, auto_create_index=False, index_path=index)
    wanted = _numbers(records)
    started = time.perf_counter()
    for number in wanted:
        reader[number]
    return time.perf_counter() - started


def read_tar(path: str, index: str, records: str) -> float:
    reader = IndexedTarReader(path, auto_create_index=False, index_path=index)
    wanted = _numbers(records)
    started = time.perf_counter()
    for number in wanted:
        reader[number]
    return time.perf_counter() - started


def read_shar(folder: str, records: str) -> float:
    reader = LazyIndexedSharIterator(in_dir=folder)
    wanted = _numbers(records)
    started = time.perf_counter()
    for number in wanted:
        reader[number]
    return time.perf_counter() - started


def _numbers(path: str) -> list[int]:
    with open(path, encoding="ascii") as file:
        return [int(line) for line in file]


if __name__ == "__main__":
    works = (index_jsonl, index_tar, read_jsonl, read_tar, read_shar)
    serve({work.__name__: work for work in works})
