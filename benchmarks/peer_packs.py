"""Readers of packed sequences of Megatron and Energon; runs in the peers' environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from megatron.core.datasets.gpt_dataset import GPTDataset  # type: ignore[import-not-found]
from megatron.core.datasets.helpers import build_sample_idx  # type: ignore[import-not-found]
from megatron.core.datasets.indexed_dataset import IndexedDataset  # type: ignore[import-not-found]
from megatron.energon.flavors.base_dataset import FlexState, SavableDataset  # type: ignore[import-not-found]
from megatron.energon.worker import WorkerConfig  # type: ignore[import-not-found]
from megatron.energon.wrappers.packing_dataset import PackingDataset  # type: ignore[import-not-found]

from benchmarks.serve import serve


def gpt(prefix: str, length: int, count: int) -> float:
    """Read sequences of a GPTDataset, which concatenates documents, in random order."""
    dataset = IndexedDataset(prefix, mmap=True)
    documents = np.arange(len(dataset), dtype=np.int32)
    tokens = int(dataset.sequence_lengths.sum())
    samples = build_sample_idx(dataset.sequence_lengths, documents, length, 1, tokens, True, False)
    order = np.random.default_rng(1).permutation(len(samples) - 1)
    config = SimpleNamespace(sequence_length=length, add_extra_token_to_sequence=0)
    reader: Any = SimpleNamespace(shuffle_index=order, sample_index=samples, document_index=documents, dataset=dataset)
    vars(reader).update(config=config, _pad_token_id=0)
    read = vars(GPTDataset)["_query_document_sample_shuffle_indices"]
    return _seconds(lambda: [read(reader, at) for at in range(count)])


class _Documents(SavableDataset):
    """The documents of a dataset, in order."""

    def __init__(self, prefix: str, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config=worker_config)
        self.dataset = IndexedDataset(prefix, mmap=True)

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self.dataset)):
            yield SimpleNamespace(tokens=self.dataset[number], __restore_key__=(number,))

    def len_worker(self, worker_idx: int | None = None) -> int:
        del worker_idx
        return len(self.dataset)

    def reset_state_own(self) -> None:
        return

    def worker_has_samples(self) -> bool:
        return True

    def config(self) -> dict[str, Any]:
        return {}

    def save_state(self) -> FlexState:
        return FlexState()

    def restore_state(self, state: FlexState) -> None:
        del state


def energon(prefix: str, length: int, count: int) -> float:
    """Pack documents while they are read: into the fullest pack with room, the longest of a buffer first."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)

    def select(samples: list[Any]) -> list[list[Any]]:
        packs: list[list[Any]] = []
        rooms: list[int] = []
        for sample in sorted(samples, key=lambda one: -len(one.tokens)):
            size = min(length, len(sample.tokens))
            fits = [number for number, room in enumerate(rooms) if room >= size]
            if fits:
                best = min(fits, key=rooms.__getitem__)
                packs[best].append(sample)
                rooms[best] -= size
            else:
                packs.append([sample])
                rooms.append(length - size)
        return packs

    def joined(samples: list[Any]) -> Any:
        found, place = np.zeros(length, np.int64), 0
        for sample in samples:
            part = sample.tokens[:length]
            found[place : place + len(part)] = part
            place += len(part)
        return SimpleNamespace(tokens=found, __restore_key__=())

    packed = PackingDataset(_Documents(prefix, config), 1_000, select, joined, worker_config=config)

    def read() -> None:
        with_config = iter(packed)
        for _ in range(count):
            next(with_config)

    config.worker_activate(0)
    try:
        return _seconds(read)
    finally:
        config.worker_deactivate()


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    serve({"gpt": gpt, "energon": energon})
