"""Damaged metadata of shards: `python -m tests.io.datasets.webdataset.test_fuzz INPUTS [SEED]` for a long run."""

from __future__ import annotations

import random
from pathlib import Path

from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.webdataset import (
    DaliReader,
    open_energon,
    open_wids,
    write_dali_index,
    write_energon,
    write_wids_index,
)
from tests.io.datasets.webdataset.content import plain_samples, write_shards
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main

INPUTS = 400
NAMES = ["index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml", "part-000.idx", "part-001.tar.idx"]


def metadata_trial(folder: Path) -> Trial:
    shards = write_shards(folder, plain_samples(12), 5, md5=True)
    write_wids_index(f"{folder}/index.json", shards)
    write_energon(str(folder), shards, sample_table=False)
    write_dali_index(f"{folder}/part-000.tar")
    contents = {name: (folder / name).read_bytes() for name in NAMES}
    files = Files(folder, contents, {"part-001.tar.idx": range(0, len(contents["part-001.tar.idx"]), 8)})

    def trial(chance: random.Random) -> str:
        name, _ = files.damage(chance)
        match name:
            case "index.json":
                open_wids(f"{folder}/index.json")[:]
            case "part-000.idx":
                DaliReader(f"{folder}/part-000.tar")[:]
            case _:
                try:
                    open_energon(str(folder))[:]
                except UsageError:  # the part asked for has another name now
                    return "no such part"
        return "read"

    return trial


def test_damaged_metadata_gives_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(metadata_trial(tmp_path), INPUTS, name=str(tmp_path))
    assert min(outcomes["SourceError"], outcomes["IndexMismatchError"]) > INPUTS / 10
    assert outcomes["read"] > 5  # an undamaged meaning


if __name__ == "__main__":
    main(metadata_trial)
