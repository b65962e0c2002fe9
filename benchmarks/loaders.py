"""Table: samples per second of training loaders: iterator graphs, map-style datasets of torch, and Grain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import MEMBER_BYTES, Data, lines
from benchmarks.loader_sources import write_places
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, rate, speed_row
from benchmarks.timing import Contender, alternate
from ledgerbeam.io import Sample, write_index
from ledgerbeam.io.datasets.megatron import write_megatron
from ledgerbeam.io.datasets.webdataset import ShardWriter
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.tar.reader import build_tar_index

BATCH = 32
TITLE = f"Loaders: shuffled passes in batches of {BATCH}, warm cache, start-up apart"

SAMPLES = {"jsonl": 100_000, "tar": 20_000, "parquet": 200_000, "megatron": 200_000}
SIDE_SAMPLES = {"ours": 200_000, "torch": 200_000, "grain": 10_000}
"""Greatest number of timed samples of a pass. Grain is about ten times slower."""

WORKERS = (0, 2)
ROUNDS = 3
ROW_GROUPS = 64
TOKENS = (50, 350)  # of a document
_NAMES = {"jsonl": "JSONL", "tar": f"tar, {MEMBER_BYTES // 1000} kB", "parquet": "Parquet", "megatron": "Megatron"}
_PEERS = {"torch": "torch map-style", "grain": "Grain"}


def rows(data: Data) -> Iterator[Row]:
    python = peer_python()
    if python is None:
        yield absent_row("loaders, vs torch map-style and Grain", ">= 1", PEERS_REMEDY)
        return
    with TemporaryDirectory(dir=data.work) as folder, ExitStack() as stack:
        sides = {side: stack.enter_context(Peer("benchmarks.peer_loaders", python)) for side in ("ours", *_PEERS)}
        for kind, count in SAMPLES.items():
            files = make_files(Path(folder), kind, data.count(count))
            for workers in WORKERS:
                yield from _compared(data, sides, kind, files, workers)


def _compared(data: Data, sides: dict[str, Peer], kind: str, files: list[str], workers: int) -> Iterator[Row]:
    asked = {"kind": kind, "files": files, "workers": workers}
    found = {side: peer.ask("digest", side=side, **asked) for side, peer in sides.items()}
    require_same(found, data.count(SAMPLES[kind]), f"{kind} with {workers} workers")
    contenders: dict[str, Contender] = {
        side: peer.contender("seconds", side=side, samples=data.count(SIDE_SAMPLES[side]), **asked)
        for side, peer in sides.items()
    }
    # The passes that were checked have warmed all up.
    seconds = {side: min(each) for side, each in alternate(contenders, ROUNDS, warm_up=False).items()}
    for side, name in _PEERS.items():
        work = Work(f"{_NAMES[kind]}, {workers} workers", "samples", 1)
        row = speed_row(work, seconds["ours"], name, seconds[side], 1, note=_batches(seconds[side]))
        yield replace(row, ours=row.ours + _batches(seconds["ours"]))


def _batches(seconds: float) -> str:
    return f", {rate(1 / (seconds * BATCH), 'batches')}"


def require_same(found: dict[str, list[object]], count: int, what: str) -> None:
    """Check that each loader has delivered each sample once.

    Args:
        found: By loader, the number of its samples and the sum of their digests.
        count: The expected number of samples.
        what: Beginning of the message of an error.

    Raises:
        RuntimeError: A loader has delivered other samples.
    """
    wanted = next(iter(found.values()))
    if wanted[0] != count or any(one != wanted for one in found.values()):
        raise RuntimeError(f"{what}: expected {count} samples, the same of all, found (number, digest) {found}")


def make_files(folder: Path, kind: str, count: int) -> list[str]:
    """Write the samples of a format. Return the names of their files, and then of the indexes.

    Args:
        folder: Folder of the files.
        kind: A format of `SAMPLES`.
        count: Number of samples.
    """
    if kind == "jsonl":
        path, index = str(folder / "lines.jsonl"), str(folder / "lines.idx")
        Path(path).write_bytes(b"".join(lines(count)))
        write_index(index, build_jsonl_index(path))
        return [path, index]
    if kind == "tar":
        return _make_tar(folder, count)
    chance = np.random.default_rng(5)
    if kind == "parquet":
        path = str(folder / "rows.parquet")
        table = pa.Table.from_pylist([orjson.loads(line) for line in islice(lines(count), count)])
        pq.write_table(table, path, row_group_size=-(-count // ROW_GROUPS), compression="zstd")
        return [path]
    prefix = str(folder / "tokens")
    lengths = chance.integers(*TOKENS, count, dtype=np.int32)
    with write_megatron(prefix, np.uint16) as builder:
        tokens = chance.integers(0, 60_000, int(lengths.sum()), dtype=np.uint16)
        builder.add_documents(tokens, lengths, np.arange(1, count + 1))
    return [prefix]


def _make_tar(folder: Path, count: int) -> list[str]:
    pool = np.random.default_rng(11).bytes(1 << 22)
    with ShardWriter(str(folder / "part-%04d.tar"), max_samples=count) as writer:
        for number in range(count):
            start = number * 4099 % (len(pool) - MEMBER_BYTES)
            writer.write(Sample(f"{number:08d}", {"bin": pool[start : start + MEMBER_BYTES], "cls": b"%d" % number}))
    path, index, places = (str(folder / name) for name in ("part-0000.tar", "samples.idx", "places.json"))
    write_index(index, build_tar_index(path))
    write_places(path, places)
    return [path, index, places]
