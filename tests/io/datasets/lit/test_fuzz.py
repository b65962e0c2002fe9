"""Damaged LIT datasets give typed errors: `python -m tests.io.datasets.lit.test_fuzz INPUTS [SEED]` for a long run."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.lit import LitDataset, LitWriter, decode_rle
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main

INPUTS = 400
MOST_BYTES = 20_000_000
"""Far more than the files have, and far less than what their numbers can claim."""


def dataset_trial(folder: Path) -> Trial:
    with LitWriter(str(folder), max_samples=2) as writer:
        for number in range(3):
            labels = np.full((2, 3), number, np.uint8)
            writer.write(
                {"__key__": f"k{number}", "a.npy": labels, "b.rle": labels, "c.seg8": labels, "d.json": [number]}
            )
    contents = {name: (folder / name).read_bytes() for name in ("config.json", "train.idx.json")}
    for name in ("train_0000.tar", "train_0001.tar"):
        contents[name] = (folder / name).read_bytes().rstrip(b"\0") + bytes(1024)
    files = Files(folder, contents, {})

    def trial(chance: random.Random) -> str:
        files.damage(chance)
        try:
            list(LitDataset(str(folder), decoders={"b.rle": lambda data: decode_rle(data, 10_000)}))
        except UsageError:  # a modality has another name now, which needs another decoder
            return "no such codec"
        return "read"

    return trial


def test_damaged_datasets_give_typed_errors_and_take_little_memory(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(dataset_trial(tmp_path), INPUTS, most=MOST_BYTES, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > INPUTS / 10
    assert min(outcomes["RecordError"], outcomes["SourceError"], outcomes["read"]) > 10


if __name__ == "__main__":
    main(dataset_trial)
