"""Table: passes over a JSONL source through iterator graphs, and restores of their position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, most_row, speed_row
from benchmarks.timing import Contender, best, timed
from ledgerbeam.io import write_index
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.iterators import Batches, IndexedManifest, IteratorNode, Shuffle, State

TITLE = "Iterator graphs over lines of 600 bytes, decoded, warm cache"

ITEMS = 200_000
BATCH = 32
BUFFER = 10_000
GRAIN_RECORDS = 200_000
GRAIN_ITEMS = 4_000
"""Number of items of a pass of Grain, which is about a hundred times slower."""

NEAR, FAR = 1_000, 1_000_000
"""Positions to restore. The far one is scaled with the data."""


def rows(data: Data) -> Iterator[Row]:
    path, index = str(data.jsonl), str(data.work / "graph.idx")
    write_index(index, build_jsonl_index(path))
    count, far = data.count(ITEMS), data.count(FAR)

    def leaf(*, shuffle: bool = True) -> IndexedManifest:
        return IndexedManifest(path, index, shuffle=shuffle)

    near_state, far_state = (_state_at(leaf(), position) for position in (NEAR, far))
    buffer_state = _state_after_one(Shuffle(leaf(), BUFFER))
    contenders: dict[str, Contender] = {
        "in order": timed(lambda: _drain(leaf(shuffle=False), count)),
        "shuffled": timed(lambda: _drain(leaf(), count)),
        "buffered": timed(lambda: _drain(Shuffle(leaf(shuffle=False), BUFFER), count)),
        "batched": timed(lambda: _drain(Batches(leaf(), BATCH), count // BATCH)),
        "near": _least(timed(lambda: _go_on(leaf(), near_state))),
        "far": _least(timed(lambda: _go_on(leaf(), far_state))),
        "buffer": timed(lambda: _go_on(Shuffle(leaf(), BUFFER), buffer_state)),
    }
    python = peer_python()
    with ExitStack() as stack:
        theirs_bytes = 0
        if python is not None:
            peer = stack.enter_context(Peer("benchmarks.peer_graphs", python))
            files = {"path": path, "index": index}
            contenders |= {
                "lhotse in order": peer.contender("iterate", **files, shuffle=False, count=count),
                "lhotse shuffled": peer.contender("iterate", **files, shuffle=True, count=count),
                "lhotse buffered": peer.contender("buffered", **files, size=BUFFER, count=count),
                "torch batched": peer.contender("sampled", **files, batch=BATCH, count=count),
                "torch skip": peer.contender("skipped", **files, position=count // 10),
                "lhotse far": peer.contender("restore", **files, position=far),
                "lhotse buffer": peer.contender("restore_buffer", **files, size=BUFFER),
            }
            records = str(data.work / "graph.array_record")
            peer.ask("make_array_record", path=path, to=records, count=data.count(GRAIN_RECORDS))
            few = data.count(GRAIN_ITEMS)
            contenders |= {
                "grain shuffled": peer.contender("grain_shuffled", file=records, count=few),
                "grain far": peer.contender("grain_restore", file=records, position=data.count(GRAIN_RECORDS) // 2),
            }
            theirs_bytes = peer.ask("state_bytes", **files, size=BUFFER)
        seconds = best(contenders, rounds=3)
    drift = seconds["far"] / seconds["near"]
    yield most_row(f"go on at {far:,} against at {NEAR:,}", drift, 1.5, " x", ours=f"{1000 * seconds['far']:.0f} ms")
    if python is None:
        yield absent_row("passes and going on, vs lhotse, torch and Grain", ">= 1", PEERS_REMEDY)
        return
    for name in ("in order", "shuffled", "buffered"):
        work = Work(f"pass {name}", "records", count)
        yield speed_row(work, seconds[name], "lhotse", seconds[f"lhotse {name}"], 1)
    work = Work(f"batches of {BATCH}, shuffled", "records", count)
    yield speed_row(work, seconds["batched"], "torch, map-style with a sampler", seconds["torch batched"], 1)
    work = Work(f"go on at {far:,}, from nothing", "restores", 1)
    yield speed_row(work, seconds["far"], "lhotse", seconds["lhotse far"], 1)
    yield speed_row(work, seconds["far"], "Grain, in an eighth of them,", seconds["grain far"], 1)
    work = Work("pass shuffled", "records", few)
    yield speed_row(work, seconds["shuffled"] * few / count, "Grain on ArrayRecord", seconds["grain shuffled"], 1)
    skip = f"torch, skipping {count // 10:,},"
    yield speed_row(Work(f"go on at {far:,}", "restores", 1), seconds["far"], skip, seconds["torch skip"], 10)
    work = Work(f"go on with a buffer of {BUFFER:,}", "restores", 1)
    yield speed_row(work, seconds["buffer"], "lhotse", seconds["lhotse buffer"], 1)
    ours_bytes = len(json.dumps(buffer_state, separators=(",", ":")))
    shown = f"{ours_bytes / 1000:.0f} kB", f"lhotse {theirs_bytes / 1000:.0f} kB"
    yield most_row(
        f"state with a buffer of {BUFFER:,}", ours_bytes / theirs_bytes, 1, " x", ours=shown[0], other=shown[1]
    )


def _state_at(node: IndexedManifest, position: int) -> State:
    """Return the state of a pass at a position. The number of the position is its only part."""
    state = _state_after_one(node)
    state["state"]["position"] = position
    return state


def _state_after_one(node: IteratorNode) -> State:
    _drain(node, 1)
    return node.state_dict()


def _go_on(node: IteratorNode, state: State) -> None:
    node.load_state_dict(state)
    next(iter(node))


def _least(contender: Contender) -> Contender:
    """Return a contender that takes the least of ten times: for work of a millisecond, a busy machine adds much."""
    return lambda: min(contender() for _ in range(10))


def _drain(node: IteratorNode, count: int) -> None:
    for _ in islice(node, count):
        pass
