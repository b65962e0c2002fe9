"""Energon's side of the conformance tests; runs in the peers' environment."""

from __future__ import annotations

import hashlib

from megatron.energon import (  # type: ignore[import-not-found]
    Cooker,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_val_dataset,
    stateless,
)
from megatron.energon.epathlib import EPath  # type: ignore[import-not-found]
from megatron.energon.flavors.webdataset.config import (  # type: ignore[import-not-found]
    skip_meta_re,
    split_name_re,
)
from megatron.energon.flavors.webdataset.itar import TarIndexReader  # type: ignore[import-not-found]
from megatron.energon.flavors.webdataset.itar_reader import SqliteITarEntryReader  # type: ignore[import-not-found]
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator  # type: ignore[import-not-found]

from benchmarks.serve import serve


def prepare(folder: str, shards: list[str]) -> None:
    """Index shards: each gets a `.tar.idx` beside it."""
    WebdatasetPreparator.prepare_dataset(
        folder, shards, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )


def offsets(path: str) -> list[int]:
    reader = TarIndexReader(EPath(path))
    try:
        return [reader[number] for number in range(len(reader))]
    finally:
        reader.close()


def train(folder: str) -> list[tuple[str, str, int]]:
    """Read the part `train` in order, by way of `dataset.yaml`: key, digest of `bin`, and `cls` decoded."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(folder, split_part="train", worker_config=config, batch_size=None, task_encoder=_Raw())
    samples = get_loader(dataset)
    return [(sample["__key__"], hashlib.sha256(sample["bin"]).hexdigest(), sample["cls"]) for sample in samples]


class _Raw(TaskEncoder):
    """Samples as they are."""

    cookers = [Cooker(stateless(lambda sample: sample))]  # noqa: RUF012 - as Energon has it


def look_up(folder: str, keys: list[str]) -> list[dict[str, str]]:
    """Read samples by key through `index.sqlite`: the digest of each member."""
    reader = SqliteITarEntryReader(EPath(folder))
    found = []
    for key in keys:
        sample = reader[key]
        members = {name: data for name, data in sample.items() if not name.startswith("__")}
        found.append({name: hashlib.sha256(data).hexdigest() for name, data in members.items()})
    return found


def split(names: list[str]) -> list[tuple[str, str] | None]:
    """Part names into key and extension; None for those that belong to no sample."""
    matches = [None if skip_meta_re.match(name) else split_name_re.match(name) for name in names]
    return [None if match is None else match.groups() for match in matches]


if __name__ == "__main__":
    works = (prepare, offsets, train, look_up, split)
    serve({work.__name__: work for work in works})
