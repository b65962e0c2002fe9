"""lhotse's iterator nodes, and its packs of indexes; runs in the peers' environment."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.dataset import dataloading
from lhotse.index_pack import IndexPack, IndexPackArraySpec, IndexPackCollectionSpec, write_index_pack
from lhotse.lazy import (
    GraphOriginDict,
    LazyFilter,
    LazyFlattener,
    LazyIndexedManifestIterator,
    LazyIteratorChain,
    LazyIteratorMultiplexer,
    LazyMapper,
    LazyRepeater,
    LazyShuffler,
    LazySlicer,
    get_graph_origin,
)
from lhotse.packed_lazy import LazyPackedManifestIterator
from lhotse.shar.readers.indexed import LazyIndexedSharIterator

from benchmarks.serve import serve


class Pieces(list[Any]):
    """A list that can carry a token."""


def leaf(path: str, **kwargs: Any) -> Any:
    """Return a leaf of dicts that can carry a token; on a plain dict lhotse's nodes lose it."""
    return LazyIndexedManifestIterator(path, decode=GraphOriginDict, **kwargs)


def graph(name: str, paths: list[str], seed: int) -> Any:
    """Return one graph of each name; tests/conformance/test_lhotse_graph.py has ours of the same."""
    first, second, third = paths
    makes = {
        "indexed": lambda: leaf(first),
        "indexed shuffled": lambda: leaf(first, shuffle=True, seed=seed),
        "chain": lambda: LazyIteratorChain(leaf(first), leaf(second), LazyIteratorChain(leaf(third))),
        "global shuffle": lambda: LazyIteratorChain(leaf(first), leaf(second), shuffle_iters=True, seed=seed),
        "mux": lambda: LazyIteratorMultiplexer(leaf(first), leaf(second), leaf(third), weights=[3, 1, 0.5], seed=seed),
        "mux stop early": lambda: LazyIteratorMultiplexer(leaf(first), leaf(second), seed=seed, stop_early=True),
        "map": lambda: LazyMapper(leaf(first), _negative),
        "filter": lambda: LazyFilter(leaf(first, shuffle=True, seed=seed), _is_even),
        "shuffle": lambda: LazyShuffler(leaf(first), 16, rng=random.Random(seed)),
        "small shuffle": lambda: LazyShuffler(leaf(first), 1000, rng=random.Random(seed)),
        "flatten": lambda: LazyFlattener(LazyMapper(leaf(first), _pieces)),
        "repeat": lambda: LazyRepeater(leaf(first), 3, preserve_id=True),
        "slice": lambda: LazySlicer(leaf(first, shuffle=True, seed=seed), 1, 4),
        "slice of filtered": lambda: LazySlicer(LazyFilter(leaf(first), _is_even), 1, 4),
        "nested": lambda: LazyShuffler(
            LazyIteratorMultiplexer(
                LazyFilter(LazyRepeater(leaf(first, shuffle=True, seed=seed), 1, preserve_id=True), _is_even),
                LazyIteratorChain(leaf(second), leaf(third)),
                seed=seed,
            ),
            10,
            rng=random.Random(seed),
        ),
    }
    return makes[name]()


def iterate(name: str, paths: list[str], seed: int, shard: int, shards: int) -> list[Any]:
    dataloading.get_worker_partition = lambda: (shard, shards)
    return [[get_graph_origin(item), item] for item in islice(graph(name, paths, seed), 500)]


def rebuild(name: str, paths: list[str], seed: int, tokens: list[Any]) -> list[Any]:
    made = graph(name, paths, seed)
    return [made[token] for token in tokens]


def shar(folder: str, shuffle: bool, seed: int, shard: int, shards: int) -> list[Any]:
    dataloading.get_worker_partition = lambda: (shard, shards)
    node = LazyIndexedSharIterator(in_dir=folder, shuffle=shuffle, seed=seed, split_for_dataloading=True)
    return [[get_graph_origin(cut), cut.id] for cut in node]


def pack(paths: list[str], output: str) -> str:
    """Pack the indexes of sources; return the key of the collection."""
    spec = IndexPackCollectionSpec("manifest", "json-lines", ["all", 1], tuple(paths))
    write_index_pack(output, [spec])
    return str(spec.key.hex())


def packed(path: str, key: str, shuffle: bool, seed: int) -> list[Any]:
    dataloading.get_worker_partition = lambda: (0, 1)
    node = LazyPackedManifestIterator(path, key, shuffle_shards=shuffle, seed=seed, decode=GraphOriginDict)
    return [[get_graph_origin(item), item] for item in node]


def _negative(record: Any) -> Any:
    return GraphOriginDict(n=-record["n"])


def _is_even(record: Any) -> bool:
    return bool(record["n"] % 2 == 0)


def _pieces(record: Any) -> list[Any]:
    return Pieces(GraphOriginDict(n=record["n"], piece=piece) for piece in range(record["n"] % 4))


def write(output: str, collections: list[dict[str, Any]], sizes: dict[str, int]) -> None:
    """Write a pack of sources, or of numbers where a collection has `shards`."""
    specs: list[Any] = []
    for number, collection in enumerate(collections):
        identity = collection["role"], collection["kind"], collection["source_spec"]
        if "shards" in collection:
            files = []
            for shard, values in enumerate(collection["shards"]):
                files.append(Path(f"{output}.{number}.{shard}.u32"))
                files[-1].write_bytes(np.array(values, "<u4").tobytes())
            specs.append(IndexPackArraySpec(*identity, tuple(files)))
        else:
            specs.append(IndexPackCollectionSpec(*identity, tuple(collection["sources"]), collection["offsets"]))
    write_index_pack(output, specs, source_size_overrides=sizes)


def read(path: str, layout: str, keys: list[str]) -> list[Any]:
    """Open a pack of a known layout, checks each segment, and return what each collection holds."""
    found = []
    with IndexPack(path, expected_layout_hash=layout) as pack:
        segments = set()
        for key in keys:
            collection = pack.collection(key)
            if collection.is_array:
                found.append([collection.value(number) for number in range(len(collection))])
                continue
            places = [collection.locate(number) for number in range(len(collection))]
            segments |= {place.segment_id for place in places}
            found.append([[str(place.path), place.start, place.end] for place in places])
        for segment in sorted(segments):
            pack.verify_segment(segment)
    return found


if __name__ == "__main__":
    works = (iterate, rebuild, shar, pack, packed, write, read)
    serve({work.__name__: work for work in works})
