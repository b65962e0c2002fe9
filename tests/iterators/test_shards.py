"""States over readers of several files, and over files whose index defines the records."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import CheckpointMismatchError
from ledgerbeam.io import JsonlReader, Sample, encode_jsonl, write_index
from ledgerbeam.io.datasets.lit import LitDataset
from ledgerbeam.io.datasets.lit.index import write_lit_metadata
from ledgerbeam.io.datasets.webdataset import (
    ShardWriter,
    open_energon,
    open_shards,
    open_wids,
    write_energon,
    write_wids_index,
)
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.iterators import (
    Chain,
    GlobalShuffle,
    IndexedTar,
    IteratorNode,
    Map,
    PackedManifest,
    Records,
    Shuffle,
    Slice,
    merge_states,
)
from tests.cases import each
from tests.iterators import data
from tests.iterators.data import after, in_blocks, numbers


def write_dataset(folder: Path) -> None:
    """Write two shards with the metadata of wids, Energon and LIT."""
    with ShardWriter(f"{folder}/part-%03d.tar", max_samples=3) as writer:
        for number in range(6):
            writer.write(Sample(f"{number:04d}", {"txt": b"%d" % number}))
    write_wids_index(f"{folder}/wids.json", writer.shards)
    write_energon(str(folder), writer.shards)
    write_lit_metadata(str(folder), {"train": writer.shards})


SHARDED: dict[str, Callable[[Path], Any]] = {
    "shards": lambda folder: open_shards([f"{folder}/part-{number:03d}.tar" for number in range(2)]),
    "wids": lambda folder: open_wids(f"{folder}/wids.json"),
    "Energon": lambda folder: open_energon(str(folder)),
    "LIT": lambda folder: LitDataset(str(folder), modalities=["txt"]),
}


@pytest.mark.parametrize("over", SHARDED)
def test_a_state_over_shards_names_each_of_them(tmp_path: Path, over: str) -> None:
    write_dataset(tmp_path)
    graph = after(Records(SHARDED[over](tmp_path)), 2)
    again = Records(SHARDED[over](tmp_path))
    again.load_state_dict(graph.state_dict())
    assert len(list(again)) == 4
    os.utime(tmp_path / "part-001.tar", (1_000, 1_000))
    with pytest.raises(CheckpointMismatchError, match=r"data\.files\[1\]\.version: was .*, is '1000000000000'"):
        Records(SHARDED[over](tmp_path)).load_state_dict(graph.state_dict())


def test_an_index_that_makes_other_records_of_a_file_is_other_data(tmp_path: Path) -> None:
    url = f"{tmp_path}/a.tar"
    with tarfile.open(url, "w") as archive:
        for name in (f"{stem}.{extension}" for stem in ("a.0", "a.1", "b.0") for extension in "xy"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"1"))
    write_index(f"{url}.idx", build_tar_index(url, group="pairs"))
    graph = after(IndexedTar(url), 2)
    write_index(f"{url}.idx", build_tar_index(url, group="key"))
    with pytest.raises(CheckpointMismatchError, match=r"data\.records: was 3, is 2"):
        IndexedTar(url).load_state_dict(graph.state_dict(), trust_data=True)


def test_the_data_is_the_file_as_it_was_listed(tmp_path: Path) -> None:
    url = f"{tmp_path}/a.jsonl"
    data, offsets = encode_jsonl([{"id": number} for number in range(3)])
    (tmp_path / "a.jsonl").write_bytes(data)
    write_index(f"{url}.idx", offsets)
    listed = stat(url)
    reader = JsonlReader(url, listed=listed)
    os.utime(url, (1_000, 1_000))
    found = Records(reader).describe_data()
    assert (found["version"], found["records"]) == (listed.version, 3)
    assert stat(url).version != listed.version


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_record_has_its_share_of_the_bytes_of_all_files(tmp_path: Path, count: int) -> None:
    url = f"{tmp_path}/a.jsonl"
    data, offsets = encode_jsonl([{"id": number} for number in range(count)])
    (tmp_path / "a.jsonl").write_bytes(data)
    write_index(f"{url}.idx", offsets)
    assert Records(JsonlReader(url)).record_bytes == len(data) / max(count, 1)


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


def test_the_merged_buffer_of_shards_shrinks_to_its_size() -> None:
    def make() -> Shuffle:
        return Shuffle(numbers(2000), 100)

    states = []
    for shard in range(4):
        graph = make()
        graph.partition(shard, 4)
        states.append(after(graph, 10).state_dict())
    merged = make()
    merged.load_state_dict(merge_states(merged, states))
    sizes = [len(json.dumps(after(graph, 350).state_dict())) for graph in (make(), merged)]
    assert sizes[1] < 1.1 * sizes[0]
