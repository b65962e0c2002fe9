"""A dataset that the published package wrote (litdata 0.1 of the University of Oslo, NumPy 2, Pillow 12)."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.io.datasets.lit import CODECS, LitDataset, write_lit_index

ARCHIVE = Path(__file__).resolve().parents[3] / "golden" / "lit-published.tar.gz"
MODALITIES = (
    "scene.cls",
    "semantic.seg16",
    "mask.rle",
    "labels.seg24",
    "deep.seg32",
    "flat.seg8",
    "info.json",
    "a.npy",
)


def expected(number: int) -> list[Any]:
    return [
        number,
        np.full((2, 3), number * 1000, np.uint16),
        np.array([[0, 0, 7], [-2, -2, -2]], np.int16) * number,
        np.full((2, 2), 70000 + number, np.uint32),
        np.full((2, 2), 2**31 + number, np.uint32),
        np.full((2, 2), number, np.uint8),
        {"n": number},
        np.arange(number + 1),
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):  # Python 3.11.2 has no filters to extract with
            path = tmp_path / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(archive.extractfile(member), file)  # type: ignore[arg-type]
            os.utime(path, (member.mtime, member.mtime))
    return tmp_path / "published"


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(("fold", "numbers"), [("train", [0, 1, 2, 3]), ("val", [4])])
def test_a_published_dataset_is_read(root: Path, fold: str, numbers: list[int], indexed: bool) -> None:
    if not indexed:
        (root / f"{fold}.idx.json").unlink()
    dataset = LitDataset(str(root), fold, MODALITIES)
    assert dataset.metadata == {"classes": 3, "num_train": 4, "num_val": 1}
    for number, item in zip(numbers, dataset, strict=True):
        for found, value in zip(item, expected(number), strict=True):
            np.testing.assert_array_equal(found, value)
            assert getattr(found, "dtype", None) == getattr(value, "dtype", None)
    assert len(LitDataset(str(root), decoders={"state.pkl": "PKL"})) == 1


@pytest.mark.parametrize("fold", ["train", "val"])
def test_our_index_says_what_the_published_one_says(root: Path, fold: str) -> None:
    path = root / f"{fold}.idx.json"
    published = json.loads(path.read_bytes())
    write_lit_index(str(root), fold)
    assert json.loads(path.read_bytes()) == published


def test_members_that_need_no_compression_are_the_same_bytes(root: Path) -> None:
    with tarfile.open(root / "train_0001.tar") as shard:
        for modality, value in zip(MODALITIES, expected(3), strict=True):
            name = modality.rpartition(".")[2]
            if not name.startswith("seg"):  # a PNG's bytes are zlib's choice
                found: Any = shard.extractfile(f"k3.{modality}")
                assert found.read() == CODECS[name.upper()].encode(value, name), modality
