"""LIT datasets under torch's loaders. The published package is not on PyPI: tests/io/datasets/lit has golden files."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from benchmarks.peer import Peer
from tests.io.datasets.lit.content import write


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
