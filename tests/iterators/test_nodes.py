"""Every node keeps the contract of `ledgerbeam.iterators.testing`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ledgerbeam import index_source
from ledgerbeam.iterators import (
    Batches,
    Buckets,
    Chain,
    Filter,
    Flatten,
    GlobalShuffle,
    IndexedManifest,
    IndexedParquet,
    IndexedShar,
    IndexedTar,
    IteratorNode,
    Jsonl,
    Manifest,
    Map,
    Mix,
    Mux,
    Packed,
    PackedManifest,
    Records,
    Repeat,
    Shar,
    Shuffle,
    Slice,
    Tar,
)
from ledgerbeam.iterators.testing import NodeContract
from ledgerbeam.transforms.mapping.pack import PackDocuments
from tests.iterators import data
from tests.iterators.data import numbers, write_rows
from tests.pages import ROOT
from tests.servers.process import wait_until


class Files:
    """The files of one test. Each is written when a node first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder / "indexes")

    @cached_property
    def lines(self) -> str:
        return data.write_lines(self.folder / "a.jsonl", 70)

    @cached_property
    def more(self) -> str:
        return data.write_lines(self.folder / "b.jsonl", 33, 1000)

    @cached_property
    def blank(self) -> str:
        return data.write_text(self.folder / "blank.jsonl", "".join(f"{n}\n" + "\n" * (n % 3 == 0) for n in range(40)))

    @cached_property
    def compressed(self) -> str:
        return data.write_compressed(self.folder / "c.jsonl.gz", 70)

    @cached_property
    def samples(self) -> str:
        return data.write_samples(self.folder / "s.tar", 40)

    @cached_property
    def pack(self) -> str:
        return data.write_pack(self.folder / "sources.idxpack", [self.lines, self.more])

    @cached_property
    def packs(self) -> str:
        prefixes = [
            data.write_documents(self.folder / name, [1 + n * 7 % 23 for n in range(count)], first=500 * at)
            for at, (name, count) in enumerate({"long": 31, "short": 14}.items())
        ]
        return data.write_packs(self.folder / "packs", prefixes, PackDocuments(16, adds_eod=True), eod=7, task_bytes=99)

    @cached_property
    def shar(self) -> str:
        return data.write_shar(self.folder / "shar")

    @cached_property
    def shar_without_indexes(self) -> str:
        for index in Path(self.shar).glob("*.idx"):
            index.unlink()
        return self.shar

    @cached_property
    def rows(self) -> list[str]:
        names = {"a.parquet": 47, "empty.parquet": 0, "b.arrow": 23}
        return [write_rows(self.folder / name, count, 100 * at) for at, (name, count) in enumerate(names.items())]

    @cached_property
    def lines_indexed_below_a_root(self) -> str:
        Path(self.lines + ".idx").unlink()
        index_source(self.lines, index_root=self.root, index_rule="lhotse")
        return self.lines

    @cached_property
    def samples_indexed_below_a_root(self) -> str:
        Path(self.samples + ".idx").unlink()
        index_source(self.samples, index_root=self.root)
        return self.samples


Makes = dict[str, Any]  # functions that make a node over files, by the names of the cases


def pieces_of_pieces(at: Files) -> IteratorNode:
    """Return a graph with all that may lie between a Flatten and those who read its spans."""
    pieces = Flatten(Map(numbers(9, shuffle=True), data.some))
    nested = Flatten(Map(Flatten(Map(Filter(numbers(12, 50), data.is_not_third), data.some)), data.some))
    joined = Filter(Chain(pieces, numbers(5, 100), nested), data.is_not_third)
    return Repeat(Mix(Map(joined, data.add_noise, seed=3), numbers(4, 900), data.mix), 2)


def parquet_in_a_mixture(at: Files) -> IteratorNode:
    one = IndexedParquet(at.rows, ["n"], shuffle="blocks", window=3, seed=1)
    other = IndexedParquet(at.rows[0], ["n"], shuffle="blocks", seed=2)
    mixed = Mix(Chain(one, numbers(9)), IndexedParquet(at.rows[2], shuffle="blocks"), data.mix)
    return Mux(mixed, Slice(other, 1, 3), weights=[3, 1])


def packs_by_tokens(at: Files) -> IteratorNode:
    some = [Packed(at.packs, shuffle=True), Repeat(Packed(at.packs, shuffle="blocks", window=3), 2), Packed(at.packs)]
    return Map(Mux(*some, weights=[(0, [5, 2, 0]), (700, [1, 1, 3])], weights_in="tokens"), data.plain)


