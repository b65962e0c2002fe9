"""Clustering of generated pairs, without a job: from forests for ledgerbeam, from its own files for datatrove.

`python -m benchmarks.near_clusters FORESTS OUT` finds the documents to remove, and writes them as the stage does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ledgerbeam import stats
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.exchange.forest import Forest, file_nodes, join_forests, span
from ledgerbeam.transforms.dedup.duplicates import FindClusters, HashEncoder, Trees

FILES = 64
"""Number of files of the documents."""

PARTS = 16
"""Number of parts of the buckets of hashes. Each part becomes a forest."""

COPIED = 0.2
"""Share of documents that are copies of an earlier one."""

FOUND = 0.7
"""Share of the bands that are equal in a document and its copy."""

_CUTS = [bytes([first, *bytes(15)]) for first in range(4, 256, 4)]

Pairs = NDArray[np.int64]


def made_pairs(documents: int, bands: int) -> Iterator[Pairs]:
    """Yield, for each band, the pairs of documents that share it, as rows of a document and its copy."""
    chance = np.random.default_rng(5)
    copies = np.flatnonzero(chance.random(documents) < COPIED)[1:]
    pairs = np.stack([(chance.random(len(copies)) * copies).astype(np.int64), copies], axis=1)
    for _ in range(bands):
        yield pairs[chance.random(len(pairs)) < FOUND]


def write_theirs(folder: Path, documents: int, bands: int) -> int:
    """Write the pairs for datatrove, as numbers of files and of documents in them. Return the number of pairs."""
    folder.mkdir(parents=True)
    each, count = -(-documents // FILES), 0
    for band, pairs in enumerate(made_pairs(documents, bands)):
        rows = np.stack([pairs[:, 0] // each, pairs[:, 0] % each, pairs[:, 1] // each, pairs[:, 1] % each], axis=1)
        rows.astype("<u4").tofile(folder / f"{band:05d}_00.dups")
        count += len(pairs)
    return count


def write_ours(folder: Path, documents: int, bands: int) -> None:
    """Write the same pairs as forests, one for each part of the buckets, as the previous stage does."""
    folder.mkdir(parents=True)
    each = -(-documents // FILES)
    chance = np.random.default_rng(6)
    parts: list[list[Pairs]] = [[] for _ in range(PARTS)]
    for pairs in made_pairs(documents, bands):
        part = chance.integers(0, PARTS, len(pairs))
        for number, held in enumerate(parts):
            held.append(pairs[part == number])
    for number, held in enumerate(parts):
        found = np.concatenate(held)
        ends = found.T.ravel()
        urls = [b"/data/%05d.jsonl" % file for file in range(FILES)]
        names, nodes = file_nodes(urls, ends // each, (ends % each).astype(np.uint64))
        forest = span(names, nodes, np.arange(len(found)), np.arange(len(found), len(ends)))
        (folder / f"{number:03d}").write_bytes(forest.encode())


def cluster(forests: str, out: str) -> None:
    """Write the documents to remove, from the forests in a folder."""
    forest = join_forests(Forest.decode(path.read_bytes()) for path in sorted(Path(forests).iterdir()))
    if forest is None:
        raise ValueError(f"{forests}: no pairs")
    with stats.collecting():
        trees = Trees.whole(forest)
        gone = FindClusters(lambda _: trees).found(cast(Any, None))
    if gone is None:
        raise ValueError(f"{forests}: no documents to remove")
    (run,) = HashEncoder(_CUTS).encode(gone)
    publish_bytes(f"{out}/gone{run.ending}", run.data)
    print(len(gone))


if __name__ == "__main__":
    cluster(*sys.argv[1:])
