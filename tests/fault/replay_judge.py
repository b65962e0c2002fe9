"""Judging what a crash left, with the real store: ``python -m tests.fault.replay_judge`` takes states on its input.

It is a process of its own, because a ledger that is bad enough kills whoever opens it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ledgerbeam.errors import LedgerbeamError, LedgerNotFoundError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Leaf, OutputRow, Totals
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.replay_stories import (
    JOB,
    MAP_BYTES,
    STORIES,
    ObjectsStory,
    OutputsStory,
    content_of,
    digest_of_rows,
    digest_of_words,
)
from tests.ledger.builders import sum_of


@dataclass(frozen=True)
class State:
    folder: str
    acknowledged: int
    begun: int


class Judge:
    """Judges the states of one recording."""

    def __init__(self, story: str, seed: int, notes: Mapping[str, Any]) -> None:
        self._told = STORIES[story](seed, os.devnull)
        self._told.remember(notes["memory"])
        self._notes: list[dict[str, Any]] = notes["steps"]

    def findings(self, state: State) -> Iterator[str]:
        try:
            if isinstance(self._told, ObjectsStory):
                yield from self._objects(state)
            else:
                yield from self._local(state)
        except LedgerbeamError as error:
            yield f"does not open or go on: {type(error).__name__}: {error}"

    def _local(self, state: State) -> Iterator[str]:
        with closing(LmdbStore(os.path.join(state.folder, "ledger"), map_bytes=MAP_BYTES)) as store:
            try:
                store.open()
            except LedgerNotFoundError:
                if state.acknowledged:
                    yield f"lost: there is no ledger, and {state.acknowledged} steps were acknowledged"
                    return
                store.open(create=True)
            else:
                yield from self._compare("rows", digest_of_rows(store), state)
            yield from broken_sums(store)
            if isinstance(self._told, OutputsStory):
                yield from self._outputs(store, state.folder)
            yield from self._go_on(store)

    def _objects(self, state: State) -> Iterator[str]:
        objects = ObjectFolder(os.path.join(state.folder, "objects", "ledger"))
        sidecar = os.path.join(state.folder, "sidecar")
        for path in (sidecar, f"{sidecar}-new"):
            with closing(RemoteStore(objects, path)) as store:
                store.open(create=state.acknowledged <= 1)  # what the first step makes is the sidecar
                if state.acknowledged > 1 or store.job() is not None:
                    yield from self._compare("says", digest_of_words(store), state)
                yield from broken_sums(store)
        with closing(RemoteStore(objects, sidecar)) as store:
            store.open(create=True)
            store.open_job(JOB)
            store.begin_run({})
            yield from self._go_on(store)

    def _compare(self, what: str, found: str, state: State) -> Iterator[str]:
        allowed = [note[what] for note in self._notes[max(0, state.acknowledged - 1) : max(1, state.begun)]]
        if found in allowed:
            return
        steps = [number for number, note in enumerate(self._notes) if note[what] == found]
        if steps:
            yield f"lost: it is as after step {steps[-1]}, and {state.acknowledged} steps were acknowledged"
        else:
            yield "half applied: it is as after no step at all"

    def _outputs(self, store: LmdbStore, folder: str) -> Iterator[str]:
        out = Path(folder, "out")
        for row in store.outputs():
            path = out / row.output.name
            data = path.read_bytes() if path.exists() else None
            if data is None or (len(data), content_checksum([data])) != (row.output.size, row.output.checksum):
                kind = "false completion" if row.complete else "lost output"
                found = "nothing" if data is None else f"{len(data)} other bytes"
                yield f"{kind}: {row.output.name} is recorded with {row.output.size} bytes, found {found}"
        for path in out.rglob("*"):
            if path.is_file() and not path.name.endswith(TEMPORARY_SUFFIX):
                name = str(path.relative_to(out))
                if path.read_bytes() not in self._contents(name):
                    yield f"torn: {name} is there, and not whole"

    def _contents(self, name: str) -> list[bytes]:
        (source,) = (url for url in self._told.sources if url[1:-6] == name.partition(".")[0].partition("-")[0])
        newest = self._told.sources[source]
        versions = [replace(newest, version=str(number)) for number in range(1, int(newest.version) + 1)]
        return [content_of(name, version.id) for version in versions]

    def _go_on(self, store: LmdbStore) -> Iterator[str]:
        """Finishes the job, as its next run would."""
        sources = list(self._told.sources.values())
        store.register(sources)
        leaves = [leaf for source in sources for leaf in self._told.leaves(source)]
        store.commit(leaves)
        store.refresh()
        if not all(store.completed_mask([source.id for source in sources])):
            yield "does not go on: sources stay open when all of their leaves are committed"
        if {row.output for row in store.outputs()} != {output for leaf in leaves for output in leaf.outputs}:
            yield "does not go on: the outputs are not those of a job that was never cut"
        if store.totals() != _sum(leaves):
            yield f"does not go on: the totals are {store.totals()}, expected {_sum(leaves)}"
        if store.records() != sum_of(leaves):
            yield f"does not go on: the records are {store.records()}, expected {sum_of(leaves)}"
        if Counter(store.statistics()) != Counter(item for leaf in leaves for item in leaf.statistics.items()):
            yield "does not go on: the statistics are not those of a job that was never cut"
        yield from broken_sums(store)


def broken_sums(store: LmdbStore) -> Iterator[str]:
    """Return where the rows of a ledger contradict each other."""
    totals, records = Totals(), RecordCounts()
    outputs: dict[bytes, list[OutputRow]] = defaultdict(list)
    for output in store.outputs(ordered=False):
        outputs[output.source_id].append(output)
    done = 0
    for row in store.sources():
        totals, records = totals.plus(row.totals), records.plus(row.counts)
        done += row.state == "complete"
        applied = store.applied(row.source_id)
        pending = store.pending(row.source_id)
        if row.state == "complete" and (applied or pending):
            yield f"half applied: {row.url} is complete with {len(applied)} entries and {pending} live tasks"
        if row.state != "complete" and (pending < 1 or pending != sum(applied.values())):
            yield f"half applied: {row.url} has {pending} live tasks, and its entries say {sum(applied.values())}"
        shards = sum(not output.output.name.endswith(".idx") for output in outputs.pop(row.source_id, []))
        if shards != row.totals.tasks - row.totals.filtered:
            yield f"half applied: {row.url} has {row.totals.tasks} finished tasks and outputs of {shards}"
    if outputs:
        yield f"half applied: outputs of {len(outputs)} sources that are not registered"
    if totals != store.totals():
        yield f"half applied: the totals are {store.totals()}, the sources add up to {totals}"
    if records != store.records():
        yield f"half applied: the records are {store.records()}, the sources add up to {records}"
    if done != store.completed_count():
        yield f"half applied: {store.completed_count()} sources are complete, of those registered {done}"


def _sum(leaves: list[Leaf]) -> Totals:
    total = Totals()
    for leaf in leaves:
        total = total.plus(leaf.share())
    return total


def main() -> None:
    """Judge the states that its input names, one a line; the first line names the recording."""
    story, seed, notes = json.loads(sys.stdin.readline())
    judge = Judge(story, seed, json.loads(Path(notes).read_text(encoding="utf-8")))
    for line in sys.stdin:
        found = list(judge.findings(State(*json.loads(line))))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
