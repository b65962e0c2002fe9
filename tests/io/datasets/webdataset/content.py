"""Samples for the tests of WebDataset."""

from __future__ import annotations

import random
from pathlib import Path

from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import Shard, ShardWriter


def samples(count: int, seed: int = 1) -> list[Sample]:
    """Samples of one to three members; some names need a pax header."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        extensions = chance.sample(["jpg", "seg.png", "json"], chance.randint(1, 3))
        folder = "ü" * 60 + "/" if number % 7 == 6 else "d/"
        found.append(
            Sample(f"{folder}{number:05d}", {name: chance.randbytes(chance.randrange(900)) for name in extensions})
        )
    return found


def plain_samples(count: int) -> list[Sample]:
    """Samples whose names every peer can read."""
    return [
        Sample(f"s{number:05d}", {"bin": bytes([number % 256]) * number, "cls": b"%d" % number})
        for number in range(count)
    ]


def write_shards(folder: Path, given: list[Sample], size: int = 10, *, md5: bool = False) -> list[Shard]:
    """Write samples to `folder/part-%03d.tar`, so many in each."""
    with ShardWriter(f"{folder}/part-%03d.tar", max_samples=size, md5=md5) as writer:
        for sample in given:
            writer.write(sample)
    return writer.shards


def plain(found: list[Sample]) -> list[tuple[str, dict[str, bytes]]]:
    """Samples with their keys, to be compared."""
    return [(sample.key, dict(sample)) for sample in found]
