"""Table: indexing of JSONL and tar files that are in the page cache."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import Contender, best, timed
from ledgerbeam.io import write_index
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.io.tar.walk import walk_tar

TITLE = "Indexing, warm cache (walk: headers; scan: offsets in memory; index: scan and publish the .idx, fsynced)"


def rows(data: Data) -> Iterator[Row]:
    yield from _jsonl(data)
    yield from _tar(data)


def _jsonl(data: Data) -> Iterator[Row]:
    path, index = str(data.jsonl), str(data.work / "lines.idx")
    size = data.jsonl.stat().st_size
    contenders: dict[str, Contender] = {
        "scan": timed(lambda: build_jsonl_index(path)),
        "scan 2": timed(lambda: build_jsonl_index(path, threads=2)),
        "index": timed(lambda: write_index(index, build_jsonl_index(path))),
        "wc": lambda: _wc(path),
        "wc start": lambda: _wc("/dev/null"),
    }
    with ExitStack() as stack:
        python = peer_python()
        if python is not None:
            lhotse = stack.enter_context(Peer("benchmarks.peer_lhotse", python))
            contenders["lhotse"] = lhotse.contender("index_jsonl", path=path, output=str(data.work / "lhotse.idx"))
        seconds = best(contenders)
    counting = seconds["wc"] - seconds["wc start"]
    yield speed_row(Work("JSONL scan, 1 thread", "B", size), seconds["scan"], "wc -l", counting, 0.5)
    yield speed_row(Work("JSONL scan, 2 threads on one file", "B", size), seconds["scan 2"], "wc -l", counting, 0.8)
    if python is None:
        yield absent_row("JSONL index, 1 thread, vs lhotse", ">= 3", PEERS_REMEDY)
        return
    if Path(index).read_bytes() != (data.work / "lhotse.idx").read_bytes():
        raise RuntimeError(f"{path}: lhotse's index and ours differ")
    yield speed_row(Work("JSONL index, 1 thread", "B", size), seconds["index"], "lhotse", seconds["lhotse"], 3)


def _tar(data: Data) -> Iterator[Row]:
    members, pairs = str(data.members), str(data.pairs)
    with tarfile.open(members) as archive:
        count = sum(1 for _ in archive)
    contenders: dict[str, Contender] = {
        "walk": timed(lambda: walk_tar(members)),
        "scan": timed(lambda: build_tar_index(members, group="key")),
        "tarfile": timed(lambda: _walk(members)),
        "hops": timed(lambda: _hop(members)),
        "index": timed(lambda: _index(members, data.work / "members.idx", "key")),
        "pairs": timed(lambda: _index(pairs, data.work / "pairs.idx", "pairs")),
    }
    with ExitStack() as stack:
        python = peer_python()
        if python is not None:
            lhotse = stack.enter_context(Peer("benchmarks.peer_lhotse", python))
            output = str(data.work / "lhotse-pairs.idx")
            contenders["lhotse"] = lhotse.contender("index_tar", path=pairs, output=output)
            energon = stack.enter_context(Peer("benchmarks.peer_energon", python))
            shard = {"folder": str(data.members.parent), "shard": data.members.name}
            contenders["energon"] = energon.contender("prepare", **shard)
        seconds = best(contenders)
    note = f" (a bare loop of os.pread from header to header: {seconds['tarfile'] / seconds['hops']:.1f} x tarfile)"
    for name in ("walk", "scan"):
        what = Work(f"tar {name}, 20 kB members", "members", count)
        yield speed_row(what, seconds[name], "tarfile", seconds["tarfile"], 20, note=note)
    if python is None:
        yield absent_row("tar index, 20 kB members, vs Energon prepare", ">= 10", PEERS_REMEDY)
        yield absent_row("tar index, 22 kB pairs, vs lhotse", ">= 20", PEERS_REMEDY)
        return
    for mine, theirs in (("members.idx", data.members.with_name("members.tar.idx")), ("pairs.idx", Path(output))):
        if (data.work / mine).read_bytes() != theirs.read_bytes():
            raise RuntimeError(f"{data.work / mine} and {theirs} differ")
    index = Work("tar index, 20 kB members", "members", count)
    yield speed_row(index, seconds["index"], "Energon prepare", seconds["energon"], 10, note=" (and SQLite)")
    pairs_index = Work("tar index, 22 kB pairs", "pairs", (data.work / "pairs.idx").stat().st_size // 8 - 1)
    yield speed_row(pairs_index, seconds["pairs"], "lhotse", seconds["lhotse"], 20)


def _index(path: str, output: Path, group: Grouping) -> None:
    write_index(str(output), build_tar_index(path, group=group))


def _walk(path: str) -> None:
    with tarfile.open(path) as archive:
        for _ in archive:
            pass


def _hop(path: str) -> None:
    """Do the least work of a walk through a tar in Python: read each header and its size, and go to the next one."""
    descriptor, position = os.open(path, os.O_RDONLY), 0
    try:
        while (header := os.pread(descriptor, tarfile.BLOCKSIZE, position)).strip(b"\0"):
            position += (int(header[124:135], 8) + 1023) & -512
    finally:
        os.close(descriptor)


def _wc(path: str) -> float:
    return timed(lambda: subprocess.run(["wc", "-l", path], check=True, stdout=subprocess.DEVNULL))()
