"""torch's side of the tests: graphs in its loaders; runs in the peers' environment."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from benchmarks.serve import serve
from ledgerbeam.iterators import (
    Batches,
    Filter,
    GlobalShuffle,
    IndexedManifest,
    IteratorNode,
    Map,
    Mux,
    Packed,
    Shuffle,
    merge_states,
    stack_packs,
)
from ledgerbeam.iterators.torch_data import GraphDataset, GraphSequence, shard_states
from tests.iterators import data

DataLoader: Any = importlib.import_module("torch.utils.data").DataLoader
StatefulDataLoader: Any = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader

MODES: dict[str, dict[str, Any]] = {
    "main": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
}


def graph(paths: list[str]) -> IteratorNode:
    mixed = Mux(*(IndexedManifest(path, shuffle=True, seed=2) for path in paths), weights=[2, 1], seed=1)
    return Batches(Shuffle(Filter(mixed, _is_not_fifth), 10, seed=3), 4)


def lengths(*, paths: list[str], mode: str, ranks: int) -> list[list[int]]:
    """Return for each rank the length of a loader of single records, and how many of them it gave."""
    found = []
    for rank in range(ranks):
        records = GlobalShuffle(*map(IndexedManifest, paths))
        one = DataLoader(GraphDataset(records, rank=rank, world_size=ranks), batch_size=None, **MODES[mode])
        found.append([len(one), sum(1 for _ in one)])
    return found


def has_length(*, paths: list[str]) -> bool:
    try:
        return len(GraphDataset(graph(paths))) >= 0
    except TypeError:
        return False


def loader(paths: list[str], mode: str, **kwargs: Any) -> Any:
    return StatefulDataLoader(GraphDataset(graph(paths), **kwargs), batch_size=None, **MODES[mode])


def restored(paths: list[str], mode: str, steps: list[int]) -> list[Any]:
    """Save after some steps, load in new loaders, and return for each the expected and the found items."""
    whole = loader(paths, mode)
    found, states = [], {}
    for step, batch in enumerate(whole, 1):
        found.append(_numbers(batch))
        if step in steps:
            states[step] = json.loads(json.dumps(whole.state_dict()))
    results = []
    for step, state in states.items():
        other = loader(paths, mode)
        other.load_state_dict(state)
        results.append([found[step:], [_numbers(batch) for batch in other]])
    return results


def passes(paths: list[str], mode: str, count: int) -> list[list[Any]]:
    """Return the batches of several passes of one plain loader, whose workers know of no epochs unless they persist."""
    dataset = GraphDataset(graph(paths))
    plain = DataLoader(dataset, batch_size=None, **MODES[mode])
    results = []
    for epoch in range(count):
        if mode in ("fork", "spawn"):
            dataset.set_epoch(epoch)
        results.append([_numbers(batch) for batch in plain])
    return results


def elastic(*, paths: list[str], ranks: int, mode: str, steps: int, new_ranks: int, new_mode: str) -> list[Any]:
    """Save all workers of all ranks, continue with another number, and return the items of each part of the job."""
    given, states = [], []
    for rank in range(ranks):
        one = loader(paths, mode, rank=rank, world_size=ranks)
        batches: Iterator[Any] = iter(one)
        given += [_numbers(batch) for batch in islice(batches, steps + rank)]
        states += shard_states(one.state_dict())
    merged = json.loads(json.dumps(merge_states(graph(paths), states)))
    for rank in range(new_ranks):
        dataset = GraphDataset(graph(paths), rank=rank, world_size=new_ranks)
        dataset.load_merged(merged)
        given += [_numbers(batch) for batch in StatefulDataLoader(dataset, batch_size=None, **MODES[new_mode])]
    return given


def sampled(paths: list[str], batch_size: int) -> list[Any]:
    """Read a graph of fixed order as a map-style dataset with torch's own shuffling."""
    dataset = GraphSequence(GlobalShuffle(*map(IndexedManifest, paths)))
    return list(DataLoader(dataset, batch_size=batch_size, shuffle=True, collate_fn=_numbers, **MODES["fork"]))


def in_blocks(blocks: list[int], window: int, workers: int) -> list[int]:
    loader = DataLoader(GraphDataset(data.in_blocks(blocks, window=window)), batch_size=None, num_workers=workers)
    return list(loader)


def packs(*, folder: str, mode: str, steps: int) -> dict[str, Any]:
    """Read batches of packs in 4 ranks, save after some steps, and read the rest in 3 ranks."""

    def batches() -> IteratorNode:
        return Map(Batches(Packed(folder, shuffle=True), 2), stack_packs)

    def rows(batch: Any) -> Any:
        return batch["tokens"].tolist()

    given: list[Any] = []
    states: list[Any] = []
    types: set[str] = set()
    for rank in range(4):
        one = StatefulDataLoader(GraphDataset(batches(), rank=rank, world_size=4), batch_size=None, **MODES[mode])
        for batch in islice(iter(one), steps):
            given += rows(batch)
            types |= {f"{name} {type(value).__name__} {value.dtype}" for name, value in batch.items()}
        states += shard_states(one.state_dict())
    merged = json.loads(json.dumps(merge_states(batches(), states)))
    for rank in range(3):
        dataset = GraphDataset(batches(), rank=rank, world_size=3)
        dataset.load_merged(merged)
        for batch in StatefulDataLoader(dataset, batch_size=None, **MODES[mode]):
            given += rows(batch)
    return {"rows": given, "types": sorted(types)}


def _numbers(batch: Any) -> list[int]:
    return [record["n"] for record in batch]


def _is_not_fifth(record: dict[str, int]) -> bool:
    return record["n"] % 5 != 0


if __name__ == "__main__":
    works = (restored, passes, packs, elastic, sampled, in_blocks, lengths, has_length)
    serve({work.__name__: work for work in works})