def buffers_over_streams(at: Files) -> IteratorNode:
    pieces = Flatten(Map(Chain(Manifest(at.lines), Manifest(at.more), shuffle=True), data.some_of_record))
    return Batches(Mux(Shuffle(Repeat(pieces, 2), 9), numbers(20), seed=2), 5)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make" in metafunc.fixturenames:
        makes = metafunc.cls.makes
        metafunc.parametrize("make", makes.values(), ids=makes)


class NodesOfATable(NodeContract):
    """The nodes of a table, each over files of its own."""

    makes: ClassVar[Makes]

    @pytest.fixture(autouse=True)
    def _files(self, make: Callable[[Files], IteratorNode], tmp_path: Path) -> None:
        self.make, self.files = make, Files(tmp_path)

    def node(self) -> IteratorNode:
        return self.make(self.files)

    def pieces(self, item: Any) -> Sequence[Any]:
        return item if isinstance(item, list) else [item]  # a list is a batch


class TestNodes(NodesOfATable):
    makes: ClassVar[Makes] = {
        "IndexedManifest": lambda at: IndexedManifest(at.lines),
        "IndexedManifest, shuffled": lambda at: IndexedManifest(at.lines, shuffle=True, seed=5),
        "IndexedManifest, compressed": lambda at: IndexedManifest(at.compressed, shuffle=True),
        "IndexedManifest with blank lines": lambda at: IndexedManifest(at.blank, shuffle=True),
        "IndexedManifest with its index below a root": lambda at: IndexedManifest(
            at.lines_indexed_below_a_root, index_root=at.root, index_rule="lhotse"
        ),
        "IndexedTar": lambda at: IndexedTar(at.samples, shuffle=True),
        "IndexedTar with its index below a root": lambda at: IndexedTar(
            at.samples_indexed_below_a_root, index_root=at.root
        ),
        "IndexedShar": lambda at: IndexedShar(at.shar, shuffle=True),
        "PackedManifest": lambda at: PackedManifest(at.pack),
        "PackedManifest, shuffled": lambda at: PackedManifest(at.pack, shuffle=True),
        "Packed": lambda at: Map(Packed(at.packs), data.plain),
        "Packed, shuffled": lambda at: Map(Packed(at.packs, shuffle=True, seed=3), data.plain),
        "Packed by blocks": lambda at: Map(Packed(at.packs, shuffle="blocks", window=2), data.plain),
        "Mux by tokens": packs_by_tokens,
        "Jsonl": lambda at: Jsonl(at.lines),
        "IndexedParquet": lambda at: IndexedParquet(at.rows),
        "IndexedParquet, shuffled": lambda at: IndexedParquet(at.rows, ["n", "text"], shuffle=True, seed=3),
        "IndexedParquet by blocks": lambda at: IndexedParquet(at.rows, ["n"], shuffle="blocks", window=4),
        "IndexedParquet by single blocks": lambda at: IndexedParquet(at.rows, shuffle="blocks", window=1),
        "Records": lambda at: Records(range(50), "numbers", shuffle=True),
        "Records by blocks": lambda at: data.in_blocks([7, 0, 1, 20, 5, 5, 9, 13], window=3),
        "Chain": lambda at: Chain(IndexedManifest(at.lines), IndexedManifest(at.more, shuffle=True), numbers(5)),
        "Chain of many short sources": lambda at: Chain(*(numbers(n % 4, 10 * n) for n in range(20))),
        "Chain in any order": lambda at: Chain(*(numbers(3, 10 * n) for n in range(12)), shuffle=True, seed=3),
        "GlobalShuffle": lambda at: GlobalShuffle(IndexedManifest(at.lines), IndexedManifest(at.blank), seed=9),
        "GlobalShuffle of a Filter": lambda at: GlobalShuffle(
            Filter(numbers(60), data.is_not_third), Chain(numbers(9, 100), numbers(4, 200))
        ),
        "Mux": lambda at: Mux(
            *(numbers(30), numbers(8, 100, shuffle=True), numbers(15, 200), numbers(20, 300)),
            weights=[3, 1, 0.5, 0.5],
            seed=2,
        ),
        "Map": lambda at: Map(numbers(40, shuffle=True), data.double),
        "Map with chance": lambda at: Map(numbers(40), data.add_noise, seed=1),
        "Filter": lambda at: Filter(numbers(60, shuffle=True), data.is_even),
        "Slice": lambda at: Slice(Chain(numbers(31, shuffle=True), numbers(20, 100)), 1, 3),
        "Slice of a Slice": lambda at: Slice(Map(Slice(numbers(100, shuffle=True), 1, 3), data.double), 1, 2),
        "Shuffle": lambda at: Shuffle(numbers(60), 16, seed=4),
        "Shuffle with a large buffer": lambda at: Shuffle(numbers(40), 100),
        "Flatten": lambda at: Flatten(Map(numbers(30, shuffle=True), data.spread)),
        "Flatten in a graph": pieces_of_pieces,
        "IndexedParquet in a mixture": pytest.param(parquet_in_a_mixture, marks=pytest.mark.slow),
        "Mix": lambda at: Mix(numbers(40, shuffle=True), numbers(9, 100), data.mix, probability=0.6),
        "Repeat": lambda at: Repeat(numbers(20, shuffle=True), 3),
        "Repeat of a Mix": lambda at: Shuffle(Repeat(Mix(numbers(10), numbers(9, 100), data.mix), 4), 7),
        "Batches": lambda at: Batches(numbers(50, shuffle=True), 8),
        "Batches by cost": lambda at: Batches(numbers(60, shuffle=True), 6, max_cost=24, cost=data.length, padded=True),
        "Buckets": lambda at: Buckets(
            numbers(90, shuffle=True), data.length, [3, 6, 8], max_cost=30, buffer_size=40, seed=7
        ),
    }


