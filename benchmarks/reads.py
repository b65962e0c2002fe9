"""Table: random reads of local records that are in the page cache."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import orjson

from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import Contender, best, timed
from ledgerbeam.io import JsonlReader, TarReader, write_index
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.tar.reader import build_tar_index

TITLE = "Random reads, uniform over the file, one by one, warm cache"

JSONL_READS = 100_000
TAR_READS = 20_000


def rows(data: Data) -> Iterator[Row]:
    yield from _jsonl(data)
    yield from _tar(data)


def _jsonl(data: Data) -> Iterator[Row]:
    path, index = str(data.jsonl), str(data.work / "lines.idx")
    offsets = build_jsonl_index(path)
    write_index(index, offsets)
    wanted = _wanted(len(offsets) - 1, data.count(JSONL_READS))
    ranges = _ranges(offsets, wanted)
    descriptor = os.open(path, os.O_RDONLY)
    reader = JsonlReader(path, index)
    contenders: dict[str, Contender] = {
        "raw": timed(lambda: _each(reader.raw, wanted)),
        "decoded": timed(lambda: _each(reader.__getitem__, wanted)),
        "many": timed(lambda: reader.read_many(wanted)),
        "pread": timed(lambda: _pread(descriptor, ranges)),
        "pread and loads": timed(lambda: _pread_and_loads(descriptor, ranges)),
    }
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        stack.enter_context(reader)
        python = peer_python()
        if python is not None:
            lhotse = stack.enter_context(Peer("benchmarks.peer_lhotse", python))
            asked = _write_numbers(data, "jsonl-reads", wanted)
            contenders["lhotse"] = lhotse.contender("read_jsonl", path=path, index=index, records=asked)
        seconds = best(contenders)
    loads = seconds["pread and loads"]
    raw, decoded, many = (
        Work(f"JsonlReader{method}", "records", len(wanted)) for method in (".raw(i)", "[i]", ".read_many")
    )
    yield speed_row(raw, seconds["raw"], "os.pread", seconds["pread"], 0.7)
    yield speed_row(decoded, seconds["decoded"], "os.pread + orjson", loads, 0.7)
    yield speed_row(many, seconds["many"], "os.pread + orjson", loads, 0.7)
    if python is None:
        yield absent_row("JsonlReader[i], vs lhotse", ">= 1", PEERS_REMEDY)
    else:
        yield speed_row(decoded, seconds["decoded"], "lhotse", seconds["lhotse"], 1)


def _tar(data: Data) -> Iterator[Row]:
    path, index = str(data.pairs), str(data.work / "pairs.idx")
    offsets = build_tar_index(path, group="pairs")
    write_index(index, offsets)
    wanted = _wanted(len(offsets) - 1, data.count(TAR_READS))
    ranges = _ranges(offsets, wanted)
    descriptor = os.open(path, os.O_RDONLY)
    reader = TarReader(path, index)
    contenders: dict[str, Contender] = {
        "ours": timed(lambda: _samples(reader, wanted)),
        "pread": timed(lambda: _pread(descriptor, ranges)),
    }
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        stack.enter_context(reader)
        python = peer_python()
        if python is not None:
            lhotse = stack.enter_context(Peer("benchmarks.peer_lhotse", python))
            asked = _write_numbers(data, "tar-reads", wanted)
            contenders["lhotse"] = lhotse.contender("read_tar", path=path, index=index, records=asked)
        seconds = best(contenders)
    work = Work("TarReader[i], 22 kB pairs, manifest decoded", "samples", len(wanted))
    if python is None:
        yield absent_row(f"{work.name}, vs lhotse", ">= 3", PEERS_REMEDY)
        return
    note = f" (os.pread {len(wanted) / seconds['pread'] / 1000:.0f} k/s)"
    yield speed_row(work, seconds["ours"], "lhotse", seconds["lhotse"], 3, note=note)


def _wanted(records: int, count: int) -> list[int]:
    return random.Random(3).choices(range(records), k=count)


def _ranges(offsets: Offsets, wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Return size and position of each record, as Python integers."""
    entries = offsets.tolist()
    return [(entries[number + 1] - entries[number], entries[number]) for number in wanted]


def _write_numbers(data: Data, name: str, wanted: Sequence[int]) -> str:
    path = data.work / f"{name}.txt"
    path.write_text("\n".join(map(str, wanted)))
    return str(path)


def _each(read: Callable[[int], Any], wanted: Sequence[int]) -> None:
    for number in wanted:
        read(number)


def _samples(reader: TarReader, wanted: Sequence[int]) -> None:
    loads = orjson.loads
    for number in wanted:
        loads(reader[number]["json"])  # lhotse decodes the manifest too


def _pread(descriptor: int, ranges: Sequence[tuple[int, int]]) -> None:
    pread = os.pread
    for size, position in ranges:
        pread(descriptor, size, position)


def _pread_and_loads(descriptor: int, ranges: Sequence[tuple[int, int]]) -> None:
    pread, loads = os.pread, orjson.loads
    for size, position in ranges:
        loads(pread(descriptor, size, position))
