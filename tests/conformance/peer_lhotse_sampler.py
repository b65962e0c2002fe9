"""lhotse's samplers over our graphs and over its own manifests; runs in the peers' environment."""

from __future__ import annotations

import copy
import importlib
import json
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from lhotse import CutSet, MonoCut, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler
from lhotse.dataset.dataloading import worker_init_fn
from lhotse.dataset.iterable_dataset import IterableDatasetWrapper
from lhotse.indexing import create_jsonl_index
from lhotse.lazy import LazyIndexedManifestIterator, LazyIteratorChain, LazyIteratorMultiplexer

from benchmarks.serve import serve
from ledgerbeam.iterators import Chain, Filter, GlobalShuffle, IndexedManifest, IndexedShar, Map, Mux, Repeat
from ledgerbeam.iterators.lhotse_data import CutSource
from tests.conformance.peer_lhotse import _described

StatefulDataLoader: Any = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader

BINS = [1.0, 2.0, 3.0]


def write(paths: list[str], count: int) -> None:
    """Write manifests of cuts, each with lhotse's index."""
    for at, path in enumerate(paths):
        cuts = CutSet.from_cuts(_cut(at * count + number) for number in range(count))
        cuts.to_file(path)
        create_jsonl_index(path)


def graph(name: str, paths: list[str]) -> Any:
    leaves = [IndexedManifest(path) for path in paths]
    shuffled = [IndexedManifest(path, shuffle=True, seed=3) for path in paths]
    makes = {
        "plain": lambda: leaves[0],
        "shuffled": lambda: shuffled[0],
        "global": lambda: GlobalShuffle(*leaves, seed=5),
        "mux": lambda: Mux(*shuffled, weights=[2, 1], seed=1),
        "deep": lambda: Repeat(Map(Filter(Chain(GlobalShuffle(*leaves, seed=2)), _is_wanted), _marked), 3),
    }
    return makes[name]()


def theirs(name: str, paths: list[str]) -> Any:
    makes = {
        "plain": lambda: LazyIndexedManifestIterator(paths[0]),
        "shuffled": lambda: LazyIndexedManifestIterator(paths[0], shuffle=True, seed=3),
        "global": lambda: LazyIteratorChain(*map(LazyIndexedManifestIterator, paths), shuffle_iters=True, seed=5),
        "mux": lambda: LazyIteratorMultiplexer(
            *(LazyIndexedManifestIterator(path, shuffle=True, seed=3) for path in paths), weights=[2, 1], seed=1
        ),
    }
    return makes[name]()


def sampler(source: Any, kind: str = "buckets", bins: bool = True, **kwargs: Any) -> Any:
    cuts = CutSet(source)
    options: dict[str, Any] = {"max_duration": 8.0, "shuffle": True, "seed": 11, "world_size": 1, "rank": 0, **kwargs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "cuts":
            return DynamicCutSampler(cuts, shuffle_buffer_size=30, **options)
        buckets = {"duration_bins": BINS} if bins else {"num_buckets": 4, "num_cuts_for_bins_estimate": 50}
        return DynamicBucketingSampler(cuts, buffer_size=40, **buckets, **options)


def batches(name: str, paths: list[str], kind: str, bins: bool, epochs: int) -> list[Any]:
    return _batches(sampler(CutSource(graph(name, paths)), kind, bins), epochs)


def their_batches(name: str, paths: list[str], kind: str, bins: bool) -> list[Any]:
    return _batches(sampler(theirs(name, paths), kind, bins), 1)


def _batches(found: Any, epochs: int) -> list[Any]:
    passes = []
    for epoch in range(epochs):
        found.set_epoch(epoch)
        passes.append([[cut.id for cut in batch] for batch in found])
    return passes


def restored(name: str, paths: list[str], kind: str, steps: list[int]) -> list[Any]:
    """Save after some steps, restore in new samplers, and return for each the expected and the found items."""
    whole = sampler(CountedSource(graph(name, paths)), kind)
    found, states = [], {}
    for batch in _continued(whole):
        found.append(batch)
        if len(found) in steps:
            states[len(found)] = copy.deepcopy(whole.state_dict())
    results = []
    for step, state in states.items():
        source = CountedSource(graph(name, paths))
        other = sampler(source, kind)
        other.load_state_dict(state)
        came = list(_continued(other))
        results.append([found[step:], came, source.passed])
    return results


def _continued(batches: Any) -> Iterator[list[str]]:
    iter(batches)  # from here on the sampler itself is the iterator
    while (batch := next(batches, None)) is not None:
        yield [cut.id for cut in batch]


class CountedSource(CutSource):
    """Counts the cuts that it gives by iteration: a restore that replays would give all again."""

    passed = 0

    def _cuts(self, items: Any) -> Any:
        for cut in super()._cuts(items):
            self.passed += 1
            yield cut


class Ids:
    """The collated batch of a loader: its IDs."""

    def __getitem__(self, cuts: Any) -> list[str]:
        return [cut.id for cut in cuts]


def loader(name: str, paths: list[str], workers: int, rank: int | None) -> Any:
    dataset = IterableDatasetWrapper(Ids(), sampler(CutSource(graph(name, paths))))
    init = None if rank is None else partial(worker_init_fn, rank=rank, world_size=2, seed=0)
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, worker_init_fn=init)


