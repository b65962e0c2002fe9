"""Graphs and LIT datasets in torch's loaders: in the main process and in workers, forked, spawned or persistent."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import ROOT, Peer, peer_python
from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.megatron.packs import FIELDS
from ledgerbeam.iterators import Packed
from ledgerbeam.iterators.torch_data import GraphDataset
from ledgerbeam.transforms.mapping.pack import PackDocuments
from tests.io.datasets.lit.test_dataset import write
from tests.iterators.data import in_blocks, numbers, write_documents, write_lines, write_packs

PACKED = [n for n in (*range(60), *range(1000, 1035)) if n % 5]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [write_lines(tmp_path / "a.jsonl", 60), write_lines(tmp_path / "b.jsonl", 35, 1000)]


def flat(batches: list[list[Any]]) -> list[Any]:
    return sorted(number for batch in batches for number in batch)


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("main", list(range(1, 20))),
        ("fork", [1, 2, 9, 20]),
        ("persistent", [1, 9]),
        pytest.param("spawn", [5], marks=pytest.mark.slow),
    ],
)
def test_a_stateful_loader_goes_on_with_the_batches_that_were_to_come(
    torch: Peer, paths: list[str], mode: str, steps: list[int]
) -> None:
    for expected, found in torch.ask("restored", paths=paths, mode=mode, steps=steps):
        assert found == expected


@pytest.mark.parametrize("mode", ["main", "fork", "persistent"])
def test_every_pass_of_a_loader_has_each_item_once_and_an_order_of_its_own(
    torch: Peer, paths: list[str], mode: str
) -> None:
    passes = torch.ask("passes", paths=paths, mode=mode, count=3)
    assert [flat(batches) for batches in passes] == [sorted(PACKED)] * 3
    assert len({str(batches) for batches in passes}) == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ranks": 2, "mode": "fork"}, {"new_ranks": 3, "new_mode": "main"}),
        ({"ranks": 1, "mode": "main"}, {"new_ranks": 2, "new_mode": "fork"}),
        ({"ranks": 3, "mode": "main"}, {"new_ranks": 1, "new_mode": "main"}),
    ],
)
def test_other_ranks_and_workers_go_on_with_exactly_the_rest(
    torch: Peer, paths: list[str], before: dict[str, Any], after: dict[str, Any]
) -> None:
    given = torch.ask("elastic", paths=paths, steps=3, **before, **after)
    assert flat(given) == sorted(PACKED)


@pytest.mark.parametrize(("mode", "ranks"), [("main", 1), ("fork", 1), ("main", 3)])
def test_a_loader_has_the_length_of_its_part_of_the_graph(torch: Peer, paths: list[str], mode: str, ranks: int) -> None:
    found = torch.ask("lengths", paths=paths, mode=mode, ranks=ranks)
    assert all(length == count for length, count in found)
    assert sum(length for length, _ in found) == 95


@pytest.mark.parametrize("mode", ["main", "fork"])
def test_batches_of_packs_are_tensors_and_other_ranks_read_the_rest(torch: Peer, tmp_path: Path, mode: str) -> None:
    prefix = write_documents(tmp_path / "d", [1 + n * 7 % 40 for n in range(60)])
    folder = write_packs(tmp_path / "packs", [prefix], PackDocuments(32))
    found = torch.ask("packs", folder=folder, mode=mode, steps=2)
    assert sorted(found["rows"]) == sorted(pack["tokens"].tolist() for pack in Packed(folder))
    integers = {"cu_seqlens": "int32", "positions": "int32", "segments": "int32", "starts": "int32"}
    dtypes = {name: integers.get(name, "int64") for name in FIELDS}
    assert found["types"] == sorted(f"{name} Tensor torch.{dtype}" for name, dtype in dtypes.items())


@pytest.mark.slow
def test_a_training_on_four_ranks_continues_on_three_with_the_losses_of_an_undisturbed_one(
    torch: Peer, tmp_path: Path
) -> None:
    """`examples/train_packs.py`, with packs that are written here."""
    del torch  # it says whether torch is there
    losses = []
    for name, runs in (("elastic", [(4, 4), (3, 8)]), ("undisturbed", [(1, 8)])):
        folder = tmp_path / name
        folder.mkdir()
        for source, count in (("code", 400), ("prose", 300)):
            prefix = write_documents(folder / source, [5 + n * 7 % 80 for n in range(count)], dtype="uint8")
            write_packs(folder / f"{source}-packs", [prefix], PackDocuments(128))
        for ranks, steps in runs:
            words = ("examples/train_packs.py", str(folder), "--ranks", str(ranks), "--steps", str(steps))
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run([str(peer_python()), *words], cwd=ROOT, env=env, check=True)
        losses.append((folder / "losses.txt").read_text())
    assert losses[0] == losses[1]
    assert len(losses[0].splitlines()) == 8


def test_a_graph_without_a_length_has_none_in_a_loader(torch: Peer, paths: list[str]) -> None:
    assert not torch.ask("has_length", paths=paths)


def test_a_sampler_of_torch_chooses_the_places_of_a_sequence(torch: Peer, paths: list[str]) -> None:
    assert flat(torch.ask("sampled", paths=paths, batch_size=8)) == [*range(60), *range(1000, 1035)]


def test_without_torch_the_dataset_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"\[torch\]'"):
        GraphDataset(numbers(3))


def test_a_pass_by_blocks_has_the_same_order_with_any_number_of_workers(torch: Peer) -> None:
    blocks = [30, 4, 0, 17, 30, 30, 9, 25]
    alone = torch.ask("in_blocks", blocks=blocks, window=4, workers=0)
    assert alone == list(in_blocks(blocks))
    for workers in (1, 2, 3, 4):
        assert torch.ask("in_blocks", blocks=blocks, window=4, workers=workers) == alone


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (2, "spawn")])
def test_a_dataset_is_a_map_style_dataset_of_torch(
    torch_loader: Peer, tmp_path: Path, workers: int, start: str | None
) -> None:
    given = [sample for sample in write(tmp_path / "set", 30) if "scene.cls" in sample]
    expected = [
        [[sample["scene.cls"] for sample in batch], [int(sample["instance.seg8"].sum()) for sample in batch]]
        for batch in (given[first : first + 4] for first in range(0, len(given), 4))
    ]
    packages = sysconfig.get_path("purelib")
    found = torch_loader.ask("load", root=f"{tmp_path}/set", packages=packages, workers=workers, start=start)
    assert found == expected
