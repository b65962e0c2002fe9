"""Shards of a pass have equal sizes, for any number and size of sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ledgerbeam.iterators import Chain, GlobalShuffle, IteratorNode, Map, PackedManifest, Slice, merge_states
from tests.cases import each
from tests.iterators import data
from tests.iterators.data import after, in_blocks, numbers

LENGTHS: dict[str, Sequence[int]] = {
    "one each": [1] * 30,
    "two each": [2] * 20,
    "three each": [3] * 15,
    "few and none": [number * 7 % 5 for number in range(30)],
    "one long": [1] * 9 + [40] + [2] * 9,
}


def leaves(lengths: Sequence[int]) -> list[IteratorNode]:
    return [numbers(length, 1000 * number) for number, length in enumerate(lengths)]


GRAPHS: dict[str, Callable[[Sequence[int]], IteratorNode]] = {
    "Chain": lambda lengths: Chain(*leaves(lengths)),
    "Chain in any order": lambda lengths: Chain(*leaves(lengths), shuffle=True, seed=3),
    "Chain of Chains in any order": lambda lengths: Chain(
        Chain(*leaves(lengths), shuffle=True), numbers(5, 500_000), Map(Chain(*leaves(lengths)), data.wrap)
    ),
    "first of two": lambda lengths: Slice(Chain(*leaves(lengths)), 0, 2),
    "second of two": lambda lengths: Slice(Chain(*leaves(lengths)), 1, 2),
    "third of three": lambda lengths: Slice(Map(Chain(*leaves(lengths)), data.wrap), 2, 3),
    "second of the first of two": lambda lengths: Slice(Slice(Chain(*leaves(lengths)), 0, 2), 1, 2),
    "Chain of slices": lambda lengths: Chain(*(Slice(leaf, 0, 2) for leaf in leaves(lengths))),
    "GlobalShuffle": lambda lengths: GlobalShuffle(*leaves(lengths), seed=5),
    "slice of a GlobalShuffle": lambda lengths: Slice(GlobalShuffle(*leaves(lengths)), 1, 3),
    "blocks": lambda lengths: in_blocks(list(lengths)),
}


def parts(graph_of: Callable[[], IteratorNode], shards: int) -> list[list[str]]:
    found = []
    for shard in range(shards):
        graph = graph_of()
        graph.partition(shard, shards)
        found.append([repr(item) for item in graph])
    return found


@each("lengths", LENGTHS)
@each("name", GRAPHS)
def test_shards_are_equal_in_size(name: str, lengths: str) -> None:
    def make() -> IteratorNode:
        return GRAPHS[name](LENGTHS[lengths])

    whole = sorted(map(repr, make()))
    for shards in (2, 3, 5):
        found = parts(make, shards)
        sizes = [len(part) for part in found]
        assert max(sizes) - min(sizes) <= 1, f"{shards} shards: {sizes}"
        assert sorted(item for part in found for item in part) == whole


def test_shards_of_many_short_sources_with_one_index_are_equal_in_size(tmp_path: Path) -> None:
    sources = [data.write_lines(tmp_path / f"{number}.jsonl", 2, 10 * number) for number in range(9)]
    pack = str(tmp_path / "sources.idxpack")
    data.write_pack(tmp_path / "sources.idxpack", sources)
    for make in (lambda: PackedManifest(pack), lambda: Slice(PackedManifest(pack), 1, 2)):
        sizes = [len(part) for part in parts(make, 4)]
        assert max(sizes) - min(sizes) <= 1, sizes


@each("lengths", ["one each", "two each", "few and none"])
@each("name", ["Chain", "first of two", "second of the first of two", "GlobalShuffle"])
def test_what_shards_have_left_is_divided_evenly(name: str, lengths: str) -> None:
    states = []
    for shard in range(3):
        graph = GRAPHS[name](LENGTHS[lengths])
        graph.partition(shard, 3)
        states.append(after(graph, 2).state_dict())
    for shards in (2, 4):
        merged = merge_states(GRAPHS[name](LENGTHS[lengths]), states)
        sizes = []
        for shard in range(shards):
            graph = GRAPHS[name](LENGTHS[lengths])
            graph.partition(shard, shards)
            graph.load_state_dict(merged)
            sizes.append(len(list(graph)))
        assert sum(sizes) == len(list(GRAPHS[name](LENGTHS[lengths]))) - 6
        assert max(sizes) - min(sizes) <= 2, sizes  # a source that shards have left in parts is divided by itself
