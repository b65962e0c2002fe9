"""lhotse's samplers over our graphs: the same batches as over its own manifests, restored exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peer import Peer
from tests.conformance.conftest import start

COUNT = 150


@pytest.fixture(scope="module")
def samplers() -> Iterator[Peer]:
    yield from start("peer_lhotse_sampler")


@pytest.fixture
def paths(samplers: Peer, tmp_path: Path) -> list[str]:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    samplers.ask("write", paths=names, count=COUNT)
    return names


@pytest.mark.parametrize("kind", ["buckets", "cuts"])
@pytest.mark.parametrize(
    ("name", "bins"), [(name, bins) for name in ("plain", "shuffled", "global", "mux") for bins in (True, False)]
)
def test_batches_are_those_over_lhotses_own_manifest(
    samplers: Peer, paths: list[str], name: str, bins: bool, kind: str
) -> None:
    (ours,) = samplers.ask("batches", name=name, paths=paths, kind=kind, bins=bins, epochs=1)
    (theirs,) = samplers.ask("their_batches", name=name, paths=paths, kind=kind, bins=bins)
    assert len(ours) > 20
    assert ours == theirs
    assert sum(map(len, ours)) == COUNT * (1 if name in ("plain", "shuffled") else 2)


def test_each_epoch_is_another_order(samplers: Peer, paths: list[str]) -> None:
    """In lhotse's own manifest it is the same in each; the sampler's own buffer is shuffled there alone."""
    first, second, third = samplers.ask("batches", name="global", paths=paths, kind="buckets", bins=True, epochs=3)
    assert first != second != third != first
    for found in (first, second, third):
        assert len({cut for batch in found for cut in batch}) == 2 * COUNT


@pytest.mark.parametrize("kind", ["buckets", "cuts"])
@pytest.mark.parametrize("name", ["plain", "shuffled", "global", "mux", "deep"])
def test_a_sampler_is_restored_exactly(samplers: Peer, paths: list[str], name: str, kind: str) -> None:
    found = samplers.ask("restored", name=name, paths=paths, kind=kind, steps=[1, 5, 20])
    assert len(found) == 3
    for expected, came, passed in found:
        assert came == expected
        assert passed <= sum(map(len, came))  # nothing was replayed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["global", "deep"])
def test_a_loader_is_restored_exactly(samplers: Peer, paths: list[str], name: str, workers: int) -> None:
    whole, *found = samplers.ask("loaded", name=name, paths=paths, workers=workers, steps=[1, 9])
    assert len(found) == 2
    for expected, came in found:
        assert came == expected
    times = 3 if name == "deep" else 1
    assert set(Counter(cut for batch in whole for cut in batch).values()) == {times}  # no worker reads another's


def test_ranks_and_workers_share_the_cuts(samplers: Peer, paths: list[str]) -> None:
    parts = [samplers.ask("loaded", name="global", paths=paths, workers=2, steps=[4], rank=rank) for rank in (0, 1)]
    for _, (expected, came) in parts:
        assert came == expected
    seen = Counter(cut for whole, _ in parts for batch in whole for cut in batch)
    assert len(seen) == 2 * COUNT
    assert set(seen.values()) == {1}


def test_lhotses_nodes_above_a_source_rebuild_what_they_gave(samplers: Peer, paths: list[str]) -> None:
    given, again = samplers.ask("composed", paths=paths)
    assert len(given) == 40
    assert again == given


def test_cuts_of_a_shar_folder_have_their_payloads(samplers: Peer, lhotse: Peer, tmp_path: Path) -> None:
    folder = str(tmp_path / "shar")
    lhotse.ask("write_shar", folder=folder, ids=[f"cut-{number}" for number in range(9)], shard_size=4)
    for path in sorted(Path(folder).iterdir()):
        kind = "tar" if path.suffix == ".tar" else "jsonl"
        lhotse.ask("index", kind=kind, files=[[str(path), f"{path}.idx"]])
    assert samplers.ask("shar", folder=folder) == lhotse.ask("read_shar", folder=folder, index=None)


def test_what_is_no_cut_or_no_state_is_refused(samplers: Peer, paths: list[str]) -> None:
    no_cut, no_record, other, part = samplers.ask("refused", path=paths[0])
    assert no_cut.startswith("UsageError: CutSource: expected records of cuts with a type such as MonoCut")
    assert no_record.startswith("UsageError: ")
    assert other.startswith("CheckpointMismatchError: ")
    assert part.startswith("CheckpointError: CutSource: the state has no 'ended'")
    assert samplers.ask("in_json", path=paths[0]) is True
