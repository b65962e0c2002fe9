"""All sides of the table of loaders, each in a separate process, in the peers' environment."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any

from benchmarks.loader_sources import Lines, Reordered, Rows, Samples, by_groups, canonical
from benchmarks.serve import serve

BATCH = 32
_MASK = (1 << 128) - 1

Loader = Callable[..., Any]


def ours(kind: str, files: list[str], workers: int) -> Any:
    """Return a pass of an iterator graph, by torch's loader."""
    nodes: Any = importlib.import_module("ledgerbeam.iterators")
    data: Any = importlib.import_module("ledgerbeam.iterators.torch_data")
    if kind == "megatron":
        reader: Any = importlib.import_module("ledgerbeam.io.datasets.megatron").MegatronReader
        graph = nodes.Records(reader(*files), shuffle=True)
    elif kind == "parquet":
        graph = nodes.IndexedParquet(files, shuffle="blocks")
    else:
        leaf = nodes.IndexedManifest if kind == "jsonl" else nodes.IndexedTar
        graph = leaf(*files[:2], shuffle=True)
    dataset = data.GraphDataset(nodes.Batches(graph, BATCH))
    return _torch_loader(dataset, workers, batch_size=None, collate_fn=_as_it_is)


def torch(kind: str, files: list[str], workers: int) -> Any:
    """Return a pass of a map-style dataset, by torch's loader."""
    source = _source(kind, files)
    order = by_groups(source.groups) if kind == "parquet" else None
    return _torch_loader(source, workers, batch_size=BATCH, sampler=order, shuffle=order is None, collate_fn=_as_it_is)


def grain(kind: str, files: list[str], workers: int) -> Any:
    """Return a pass of Grain over the same source."""
    library: Any = importlib.import_module("grain")
    source = _source(kind, files)
    if kind == "parquet":
        shuffled = library.MapDataset.source(Reordered(source, by_groups(source.groups)))
    else:
        shuffled = library.MapDataset.source(source).shuffle(seed=0)
    # In this thread: faster here than with Grain's threads, which take turns.
    reading = library.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = shuffled.batch(BATCH, batch_fn=list).to_iter_dataset(reading)
    return (
        batches.mp_prefetch(library.MultiprocessingOptions(workers, per_worker_buffer_size=2)) if workers else batches
    )


SIDES: dict[str, Loader] = {side.__name__: side for side in (ours, torch, grain)}


def seconds(side: str, kind: str, files: list[str], workers: int, samples: int) -> float:
    """Return the seconds per sample, measured after each worker has given a batch, so without the start of workers."""
    batches = iter(SIDES[side](kind, files, workers))
    for _ in range(max(1, workers)):
        next(batches)
    started, count = time.perf_counter(), 0
    for batch in islice(batches, samples // BATCH):
        count += len(batch)
    taken = (time.perf_counter() - started) / count
    _close(batches)
    return taken


def digest(side: str, kind: str, files: list[str], workers: int) -> tuple[int, str]:
    """Return the number of samples of a pass, and the sum of their digests, which is the same in any order."""
    count = total = 0
    batches = iter(SIDES[side](kind, files, workers))
    for sample in _samples(batches):
        found = blake2b(digest_size=16)
        for part in canonical(sample):
            found.update(part)
        total += int.from_bytes(found.digest())
        count += 1
    _close(batches)
    return count, f"{total & _MASK:032x}"


def _samples(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        if len(batch) > BATCH:
            raise RuntimeError(f"expected batches of at most {BATCH} samples, found one of {len(batch)}")
        yield from batch


def _close(batches: Any) -> None:
    """End the workers, which would otherwise slow the next measurement."""
    for name in ("close", "_shutdown_workers"):
        end = getattr(batches, name, None)
        if end is not None:
            end()


def _torch_loader(dataset: Any, workers: int, **options: Any) -> Any:
    loader: Any = importlib.import_module("torch.utils.data").DataLoader
    return loader(dataset, num_workers=workers, multiprocessing_context="fork" if workers else None, **options)


def _source(kind: str, files: list[str]) -> Any:
    if kind == "jsonl":
        return Lines(*files)
    if kind == "tar":
        return Samples(files[0], files[2])
    if kind == "parquet":
        return Rows(*files)
    return importlib.import_module("megatron.core.datasets.indexed_dataset").IndexedDataset(*files)


def _as_it_is(batch: Any) -> Any:
    """Return a batch as it is, a list: all loaders leave the conversion to tensors to the training."""
    return batch


if __name__ == "__main__":
    serve({work.__name__: work for work in (seconds, digest)})
