"""Our nodes beside lhotse's: the same tokens, orders and parts for the same seeds; and its samplers over our graphs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import Peer
from ledgerbeam.io.idxpack.reader import IndexPack, collection_key
from ledgerbeam.iterators import (
    Chain,
    Filter,
    Flatten,
    GlobalShuffle,
    IndexedManifest,
    IndexedShar,
    IteratorNode,
    Map,
    Mux,
    PackedManifest,
    Repeat,
    Shuffle,
    Slice,
)
from tests.iterators.data import write_lines

leaf = IndexedManifest


def negative(record: dict[str, int]) -> dict[str, int]:
    return {"n": -record["n"]}


def is_even(record: dict[str, int]) -> bool:
    return record["n"] % 2 == 0


def pieces(record: dict[str, int]) -> list[dict[str, int]]:
    return [{"n": record["n"], "piece": piece} for piece in range(record["n"] % 4)]


GRAPHS: dict[str, Callable[[str, str, str, int], IteratorNode]] = {
    "indexed": lambda a, b, c, seed: leaf(a),
    "indexed shuffled": lambda a, b, c, seed: leaf(a, shuffle=True, seed=seed),
    "chain": lambda a, b, c, seed: Chain(leaf(a), leaf(b), Chain(leaf(c))),
    "global shuffle": lambda a, b, c, seed: GlobalShuffle(leaf(a), leaf(b), seed=seed),
    "mux": lambda a, b, c, seed: Mux(leaf(a), leaf(b), leaf(c), weights=[3, 1, 0.5], seed=seed),
    "mux stop early": lambda a, b, c, seed: Mux(leaf(a), leaf(b), seed=seed, stop_early=True),
    "map": lambda a, b, c, seed: Map(leaf(a), negative),
    "filter": lambda a, b, c, seed: Filter(leaf(a, shuffle=True, seed=seed), is_even),
    "shuffle": lambda a, b, c, seed: Shuffle(leaf(a), 16, seed=seed),
    "small shuffle": lambda a, b, c, seed: Shuffle(leaf(a), 1000, seed=seed),
    "flatten": lambda a, b, c, seed: Flatten(Map(leaf(a), pieces)),
    "repeat": lambda a, b, c, seed: Repeat(leaf(a), 3),
    "slice": lambda a, b, c, seed: Slice(leaf(a, shuffle=True, seed=seed), 1, 4),
    "slice of filtered": lambda a, b, c, seed: Slice(Filter(leaf(a), is_even), 1, 4),
    "nested": lambda a, b, c, seed: Shuffle(
        Mux(Filter(Repeat(leaf(a, shuffle=True, seed=seed), 1), is_even), Chain(leaf(b), leaf(c)), seed=seed),
        10,
        seed=seed,
    ),
}
STRIDED = {
    "indexed",
    "indexed shuffled",
    "global shuffle",
    "mux",
    "mux stop early",
    "map",
    "filter",
    "shuffle",
    "repeat",
}
"""lhotse divides a chain within each of its sources, and a slice by counting in each shard; we do neither."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("lines")
    counts = {"a": 61, "b": 24, "c": 9}
    return [write_lines(folder / f"{name}.jsonl", count, 1000 * n) for n, (name, count) in enumerate(counts.items())]


def iterate(name: str, paths: list[str], seed: int, shard: int = 0, shards: int = 1) -> list[Any]:
    first, second, third = paths
    graph = GRAPHS[name](first, second, third, seed)
    graph.partition(shard, shards)
    graph.begin(0)
    found: list[Any] = json.loads(json.dumps(list(graph.pairs())))
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_tokens_and_orders_are_lhotses(nodes: Peer, paths: list[str], name: str) -> None:
    for seed in (0, 7, 123456):
        assert iterate(name, paths, seed) == nodes.ask("iterate", name=name, paths=paths, seed=seed, shard=0, shards=1)


@pytest.mark.parametrize("name", sorted(STRIDED))
def test_the_partition_is_lhotses(nodes: Peer, paths: list[str], name: str) -> None:
    for shard in range(3):
        theirs = nodes.ask("iterate", name=name, paths=paths, seed=5, shard=shard, shards=3)
        assert iterate(name, paths, 5, shard, 3) == theirs


@pytest.mark.parametrize("name", GRAPHS)
def test_lhotse_rebuilds_from_our_tokens_the_items_that_we_gave(nodes: Peer, paths: list[str], name: str) -> None:
    ours = iterate(name, paths, 7)
    tokens = [token for token, _ in ours]
    assert nodes.ask("rebuild", name=name, paths=paths, seed=7, tokens=tokens) == [item for _, item in ours]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_shar_folder_that_lhotse_wrote_is_read_in_its_orders(
    lhotse: Peer, nodes: Peer, tmp_path: Path, shuffle: bool
) -> None:
    folder, ids = str(tmp_path / "shar"), [f"cut-{number:03d}" for number in range(25)]
    lhotse.ask("write_shar", folder=folder, ids=ids, shard_size=10)
    for kind in ("jsonl", "tar"):
        files = [[str(path), f"{path}.idx"] for path in Path(folder).glob(f"*.{kind}")]
        assert lhotse.ask("index", kind=kind, files=files) == [None] * len(files)
    described = {cut["id"]: cut for cut in lhotse.ask("read_shar", folder=folder, index=folder)}
    for shard, shards in ((0, 1), (1, 3)):
        graph = IndexedShar(folder, shuffle=shuffle, seed=5)
        graph.partition(shard, shards)
        graph.begin(0)
        pairs = json.loads(json.dumps([(token, cut["id"]) for token, cut in graph.pairs()]))
        assert pairs == nodes.ask("shar", folder=folder, shuffle=shuffle, seed=5, shard=shard, shards=shards)
    cuts = list(IndexedShar(folder, shuffle=shuffle))
    assert sorted(cut["id"] for cut in cuts) == ids
    for cut in cuts:
        theirs = described[cut["id"]]
        assert cut["recording"]["wav"].startswith(b"RIFF")
        assert cut["supervisions"][0]["text"] == theirs["texts"][0]
        assert cut.get("label") == theirs["label"]
        assert ("embedding" in cut) == (theirs["embedding"] is not None)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_pack_that_lhotse_wrote_is_read_in_its_orders(
    nodes: Peer, paths: list[str], tmp_path: Path, shuffle: bool
) -> None:
    pack = str(tmp_path / "a.idxpack")
    key = nodes.ask("pack", paths=paths, output=pack)
    assert key == collection_key("manifest", "json-lines", ("all", 1)).hex()
    IndexPack(pack).verify()
    graph = PackedManifest(pack, key, shuffle=shuffle, seed=5)
    graph.begin(0)
    assert json.loads(json.dumps(list(graph.pairs()))) == nodes.ask(
        "packed", path=pack, key=key, shuffle=shuffle, seed=5
    )


