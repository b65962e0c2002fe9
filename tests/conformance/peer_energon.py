"""Energon's side of the conformance tests; runs in the peers' environment."""

from __future__ import annotations

from megatron.energon.epathlib import EPath  # type: ignore[import-not-found]
from megatron.energon.flavors.webdataset.config import (  # type: ignore[import-not-found]
    skip_meta_re,
    split_name_re,
)
from megatron.energon.flavors.webdataset.itar import TarIndexReader  # type: ignore[import-not-found]
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator  # type: ignore[import-not-found]

from benchmarks.serve import serve


def prepare(folder: str, shards: list[str]) -> None:
    """Indexes shards: each gets a `.tar.idx` beside it."""
    WebdatasetPreparator.prepare_dataset(folder, shards, split_parts_ratio=[("train", 1.0)], workers=1)


def offsets(path: str) -> list[int]:
    """Reads the index beside a shard with Energon's own reader."""
    reader = TarIndexReader(EPath(path))
    try:
        return [reader[number] for number in range(len(reader))]
    finally:
        reader.close()


def split(names: list[str]) -> list[tuple[str, str] | None]:
    """Parts names into key and extension; None for those that belong to no sample."""
    matches = [None if skip_meta_re.match(name) else split_name_re.match(name) for name in names]
    return [None if match is None else match.groups() for match in matches]


if __name__ == "__main__":
    serve({"prepare": prepare, "offsets": offsets, "split": split})
