"""Damaged metadata gives typed errors that name it: `python -m tests.io.wds.test_fuzz INPUTS [SEED]` for a long run."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from ledgerbeam.io.wds import DaliReader, open_energon, open_wids, write_dali_index, write_energon, write_wids_index
from tests.io.damage import run
from tests.io.fuzzing import limit_memory
from tests.io.wds.content import plain_samples, write_shards

INPUTS = 400


def damage_metadata(folder: Path, inputs: int, seed: int) -> Counter[str]:
    shards = write_shards(folder, plain_samples(12), 5, md5=True)
    write_wids_index(f"{folder}/index.json", shards)
    write_energon(str(folder), shards, sample_table=False)
    write_dali_index(f"{folder}/part-000.tar")

    def read_all() -> None:
        open_wids(f"{folder}/index.json")[:]
        open_energon(str(folder))[:]
        DaliReader(f"{folder}/part-000.tar")[:]

    names = ["index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml", "part-000.idx", "part-001.tar.idx"]
    return run({folder / name: (folder / name).read_bytes() for name in names}, read_all, inputs, seed)


def test_damaged_metadata_gives_typed_errors(tmp_path: Path) -> None:
    outcomes = damage_metadata(tmp_path, INPUTS, 1)
    assert min(outcomes["SourceError"], outcomes["IndexMismatchError"]) > INPUTS / 10
    assert outcomes["read"] > 5  # an undamaged meaning


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        limit_memory()
        print(damage_metadata(Path(place), int(sys.argv[1]), int([*sys.argv, "1"][2])))
