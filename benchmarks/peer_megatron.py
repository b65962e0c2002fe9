"""Megatron's side of the tables; runs in the peers' environment."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from megatron.core.datasets.indexed_dataset import (  # type: ignore[import-not-found]
    IndexedDataset,
    IndexedDatasetBuilder,
)

from benchmarks.serve import serve

_datasets: dict[tuple[str, bool], IndexedDataset] = {}


def read(prefix: str, mmap: bool, records: str) -> float:
    """Read sequences one by one."""
    dataset = _opened(prefix, mmap)
    with open(records, encoding="ascii") as file:
        wanted = [int(line) for line in file]

    def work() -> None:
        for number in wanted:
            dataset[number]

    return _seconds(work)


def read_slices(prefix: str, mmap: bool, count: int, width: int) -> float:
    """Read the first `count` sequences in slices."""
    dataset = _opened(prefix, mmap)

    def work() -> None:
        for start in range(0, count, width):
            dataset[start : start + width]

    return _seconds(work)


def build(output: str, count: int, tokens: str, as_list: bool) -> float:
    """Add a document again and again."""
    document = np.load(tokens)
    text = document.tolist() if as_list else document
    builder = IndexedDatasetBuilder(f"{output}.bin", np.uint16)
    lengths = [len(document)]

    def work() -> None:
        for _ in range(count):
            builder.add_document(text, lengths)
        builder.data_file.flush()

    seconds = _seconds(work)
    builder.finalize(f"{output}.idx")
    return seconds


def finalize(output: str, lengths: str) -> float:
    """Write the index of documents of one sequence each, with these lengths."""
    builder = IndexedDatasetBuilder(f"{output}.bin", np.uint16)
    builder.sequence_lengths = np.load(lengths).tolist()
    builder.document_indices = list(range(len(builder.sequence_lengths) + 1))
    return _seconds(lambda: builder.finalize(f"{output}.idx"))


def merge(prefixes: list[str], output: str) -> float:
    """Join datasets as Megatron's merge_datasets.py does."""

    def work() -> None:
        builder = IndexedDatasetBuilder(f"{output}.bin", np.uint16)
        for prefix in prefixes:
            builder.add_index(prefix)
        builder.finalize(f"{output}.idx")

    return _seconds(work)


def _opened(prefix: str, mmap: bool) -> IndexedDataset:
    if (prefix, mmap) not in _datasets:
        _datasets[prefix, mmap] = IndexedDataset(prefix, mmap=mmap)
    return _datasets[prefix, mmap]


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    works = (read, read_slices, build, finalize, merge)
    serve({work.__name__: work for work in works})
