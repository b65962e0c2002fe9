"""The side of lhotse, torch and Grain in the table of graphs; runs in the peers' environment."""

from __future__ import annotations

import importlib
import json
import os
import random
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import orjson
from lhotse.lazy import GraphOriginDict, LazyIndexedManifestIterator, LazyShuffler

from benchmarks.serve import serve

_data: Any = importlib.import_module("torch.utils.data")


class Lines:
    """A map-style dataset of lines: one pread and orjson for each."""

    def __init__(self, path: str, index: str) -> None:
        self.file = os.open(path, os.O_RDONLY)
        self.offsets = np.fromfile(index, "<u8").tolist()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Any:
        start, stop = self.offsets[number], self.offsets[number + 1]
        return orjson.loads(os.pread(self.file, stop - start, start))


def iterate(path: str, index: str, shuffle: bool, count: int) -> float:
    node = _leaf(path, index, shuffle)
    return _seconds(lambda: _drain(node, count))


def buffered(path: str, index: str, size: int, count: int) -> float:
    node = LazyShuffler(_leaf(path, index, False), size, rng=random.Random(0))
    return _seconds(lambda: _drain(node, count))


def sampled(path: str, index: str, batch: int, count: int) -> float:
    lines = Lines(path, index)
    sampler = _data.RandomSampler(lines, num_samples=count)
    loader = _data.DataLoader(lines, batch_size=batch, sampler=sampler, collate_fn=list)
    seconds = _seconds(lambda: _drain(loader, count))
    os.close(lines.file)
    return seconds


def skipped(path: str, index: str, position: int) -> float:
    """Return the seconds in which a loader without state reaches a position: it reads and drops all items before."""
    lines = Lines(path, index)
    loader = _data.DataLoader(lines, batch_size=1, sampler=_data.RandomSampler(lines), collate_fn=list)
    seconds = _seconds(lambda: next(islice(loader, position, None)))
    os.close(lines.file)
    return seconds


def restore(path: str, index: str, position: int) -> float:
    node = _leaf(path, index, True)
    _drain(node, 1)
    state = node.state_dict()
    state["range"]["pos"] = state["position"] = position
    text = json.dumps(state)

    def go_on() -> None:
        fresh = _leaf(path, index, True)
        fresh.load_state_dict(json.loads(text))
        next(iter(fresh))

    return min(_seconds(go_on) for _ in range(10))


def restore_buffer(path: str, index: str, size: int) -> float:
    text = json.dumps(_buffered_state(path, index, size))

    def go_on() -> None:
        fresh = LazyShuffler(_leaf(path, index, True), size, rng=random.Random(0))
        fresh.load_state_dict(json.loads(text))
        next(iter(fresh))

    return _seconds(go_on)


def state_bytes(path: str, index: str, size: int) -> int:
    return len(json.dumps(_buffered_state(path, index, size)))


def _buffered_state(path: str, index: str, size: int) -> Any:
    node = LazyShuffler(_leaf(path, index, True), size, rng=random.Random(0))
    _drain(node, 1)
    return node.state_dict()


def make_array_record(path: str, to: str, count: int) -> None:
    """Write the first lines in Grain's format for random access, one record per group, as its documentation advises."""
    writer = importlib.import_module("array_record.python.array_record_module").ArrayRecordWriter(to, "group_size:1")
    with open(path, "rb") as file:
        for line in islice(file, count):
            writer.write(line)
    writer.close()


def grain_shuffled(file: str, count: int) -> float:
    records = iter(_grain(file).to_iter_dataset(read_options=_in_this_thread()))
    return _seconds(lambda: _drain(records, count))


def grain_restore(file: str, position: int) -> float:
    def go_on() -> None:
        records = iter(_grain(file).to_iter_dataset(read_options=_in_this_thread()))
        records.set_state({"next_index": position})
        next(records)

    return min(_seconds(go_on) for _ in range(10))


def _grain(file: str) -> Any:
    grain = importlib.import_module("grain.python")
    return grain.MapDataset.source(grain.ArrayRecordDataSource(file)).shuffle(seed=0).map(orjson.loads)


def _in_this_thread() -> Any:
    # Faster here than with its threads.
    return importlib.import_module("grain.python").ReadOptions(num_threads=0, prefetch_buffer_size=0)


def _leaf(path: str, index: str, shuffle: bool) -> Any:
    return LazyIndexedManifestIterator(path, shuffle=shuffle, index_path=index, decode=GraphOriginDict)


def _drain(items: Any, count: int) -> None:
    for _ in islice(items, count):
        pass


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    works = (
        iterate,
        buffered,
        sampled,
        skipped,
        restore,
        restore_buffer,
        state_bytes,
        make_array_record,
        grain_shuffled,
        grain_restore,
    )
    serve({work.__name__: work for work in works})
