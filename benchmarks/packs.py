"""Table: packed sequences, compared with Megatron's GPTDataset, Energon's packer and a loader written by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import ledgerbeam
from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, most_row, speed_row
from benchmarks.timing import best, timed
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from ledgerbeam.iterators import Packed, Repeat

TITLE = "Packs of 8,192 tokens, documents of about 250 uint16 tokens, warm cache, one process, tokens as int64"

DOCUMENTS = 400_000
LENGTH = 8_192
RESTORES = 20
FIELDS = ("tokens", "cu_seqlens")


def rows(data: Data) -> Iterator[Row]:
    with TemporaryDirectory(dir=data.work) as folder:
        prefix = f"{folder}/all"
        _write(prefix, data.count(DOCUMENTS))
        packs = {}
        for strategy in ("best-fit", "concat"):
            packs[strategy] = f"{folder}/{strategy}"
            how: dict[str, Any] = {"length": LENGTH, "strategy": strategy, "progress": False, "workers": 1}
            ledgerbeam.pack(prefix, output=packs[strategy], ledger=f"{folder}/ledger-{strategy}", **how)
        whole = Packed(packs["best-fit"])
        sizes = whole.sizes(np.arange(len(whole)))
        yield most_row("padding, best-fit", 100 * (1 - float(sizes.mean()) / LENGTH), 1, " %")
        yield from _restores(packs["best-fit"])
        yield from _speeds(prefix, packs, len(whole) * 3 // 4)


def _write(prefix: str, count: int) -> None:
    chance = np.random.default_rng(1)
    lengths = np.clip(chance.lognormal(np.log(160), 0.95, count), 1, 100_000).astype(np.int32)
    with write_megatron(prefix, np.uint16) as builder:
        tokens = chance.integers(0, 60_000, int(lengths.sum())).astype(np.uint16)
        builder.add_documents(tokens, lengths, np.arange(1, count + 1))


def _restores(folder: str) -> Iterator[Row]:
    """Restore shuffled passes at random steps, up to their first pack, in new graphs."""
    seconds, largest = [], 0
    chance = np.random.default_rng(2)
    for _ in range(RESTORES):
        graph = Repeat(Packed(folder, shuffle=True))
        for _ in islice(graph, int(chance.integers(1, 3_000))):
            pass
        state = json.dumps(graph.state_dict())
        largest = max(largest, len(state))
        started = time.perf_counter()
        other = Repeat(Packed(folder, shuffle=True))
        other.load_state_dict(json.loads(state))
        next(iter(other))
        seconds.append(time.perf_counter() - started)
    yield most_row("restore, up to the first pack, slowest", 1000 * max(seconds), 50, " ms")
    yield most_row("size of the state", largest / 1024, 4, " KB")


def _speeds(prefix: str, packs: dict[str, str], count: int) -> Iterator[Row]:
    by_hand = {strategy: _written_by_hand(prefix, folder) for strategy, folder in packs.items()}

    def ours(strategy: str, *, shuffle: bool) -> Callable[[], float]:
        return timed(lambda: _drain(islice(Packed(packs[strategy], fields=FIELDS, shuffle=shuffle), count)))

    contenders = {
        "ours, best-fit": ours("best-fit", shuffle=False),
        "ours, best-fit shuffled": ours("best-fit", shuffle=True),
        "ours, concat shuffled": ours("concat", shuffle=True),
        "by hand, best-fit": timed(lambda: _drain(islice(by_hand["best-fit"](shuffle=False), count))),
        "by hand, best-fit shuffled": timed(lambda: _drain(islice(by_hand["best-fit"](shuffle=True), count))),
        "by hand, concat shuffled": timed(lambda: _drain(islice(by_hand["concat"](shuffle=True), count))),
    }
    python = peer_python()
    if python is None:
        seconds = best(contenders)
    else:
        with Peer("benchmarks.peer_packs", python) as peer:
            asked = {"prefix": prefix, "length": LENGTH}
            some = max(1, count // 8)  # the peers are slower
            contenders |= {
                "gpt": lambda: float(peer.ask("gpt", count=some, **asked)) * count / some,
                "energon": lambda: float(peer.ask("energon", count=some, **asked)) * count / some,
            }
            seconds = best(contenders)
    names = ("best-fit", "best-fit shuffled", "concat shuffled")
    work = {name: Work(name, "tokens", count * LENGTH) for name in names}
    for name, one in work.items():
        yield speed_row(one, seconds[f"ours, {name}"], "by hand", seconds[f"by hand, {name}"], 1)
    for name, peer_name, title in (
        ("concat shuffled", "gpt", "GPTDataset"),
        ("best-fit", "energon", "Energon's packer"),
    ):
        if peer_name in seconds:
            yield speed_row(work[name], seconds[f"ours, {name}"], title, seconds[peer_name], 1)
        else:
            yield absent_row(f"{name}, vs {title}", ">= 1", PEERS_REMEDY)


def _written_by_hand(prefix: str, folder: str) -> Callable[..., Iterator[Any]]:
    """Return a loader as an engineer writes it: lists of ranges in memory, and a copy of each range."""
    pieces, _ = Packed(folder).records.pieces_of(np.arange(len(Packed(folder))))
    bounds, starts = pieces.bounds.tolist(), pieces.offsets.tolist()
    stops = (pieces.offsets + pieces.stops - pieces.starts).tolist()
    packs = [list(zip(starts[a:b], stops[a:b], strict=True)) for a, b in pairwise(bounds)]
    with MegatronReader(prefix) as reader:
        tokens = np.asarray(np.memmap(reader.url, reader.dtype, "r"))
    shuffled = np.random.default_rng(1).permutation(len(packs)).tolist()

    def loader(*, shuffle: bool) -> Iterator[Any]:
        for number in shuffled if shuffle else range(len(packs)):
            found, place, edges = np.empty(LENGTH, np.int64), 0, [0]
            for start, stop in packs[number]:
                end = place + stop - start
                found[place:end] = tokens[start:stop]
                edges.append(end)
                place = end
            found[place:] = 0
            yield {"tokens": found, "cu_seqlens": np.array(edges, np.int32)}

    return loader


def _drain(items: Iterator[Any]) -> None:
    for _ in items:
        pass
