"""Every node keeps the contract of `ledgerbeam.iterators.testing`."""

from __future__ import annotations

from collections.abc import Sequence
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
    PackedManifest,
    Records,
    Repeat,
    Shar,
    Shuffle,
    Slice,
    Tar,
)
from ledgerbeam.iterators.testing import NodeContract
from tests.iterators import data
from tests.iterators.data import numbers
from tests.iterators.rows import write_rows


class Files(NodeContract):
    """Nodes over files that are written once for each test."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.lines = data.write_lines(tmp_path / "a.jsonl", 70)
        self.more = data.write_lines(tmp_path / "b.jsonl", 33, 1000)
        self.blank = data.write_text(
            tmp_path / "blank.jsonl", "".join(f"{n}\n" + "\n" * (n % 3 == 0) for n in range(40))
        )
        self.samples = data.write_samples(tmp_path / "s.tar", 40)


class TestIndexedManifest(Files):
    def node(self) -> IteratorNode:
        return IndexedManifest(self.lines)


class TestManifestWithItsIndexBelowARoot(NodeContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.lines, self.root = str(tmp_path / "a.jsonl"), str(tmp_path / "indexes")
        Path(self.lines).write_text("".join(f"{number}\n" for number in range(40)), encoding="utf-8")
        index_source(self.lines, index_root=self.root, index_rule="lhotse")

    def node(self) -> IteratorNode:
        return IndexedManifest(self.lines, index_root=self.root, index_rule="lhotse")


class TestTarWithItsIndexBelowARoot(NodeContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.samples, self.root = data.write_samples(tmp_path / "s.tar", 40), str(tmp_path / "indexes")
        Path(f"{self.samples}.idx").unlink()
        index_source(self.samples, index_root=self.root)

    def node(self) -> IteratorNode:
        return IndexedTar(self.samples, index_root=self.root)


class TestShuffledManifest(Files):
    def node(self) -> IteratorNode:
        return IndexedManifest(self.lines, shuffle=True, seed=5)


class TestCompressedManifest(NodeContract):
    @pytest.fixture(autouse=True)
    def _compressed(self, tmp_path: Path) -> None:
        self.lines = data.write_compressed(tmp_path / "a.jsonl.gz", 70)

    def node(self) -> IteratorNode:
        return IndexedManifest(self.lines, shuffle=True)


class TestManifestWithBlankLines(Files):
    def node(self) -> IteratorNode:
        return IndexedManifest(self.blank, shuffle=True)


class TestIndexedTar(Files):
    def node(self) -> IteratorNode:
        return IndexedTar(self.samples, shuffle=True)


class TestIndexedShar(NodeContract):
    @pytest.fixture(autouse=True)
    def _shar(self, tmp_path: Path) -> None:
        self.folder = data.write_shar(tmp_path / "shar")

    def node(self) -> IteratorNode:
        return IndexedShar(self.folder, shuffle=True)


class TestPackedManifest(Files):
    shuffle = False

    def node(self) -> IteratorNode:
        folder = Path(self.lines).parent
        pack = folder / "sources.idxpack"
        return PackedManifest(str(pack), shuffle=self.shuffle)

    @pytest.fixture(autouse=True)
    def _pack(self, _folder: None, tmp_path: Path) -> None:
        data.write_pack(tmp_path / "sources.idxpack", [self.lines, self.more])


class TestShuffledPackedManifest(TestPackedManifest):
    shuffle = True


class TestJsonl(Files):
    def node(self) -> IteratorNode:
        return Jsonl(self.lines)


class TestManifest(Files):
    elastic = False

    def node(self) -> IteratorNode:
        return Manifest(self.lines)


class TestTar(Files):
    elastic = False

    def node(self) -> IteratorNode:
        return Tar(self.samples)


class TestShar(NodeContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = data.write_shar(tmp_path / "shar")
        for index in Path(self.folder).glob("*.idx"):
            index.unlink()

    elastic = False

    def node(self) -> IteratorNode:
        return Shar(self.folder)


class TestIndexedParquet(NodeContract):
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _rows(self, tmp_path: Path) -> None:
        names = {"a.parquet": 47, "empty.parquet": 0, "b.arrow": 23}
        self.rows = [write_rows(tmp_path / name, count, 100 * at) for at, (name, count) in enumerate(names.items())]

    def node(self) -> IteratorNode:
        return IndexedParquet(self.rows, **self.options)


class TestShuffledParquet(TestIndexedParquet):
    options: ClassVar[dict[str, Any]] = {"shuffle": True, "seed": 3, "columns": ["n", "text"]}


class TestParquetShuffledByBlocks(TestIndexedParquet):
    options: ClassVar[dict[str, Any]] = {"shuffle": "blocks", "window": 4, "columns": ["n"]}


class TestParquetOfOneBlockAtATime(TestIndexedParquet):
    options: ClassVar[dict[str, Any]] = {"shuffle": "blocks", "window": 1}


@pytest.mark.slow
class TestParquetInAMixture(TestIndexedParquet):
    def node(self) -> IteratorNode:
        one = IndexedParquet(self.rows, ["n"], shuffle="blocks", window=3, seed=1)
        other = IndexedParquet(self.rows[0], ["n"], shuffle="blocks", seed=2)
        mixed = Mix(Chain(one, numbers(9)), IndexedParquet(self.rows[2], shuffle="blocks"), data.mix)
        return Mux(mixed, Slice(other, 1, 3), weights=[3, 1])


class TestBlocks(NodeContract):
    def node(self) -> IteratorNode:
        return data.in_blocks([7, 0, 1, 20, 5, 5, 9, 13], window=3)


class TestRecords(NodeContract):
    def node(self) -> IteratorNode:
        return Records(range(50), "numbers", shuffle=True)


class TestChain(Files):
    def node(self) -> IteratorNode:
        return Chain(IndexedManifest(self.lines), IndexedManifest(self.more, shuffle=True), numbers(5))


class TestChainOfManyShortSources(NodeContract):
    def node(self) -> IteratorNode:
        return Chain(*(numbers(n % 4, 10 * n) for n in range(20)))


class TestChainInAnyOrder(NodeContract):
    def node(self) -> IteratorNode:
        return Chain(*(numbers(3, 10 * n) for n in range(12)), shuffle=True, seed=3)


class TestGlobalShuffle(Files):
    def node(self) -> IteratorNode:
        return GlobalShuffle(IndexedManifest(self.lines), IndexedManifest(self.blank), seed=9)


class TestGlobalShuffleOfFiltered(NodeContract):
    def node(self) -> IteratorNode:
        return GlobalShuffle(Filter(numbers(60), data.is_not_third), Chain(numbers(9, 100), numbers(4, 200)))


class TestMux(NodeContract):
    def node(self) -> IteratorNode:
        parts = numbers(30), numbers(8, 100, shuffle=True), numbers(15, 200), numbers(20, 300)
        return Mux(*parts, weights=[3, 1, 0.5, 0.5], seed=2)


class TestMuxThatStopsEarly(NodeContract):
    elastic = False
    whole = False

    def node(self) -> IteratorNode:
        return Mux(numbers(30), numbers(8, 100), stop_early=True)


class TestMap(NodeContract):
    def node(self) -> IteratorNode:
        return Map(numbers(40, shuffle=True), data.double)


class TestMapWithChance(NodeContract):
    def node(self) -> IteratorNode:
        return Map(numbers(40), data.add_noise, seed=1)


class TestFilter(NodeContract):
    def node(self) -> IteratorNode:
        return Filter(numbers(60, shuffle=True), data.is_even)


class TestSlice(NodeContract):
    def node(self) -> IteratorNode:
        return Slice(Chain(numbers(31, shuffle=True), numbers(20, 100)), 1, 3)


class TestSliceOfSlice(NodeContract):
    def node(self) -> IteratorNode:
        return Slice(Map(Slice(numbers(100, shuffle=True), 1, 3), data.double), 1, 2)


class TestSliceOfFiltered(NodeContract):
    elastic = False
    whole = False

    def node(self) -> IteratorNode:
        return Slice(Filter(numbers(60), data.is_even), 2, 3)


class TestShuffle(NodeContract):
    def node(self) -> IteratorNode:
        return Shuffle(numbers(60), 16, seed=4)


class TestShuffleWithALargeBuffer(NodeContract):
    def node(self) -> IteratorNode:
        return Shuffle(numbers(40), 100)


class TestFlatten(NodeContract):
    def node(self) -> IteratorNode:
        return Flatten(Map(numbers(30, shuffle=True), data.spread))


class TestFlattenInAGraph(NodeContract):
    """All that may lie between a Flatten and those who read its spans."""

    def node(self) -> IteratorNode:
        pieces = Flatten(Map(numbers(9, shuffle=True), data.some))
        nested = Flatten(Map(Flatten(Map(Filter(numbers(12, 50), data.is_not_third), data.some)), data.some))
        joined = Filter(Chain(pieces, numbers(5, 100), nested), data.is_not_third)
        return Repeat(Mix(Map(joined, data.add_noise, seed=3), numbers(4, 900), data.mix), 2)


class TestMix(NodeContract):
    def node(self) -> IteratorNode:
        return Mix(numbers(40, shuffle=True), numbers(9, 100), data.mix, probability=0.6)


class TestRepeat(NodeContract):
    def node(self) -> IteratorNode:
        return Repeat(numbers(20, shuffle=True), 3)


class TestRepeatOfMixed(NodeContract):
    def node(self) -> IteratorNode:
        return Shuffle(Repeat(Mix(numbers(10), numbers(9, 100), data.mix), 4), 7)


class TestEndlessRepeat(NodeContract):
    most = 90
    whole = False

    def node(self) -> IteratorNode:
        return Repeat(Filter(numbers(20, shuffle=True), data.is_even))


class Batched(NodeContract):
    def pieces(self, item: Any) -> Sequence[Any]:
        return list(item)


class TestBatches(Batched):
    def node(self) -> IteratorNode:
        return Batches(numbers(50, shuffle=True), 8)


class TestBatchesByCost(Batched):
    def node(self) -> IteratorNode:
        return Batches(numbers(60, shuffle=True), 6, max_cost=24, cost=data.length, padded=True)


class TestFullBatches(Batched):
    whole = False

    def node(self) -> IteratorNode:
        return Batches(numbers(50), 8, drop_last=True)


class TestBuckets(Batched):
    def node(self) -> IteratorNode:
        return Buckets(numbers(90, shuffle=True), data.length, [3, 6, 8], max_cost=30, buffer_size=40, seed=7)


class TestFullBuckets(Batched):
    whole = False

    def node(self) -> IteratorNode:
        return Buckets(numbers(90), data.length, [5], max_records=4, buffer_size=20, drop_last=True)


class TestShuffleOfAStream(Files):
    elastic = False

    def node(self) -> IteratorNode:
        return Shuffle(Manifest(self.lines), 16, seed=4)


class TestFlattenOfAStream(Files):
    elastic = False

    def node(self) -> IteratorNode:
        return Flatten(Map(Manifest(self.lines), data.some_of_record))


class TestBatchesOfAStream(Files, Batched):
    elastic = False

    def node(self) -> IteratorNode:
        return Batches(Manifest(self.lines), 6, max_cost=24, cost=data.record_length, padded=True)


class TestBucketsOfAStream(Files, Batched):
    elastic = False

    def node(self) -> IteratorNode:
        return Buckets(Manifest(self.lines), data.record_length, [3, 6, 8], max_cost=30, buffer_size=40, seed=7)


class TestMixOfAStream(Files):
    elastic = False
    whole = False

    def node(self) -> IteratorNode:
        return Mix(Manifest(self.lines), numbers(9, 100), data.mix, probability=0.6)


class TestMixWithAStream(Files):
    elastic = False
    whole = False

    def node(self) -> IteratorNode:
        return Mix(numbers(80, shuffle=True), Shuffle(Manifest(self.more), 5), data.mix, probability=0.6)


class TestBuffersOverStreams(Files, Batched):
    most = 400
    elastic = False

    def node(self) -> IteratorNode:
        pieces = Flatten(Map(Chain(Manifest(self.lines), Manifest(self.more), shuffle=True), data.some_of_record))
        return Batches(Mux(Shuffle(Repeat(pieces, 2), 9), numbers(20), seed=2), 5)