def loaded(name: str, paths: list[str], workers: int, steps: list[int], rank: int | None = None) -> list[Any]:
    """Save the state of a loader after some batches, restore it, and return the expected and the found items."""
    found, states = [], {}
    whole = loader(name, paths, workers, rank)
    for step, batch in enumerate(whole, 1):
        found.append(batch)
        if step in steps:
            states[step] = copy.deepcopy(whole.state_dict())
    results: list[Any] = [found]
    for step, state in states.items():
        other = loader(name, paths, workers, rank)
        other.load_state_dict(state)
        results.append([found[step:], list(other)])
    return results


def composed(paths: list[str]) -> list[Any]:
    """Return the items of lhotse's own nodes over a source, and the items that they rebuild from the tokens."""
    first, second = (CutSet(CutSource(IndexedManifest(path, shuffle=True))) for path in paths)
    cuts = CutSet.mux(first.map(_longer), second.filter(_is_even_cut), weights=[1, 1], seed=4)
    given = list(islice(cuts, 40))
    again = [cuts.data[cut._graph_origin] for cut in given]
    return [[[cut.id, cut.duration] for cut in those] for those in (given, again)]


def shar(folder: str) -> list[Any]:
    return [_described(cut) for cut in CutSet(CutSource(IndexedShar(folder)))]


def refused(path: str) -> list[str]:
    """Return the errors for items that are no cuts, and for the state of another graph."""
    errors = []
    state = CutSource(IndexedManifest(path)).state_dict()
    for work in (
        lambda: next(iter(CutSource(Map(IndexedManifest(path), _no_cut)))),
        lambda: next(iter(CutSource(Map(IndexedManifest(path), _number)))),
        lambda: CutSource(IndexedManifest(path, shuffle=True)).load_state_dict(state),
        lambda: CutSource(IndexedManifest(path)).load_state_dict({"graph": state["graph"]}),
    ):
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the test says which are expected
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def in_json(path: str) -> bool:
    source = CutSource(IndexedManifest(path, shuffle=True))
    cuts = iter(source)
    for _ in range(7):
        next(cuts)
    other = CutSource(IndexedManifest(path, shuffle=True))
    other.load_state_dict(json.loads(json.dumps(source.state_dict())))
    return [cut.id for cut in cuts] == [cut.id for cut in other]


def _cut(number: int) -> MonoCut:
    duration = 0.5 + number * 7 % 40 / 10
    said = SupervisionSegment(f"said-{number}", f"rec-{number}", 0, duration, text=f"text {number}")
    return MonoCut(f"cut-{number}", 0, duration, 0, supervisions=[said])


def _is_wanted(record: dict[str, Any]) -> bool:
    return not record["id"].endswith("3")


def _marked(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "custom": {"mark": record["id"]}}


def _no_cut(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"]}


def _number(record: dict[str, Any]) -> list[str]:
    return [record["id"]]


def _longer(cut: Any) -> Any:
    cut.duration += 1
    return cut


def _is_even_cut(cut: Any) -> bool:
    return int(cut.id.rpartition("-")[2]) % 2 == 0


if __name__ == "__main__":
    works = (write, batches, their_batches, restored, loaded, composed, shar, refused, in_json)
    serve({work.__name__: work for work in works})
