"""Damaged LIT datasets give typed errors: `python -m tests.io.lit.test_fuzz INPUTS [SEED]` for a long run."""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ledgerbeam.io.lit import LitDataset, LitWriter
from tests.io.damage import run
from tests.io.fuzzing import limit_memory

INPUTS = 400
MOST_BYTES = 20_000_000
"""Far more than the files have, and far less than what their numbers can claim."""


def damage_dataset(folder: Path, inputs: int, seed: int) -> Counter[str]:
    with LitWriter(str(folder), max_samples=2) as writer:
        for number in range(3):
            labels = np.full((2, 3), number, np.uint8)
            writer.write(
                {"__key__": f"k{number}", "a.npy": labels, "b.rle": labels, "c.seg8": labels, "d.json": [number]}
            )
    names = ["config.json", "train.idx.json", "train_0000.tar", "train_0001.tar"]
    files = {folder / name: (folder / name).read_bytes().rstrip(b"\0") + bytes(1024) for name in names[2:]}
    files |= {folder / name: (folder / name).read_bytes() for name in names[:2]}
    for path, content in files.items():
        path.write_bytes(content)
    return run(files, lambda: list(LitDataset(str(folder), decoders={"b.rle": _few_values})), inputs, seed)


def _few_values(data: bytes) -> object:
    from ledgerbeam.io.lit import decode_rle

    return decode_rle(data, 10_000)


def test_damaged_datasets_give_typed_errors_and_take_little_memory(tmp_path: Path) -> None:
    damage_dataset(tmp_path, 30, 2)  # imports and caches
    tracemalloc.start()
    try:
        outcomes = damage_dataset(tmp_path, INPUTS, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert outcomes["IndexMismatchError"] > INPUTS / 10
    assert min(outcomes["RecordError"], outcomes["SourceError"], outcomes["read"]) > 10


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        limit_memory()
        print(damage_dataset(Path(place), int(sys.argv[1]), int([*sys.argv, "1"][2])))