COUNT = 150


@pytest.fixture
def manifests(samplers: Peer, tmp_path: Path) -> list[str]:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    samplers.ask("write", paths=names, count=COUNT)
    return names


@pytest.mark.parametrize("kind", ["buckets", "cuts"])
@pytest.mark.parametrize(
    ("name", "bins"), [(name, bins) for name in ("plain", "shuffled", "global", "mux") for bins in (True, False)]
)
def test_batches_are_those_over_lhotses_own_manifest(
    samplers: Peer, manifests: list[str], name: str, bins: bool, kind: str
) -> None:
    (ours,) = samplers.ask("batches", name=name, paths=manifests, kind=kind, bins=bins, epochs=1)
    (theirs,) = samplers.ask("their_batches", name=name, paths=manifests, kind=kind, bins=bins)
    assert len(ours) > 20
    assert ours == theirs
    assert sum(map(len, ours)) == COUNT * (1 if name in ("plain", "shuffled") else 2)


def test_each_epoch_is_another_order(samplers: Peer, manifests: list[str]) -> None:
    """In lhotse's own manifest it is the same in each; the sampler's own buffer is shuffled there alone."""
    first, second, third = samplers.ask("batches", name="global", paths=manifests, kind="buckets", bins=True, epochs=3)
    assert first != second != third != first
    for found in (first, second, third):
        assert len({cut for batch in found for cut in batch}) == 2 * COUNT


@pytest.mark.parametrize("kind", ["buckets", "cuts"])
@pytest.mark.parametrize("name", ["plain", "shuffled", "global", "mux", "deep"])
def test_a_sampler_is_restored_exactly(samplers: Peer, manifests: list[str], name: str, kind: str) -> None:
    found = samplers.ask("restored", name=name, paths=manifests, kind=kind, steps=[1, 5, 20])
    assert len(found) == 3
    for expected, came, passed in found:
        assert came == expected
        assert passed <= sum(map(len, came))  # nothing was replayed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["global", "deep"])
def test_a_loader_is_restored_exactly(samplers: Peer, manifests: list[str], name: str, workers: int) -> None:
    whole, *found = samplers.ask("loaded", name=name, paths=manifests, workers=workers, steps=[1, 9])
    assert len(found) == 2
    for expected, came in found:
        assert came == expected
    times = 3 if name == "deep" else 1
    assert set(Counter(cut for batch in whole for cut in batch).values()) == {times}  # no worker reads another's


def test_ranks_and_workers_share_the_cuts(samplers: Peer, manifests: list[str]) -> None:
    parts = [samplers.ask("loaded", name="global", paths=manifests, workers=2, steps=[4], rank=rank) for rank in (0, 1)]
    for _, (expected, came) in parts:
        assert came == expected
    seen = Counter(cut for whole, _ in parts for batch in whole for cut in batch)
    assert len(seen) == 2 * COUNT
    assert set(seen.values()) == {1}


def test_lhotses_nodes_above_a_source_rebuild_what_they_gave(samplers: Peer, manifests: list[str]) -> None:
    given, again = samplers.ask("composed", paths=manifests)
    assert len(given) == 40
    assert again == given


def test_cuts_of_a_shar_folder_have_their_payloads(samplers: Peer, lhotse: Peer, tmp_path: Path) -> None:
    folder = str(tmp_path / "shar")
    lhotse.ask("write_shar", folder=folder, ids=[f"cut-{number}" for number in range(9)], shard_size=4)
    for path in sorted(Path(folder).iterdir()):
        kind = "tar" if path.suffix == ".tar" else "jsonl"
        lhotse.ask("index", kind=kind, files=[[str(path), f"{path}.idx"]])
    assert samplers.ask("shar", folder=folder) == lhotse.ask("read_shar", folder=folder, index=None)


def test_what_is_no_cut_or_no_state_is_refused(samplers: Peer, manifests: list[str]) -> None:
    no_cut, no_record, other, part = samplers.ask("refused", path=manifests[0])
    assert no_cut.startswith("UsageError: CutSource: ")
    assert "MonoCut" in no_cut
    assert no_record.startswith("UsageError: ")
    assert other.startswith("CheckpointMismatchError: ")
    assert part.startswith("CheckpointError: CutSource: the state has no 'ended'")
    assert samplers.ask("in_json", path=manifests[0]) is True
