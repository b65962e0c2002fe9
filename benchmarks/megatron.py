"""Table: reading, building and merging of Megatron datasets, compared with Megatron."""

from __future__ import annotations

import filecmp
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import best, timed
from ledgerbeam.io.datasets.megatron import MegatronBuilder, MegatronReader, merge_megatron, write_megatron

TITLE = "Megatron: documents of about 200 uint16 tokens, warm cache (ours fsyncs what it merges, Megatron does not)"

DOCUMENTS = 1_000_000
TOKENS = (50, 350)  # of a document
READS = 100_000
FILE_READS = 20_000
BUILT = 200_000
PARTS = 4
SLICES = (5, 100, 1_000)


@dataclass(frozen=True)
class _Bench:
    """The peer, and a folder with a dataset of documents of different lengths, whole and in parts."""

    data: Data
    peer: Peer
    folder: str
    parts: list[str]
    lengths: NDArray[np.int32]

    @property
    def prefix(self) -> str:
        return self.path("all")

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def rows(data: Data) -> Iterator[Row]:
    python = peer_python()
    if python is None:
        yield absent_row("Megatron datasets, vs megatron-core", ">= 1.2", PEERS_REMEDY)
        return
    with TemporaryDirectory(dir=data.work) as folder, Peer("benchmarks.peer_megatron", python) as peer:
        bench = _prepared(data, folder, peer)
        yield _random_row(bench, mmap=True, count=data.count(READS), target=1.2)
        yield _random_row(bench, mmap=False, count=data.count(FILE_READS), target=3)
        for width in SLICES:
            yield _slices_row(bench, width)
        yield _build_row(bench, as_list=False, target=1.2)
        yield _build_row(bench, as_list=True, target=1)
        yield _finalize_row(bench)
        yield _merge_row(bench)


def _prepared(data: Data, folder: str, peer: Peer) -> _Bench:
    chance = np.random.default_rng(5)
    lengths = chance.integers(*TOKENS, data.count(DOCUMENTS), dtype=np.int32)
    parts = [f"{folder}/part-{number}" for number in range(PARTS)]
    for prefix, part in zip(parts, np.array_split(lengths, PARTS), strict=True):
        with write_megatron(prefix, np.uint16) as builder:
            tokens = chance.integers(0, 60_000, int(part.sum()), dtype=np.uint16)
            builder.add_documents(tokens, part, np.arange(1, len(part) + 1))
    merge_megatron(parts, f"{folder}/all")
    return _Bench(data, peer, folder, parts, lengths)


def _random_row(bench: _Bench, *, mmap: bool, count: int, target: float) -> Row:
    wanted = random.Random(3).choices(range(len(bench.lengths)), k=count)
    path = Path(bench.path("reads.txt"))
    path.write_text("\n".join(map(str, wanted)), encoding="utf-8")
    with MegatronReader(bench.prefix, mmap=mmap) as reader:
        seconds = best(
            {
                "ours": timed(lambda: _each(reader, wanted)),
                "megatron": bench.peer.contender("read", prefix=bench.prefix, mmap=mmap, records=str(path)),
            }
        )
    work = Work(f"random reads, {'mapped' if mmap else 'by file'}", "sequences", count)
    return speed_row(work, seconds["ours"], "Megatron", seconds["megatron"], target)


def _slices_row(bench: _Bench, width: int) -> Row:
    count = bench.data.count(READS)
    asked = {"prefix": bench.prefix, "mmap": True, "count": count, "width": width}
    with MegatronReader(bench.prefix) as reader:
        seconds = best(
            {
                "ours": timed(lambda: [reader[start : start + width] for start in range(0, count, width)]),
                "megatron": bench.peer.contender("read_slices", **asked),
            }
        )
    work = Work(f"slices of {width:,}, mapped", "sequences", count)
    return speed_row(work, seconds["ours"], "Megatron", seconds["megatron"], 1.2)


def _build_row(bench: _Bench, *, as_list: bool, target: float) -> Row:
    count = bench.data.count(BUILT)
    document = np.random.default_rng(6).integers(0, 60_000, sum(TOKENS) // 2, dtype=np.uint16)
    np.save(bench.path("document.npy"), document)
    text: Any = document.tolist() if as_list else document
    ours, theirs = bench.path("ours"), bench.path("theirs")
    asked = {"output": theirs, "count": count, "tokens": bench.path("document.npy"), "as_list": as_list}
    seconds = best(
        {"ours": lambda: _build(ours, text, count), "megatron": bench.peer.contender("build", **asked)}, rounds=3
    )
    _require_same(ours, theirs)
    work = Work(f"build, documents as {'lists' if as_list else 'arrays'} of {len(document)} tokens", "documents", count)
    return speed_row(work, seconds["ours"], "Megatron", seconds["megatron"], target)


def _build(prefix: str, text: Any, count: int) -> float:
    with open(f"{prefix}.bin", "wb") as data:
        builder = MegatronBuilder(data, np.uint16)
        lengths = [len(text)]
        started = time.perf_counter()
        for _ in range(count):
            builder.add_document(text, lengths)
        data.flush()
        seconds = time.perf_counter() - started
    with open(f"{prefix}.idx", "wb") as index:
        builder.write_index(index)
    return seconds


def _finalize_row(bench: _Bench) -> Row:
    np.save(bench.path("lengths.npy"), bench.lengths)
    ours, theirs = bench.path("ours"), bench.path("theirs")
    asked = {"output": theirs, "lengths": bench.path("lengths.npy")}
    with open(f"{ours}.bin", "wb") as data:
        builder = MegatronBuilder(data, np.uint16)
        tokens = np.zeros(int(bench.lengths.sum()), np.uint16)
        builder.add_documents(tokens, bench.lengths, np.arange(1, len(bench.lengths) + 1))
    seconds = best(
        {"ours": timed(lambda: _finalize(ours, builder)), "megatron": bench.peer.contender("finalize", **asked)}
    )
    _require_same(ours, theirs, (".idx",))
    work = Work("finalize: the index of all documents", "documents", len(bench.lengths))
    return speed_row(work, seconds["ours"], "Megatron", seconds["megatron"], 20)


def _finalize(prefix: str, builder: MegatronBuilder) -> None:
    with open(f"{prefix}.idx", "wb") as index:
        builder.write_index(index)


def _merge_row(bench: _Bench) -> Row:
    ours, theirs = bench.path("ours"), bench.path("theirs")
    seconds = best(
        {
            "ours": timed(lambda: merge_megatron(bench.parts, ours)),
            "megatron": bench.peer.contender("merge", prefixes=bench.parts, output=theirs),
        },
        rounds=3,
    )
    _require_same(ours, theirs)
    work = Work(f"merge of {PARTS} parts", "documents", len(bench.lengths))
    return speed_row(work, seconds["ours"], "Megatron", seconds["megatron"], 5)


def _require_same(ours: str, theirs: str, suffixes: Sequence[str] = (".bin", ".idx")) -> None:
    for suffix in suffixes:
        if not filecmp.cmp(ours + suffix, theirs + suffix, shallow=False):
            raise RuntimeError(f"{ours}{suffix} and {theirs}{suffix} differ")


def _each(reader: MegatronReader, wanted: Sequence[int]) -> None:
    for number in wanted:
        reader[number]