class TestStreams(NodesOfATable):
    """Their rest cannot be divided among another number of shards."""

    elastic = False
    most = 400
    makes: ClassVar[Makes] = {
        "Manifest": lambda at: Manifest(at.lines),
        "Tar": lambda at: Tar(at.samples),
        "Shar": lambda at: Shar(at.shar_without_indexes),
        "Shuffle": lambda at: Shuffle(Manifest(at.lines), 16, seed=4),
        "Flatten": lambda at: Flatten(Map(Manifest(at.lines), data.some_of_record)),
        "Batches": lambda at: Batches(Manifest(at.lines), 6, max_cost=24, cost=data.record_length, padded=True),
        "Buckets": lambda at: Buckets(
            Manifest(at.lines), data.record_length, [3, 6, 8], max_cost=30, buffer_size=40, seed=7
        ),
        "buffers over streams": buffers_over_streams,
    }


class TestNodesWhoseShardsYieldOtherItems(NodesOfATable):
    whole = False
    most = 90
    makes: ClassVar[Makes] = {
        "Mux that stops early": lambda at: Mux(numbers(30), numbers(8, 100), stop_early=True),
        "Slice of a Filter": lambda at: Slice(Filter(numbers(60), data.is_even), 2, 3),
        "endless Repeat": lambda at: Repeat(Filter(numbers(20, shuffle=True), data.is_even)),
        "full Batches": lambda at: Batches(numbers(50), 8, drop_last=True),
        "full Buckets": lambda at: Buckets(
            numbers(90), data.length, [5], max_records=4, buffer_size=20, drop_last=True
        ),
        "Mix of a stream": lambda at: Mix(Manifest(at.lines), numbers(9, 100), data.mix, probability=0.6),
        "Mix with a stream": lambda at: Mix(
            numbers(80, shuffle=True), Shuffle(Manifest(at.more), 5), data.mix, probability=0.6
        ),
    }


_ENDS_AT_ONCE = """
import multiprocessing, os
from ledgerbeam.iterators import Records
from ledgerbeam.iterators.testing import rest_in_another_process

if __name__ == "__main__":
    node = Records([1, 2, 3], name="numbers")
    assert rest_in_another_process(node, node.state_dict(), 9) == [1, 2, 3]
    (child,) = multiprocessing.active_children()
    print(child.pid, flush=True)
    os._exit(0)
"""


def test_the_other_process_ends_with_one_that_ends_without_a_word(tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(_ENDS_AT_ONCE)
    ran = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert wait_until(lambda: not _lives(int(ran.stdout)), seconds=20)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


NAMES = ("iterators", "packs", "iterator-nodes", "iterator-shuffle", "training-loaders", "materialize", "write-a-node")


def test_the_pages_name_every_node_and_function() -> None:
    from ledgerbeam import iterators as graph

    text = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in NAMES)
    helpers = {"State", "Token", "Permutation"}
    assert not [name for name in graph.__all__ if name not in text and name not in helpers]
