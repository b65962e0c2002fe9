"""What the traced processes do: stories of steps, the same for a seed, each acknowledged before the next begins.

`main` with the arguments STORY SEED ROOT NOTES [BREAKAGE] lives one below ROOT, which is empty, and says ``begin N``
and ``done N`` on standard output. What each step left is noted in NOTES, outside ROOT.
BREAKAGE is a way to break durability that the replay must find.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb

from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage import objects as storage_objects
from ledgerbeam.io.storage import publish as publishing
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.environment import row_pages
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import TABLES
from ledgerbeam.ledger.model.identity import Lineage, content_checksum, node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark, Output
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import Tree, counted_leaf, leaf_of, lineages

JOB = Job("map", {"to": "jsonl"})
MAP_BYTES = 1 << 17  # so little that the map grows while a story runs
LOCK = "lock.mdb"  # what LMDB writes through a mapping, unseen by strace; it needs nothing of it after a crash
_TREES: tuple[Tree, ...] = (None, (None,), (None, None, None), ((None, None), None), (None,) * 12)


class Tale:
    """The sources of a story, and how each is cut into leaves."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sources: dict[str, Source] = {}
        self._trees: dict[str, int] = {}

    def new(self, count: int) -> list[Source]:
        """Invents sources."""
        made = []
        for _ in range(count):
            name = f"/data/{len(self.sources):04d}.jsonl"
            self.sources[name] = Source(name, 10, "1")
            self._trees[name] = self.chance.randrange(len(_TREES))
            made.append(self.sources[name])
        return made

    def change(self, count: int) -> list[Source]:
        for name in self.some(list(self.sources), count):
            old = self.sources[name]
            self.sources[name] = replace(old, version=str(int(old.version) + 1))
        return list(self.sources.values())

    def leaves(self, source: Source) -> list[Leaf]:
        """Return the leaves of a source: what a job commits for it."""
        return [self.leaf(source, lineage) for lineage in lineages(_TREES[self._trees[source.url]])]

    def memory(self) -> dict[str, tuple[str, int]]:
        """Return what it takes to `remember`: the version and the tree of every source."""
        return {name: (source.version, self._trees[name]) for name, source in self.sources.items()}

    def remember(self, memory: Mapping[str, tuple[str, int]]) -> None:
        """Take over the sources of a story that was lived elsewhere."""
        self.sources = {name: Source(name, 10, version) for name, (version, _) in memory.items()}
        self._trees = {name: tree for name, (_, tree) in memory.items()}

    def leaf(self, source: Source, lineage: Lineage) -> Leaf:
        """Return one leaf; other stories give it other outputs."""
        leaf = leaf_of(source, lineage, source.version)
        if sum(ordinal for ordinal, _ in lineage) % 2:
            return leaf
        counted = counted_leaf(source, lineage)
        return replace(leaf, counts=counted.counts, statistics=counted.statistics)

    def some(self, items: list[Any], count: int) -> list[Any]:
        """Draw some of them, in any order."""
        return self.chance.sample(items, min(count, len(items)))

    def some_leaves(self, count: int) -> list[Leaf]:
        """Draw leaves of all sources, so that some are committed again and most sources stay open for long."""
        return self.some([leaf for source in self.sources.values() for leaf in self.leaves(source)], count)


Step = Callable[[], object]


class LocalTale(Tale):
    """A story of a local ledger."""

    def __init__(self, seed: int, root: str) -> None:
        super().__init__(seed)
        self.store = LmdbStore(os.path.join(root, "ledger"), map_bytes=MAP_BYTES)
        self._out = os.path.join(root, "out")
        self._run = ""

    def note(self) -> dict[str, Any]:
        """Return what the ledger holds, row by row."""
        return {"rows": digest_of_rows(self.store)}


class LedgerStory(LocalTale):
    """Every change that a local ledger knows."""

    def steps(self) -> Iterator[Step]:
        store = self.store
        yield lambda: store.open(create=True)
        yield lambda: store.open_job(JOB)
        yield self._begin_run
        yield lambda: store.register(self.new(30))
        moves: list[tuple[Step, int]] = [
            (lambda: store.commit(self.some_leaves(self.chance.randint(1, 60))), 16),
            (lambda: store.commit(self.some_leaves(5), [self._failure() for _ in range(3)]), 4),
            (lambda: store.register(self.new(self.chance.randint(1, 25))), 4),
            (lambda: store.register(self.change(3)), 2),
            (lambda: store.record_deaths([self._mark() for _ in range(3)]), 2),
            (lambda: store.forget(f"*{self.chance.randint(0, 9)}.jsonl"), 2),
            (lambda: store.forget("*", failures_only=True), 1),
            (lambda: store.withdraw(list(store.rejected_tasks("bad"))[:1]), 2),
            (lambda: store.drop_stale(store.stale_outputs()), 1),
            (lambda: store.set_gone([source.id for source in self.some(list(self.sources.values()), 3)]), 1),
            (lambda: store.note_listing(self._run, listed=len(self.sources), finished=True), 1),
        ]
        yield from self.chance.sample([move for move, _ in moves], counts=[count for _, count in moves], k=34)
        yield lambda: store.commit(self.some_leaves(10_000))
        yield lambda: store.end_run(self._run, "done")

    def _begin_run(self) -> None:
        self._run = self.store.begin_run({"story": "ledger"})

    def _failure(self) -> Failure:
        leaf = self.some_leaves(1)[0]
        return Failure(leaf.source_id, leaf.lineage, "a task", "ValueError", "x" * self.chance.randint(0, 6000))

    def _mark(self) -> Mark:
        leaf = self.some_leaves(1)[0]
        return Mark(leaf.source_id, node_id(leaf.source_id, leaf.lineage), "a task")


class OutputsStory(LocalTale):
    """Tasks that publish their outputs and are recorded then, some of them again and some with other content."""

    def steps(self) -> Iterator[Step]:
        store = self.store
        yield lambda: store.open(create=True)
        yield lambda: store.register(self.new(12))
        for number in range(30):
            if number % 10 == 9:
                yield lambda: store.register(self.change(2))
            yield lambda: self.publish(self.some_leaves(self.chance.randint(1, 4)))
        yield lambda: self.publish(self.some_leaves(10_000))

    def publish(self, leaves: list[Leaf]) -> None:
        """Do what `WriteTasks` and `CommitTasks` do, in their order."""
        for leaf in leaves:
            for output in leaf.outputs:
                publish_bytes(f"{self._out}/{output.name}", content_of(output.name, leaf.source_id))
        self.store.commit(leaves)

    def leaf(self, source: Source, lineage: Lineage) -> Leaf:
        """Return a leaf with a shard and its index."""
        plain = super().leaf(source, lineage).outputs[0].name
        return replace(
            super().leaf(source, lineage), outputs=tuple(_output(name, source.id) for name in (plain, f"{plain}.idx"))
        )


def _output(name: str, source_id: bytes) -> Output:
    data = content_of(name, source_id)
    return Output(name, len(data), content_checksum([data]), 1)


def content_of(name: str, source_id: bytes) -> bytes:
    """Return the bytes of an output: some pages, the same for the same name and source."""
    seed = blake2b(name.encode() + source_id, digest_size=8).digest()
    chance = random.Random(seed)
    return chance.randbytes(chance.choice([0, 10, 4096, 9000, 20000]))


class ObjectsStory(Tale):
    """A ledger of objects in a local folder: its launcher with a sidecar, and a worker that only writes."""

    def __init__(self, seed: int, root: str) -> None:
        super().__init__(seed)
        objects = ObjectFolder(os.path.join(root, "objects", "ledger"))
        self.store = RemoteStore(objects, os.path.join(root, "sidecar"))
        self._sink = RemoteSink(objects, job=JOB.fingerprint)

    def steps(self) -> Iterator[Step]:
        store = self.store
        yield lambda: store.open(create=True)
        yield lambda: store.open_job(JOB)
        yield lambda: store.begin_run({"story": "objects"})
        yield lambda: store.register(self.new(15))
        moves: list[tuple[Step, int]] = [
            (lambda: self._sink.commit(self.some_leaves(self.chance.randint(1, 10))), 10),
            (lambda: store.commit(self.some_leaves(self.chance.randint(1, 10))), 6),
            (lambda: store.register(self.new(3)), 2),
            (lambda: store.register(self.change(2)), 1),
            (lambda: store.forget(f"*{self.chance.randint(0, 9)}.jsonl"), 1),
            (lambda: compact(store), 3),
        ]
        yield from self.chance.sample([move for move, _ in moves], counts=[count for _, count in moves], k=23)
        yield lambda: store.begin_run({"story": "objects, again"})
        yield lambda: self._sink.commit(self.some_leaves(10_000))

    def note(self) -> dict[str, Any]:
        """Return what the ledger says, whatever its objects are."""
        self.store.refresh()
        return {"says": digest_of_words(self.store)}


Story = LedgerStory | OutputsStory | ObjectsStory

STORIES: dict[str, type[Story]] = {"ledger": LedgerStory, "outputs": OutputsStory, "objects": ObjectsStory}


def digest_of_rows(store: LmdbStore) -> str:
    """Stand for every row of every table."""
    digest = blake2b(digest_size=16)
    for table in TABLES:
        for page in row_pages(store._open(), table):
            for key, value in page:
                digest.update(f"{table} {len(key)} {len(value)} ".encode() + key + value)
    return digest.hexdigest()


def digest_of_words(store: LmdbStore) -> str:
    """Stand for what a ledger says of its sources, tasks and outputs; who folds it sets the time of completion."""
    sources = [row._replace(completed=0) for row in store.sources()]
    known = [[row.source_id.hex(), store.pending(row.source_id), len(store.applied(row.source_id))] for row in sources]
    words = [
        [repr(row) for row in sources],
        known,
        [repr(row) for row in store.outputs()],
        [(row.url, row.node.hex(), row.error, row.attempts) for row in store.failures()],
        store.stale_outputs(),
        store.totals(),
        len(store.runs()),
    ]
    return blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def main() -> None:
    """Lives a story and notes what every step left."""
    name, seed, root, notes, *breakage = sys.argv[1:]
    for broken in breakage:
        BREAKAGES[broken]()
    story = STORIES[name](int(seed), root)
    noted = []
    for number, step in enumerate(story.steps()):
        os.write(1, f"begin {number}\n".encode())
        step()
        os.write(1, f"done {number}\n".encode())
        noted.append(story.note())
    Path(notes).write_text(json.dumps({"steps": noted, "memory": story.memory()}), encoding="utf-8")
    for folder in ("ledger", "sidecar"):
        lock = Path(root, folder, LOCK)
        if lock.exists():
            shutil.copyfile(lock, f"{notes}.{LOCK}")
    os._exit(0)  # closing would add nothing that a crash could keep


def _open_lmdb(**changes: Any) -> None:
    opened = lmdb.open
    lmdb.open = lambda path, **options: opened(path, **{**options, **changes})  # type: ignore[assignment]


def _record_first() -> None:
    publish = OutputsStory.publish

    def record_first(self: OutputsStory, leaves: Any) -> None:
        self.store.commit(leaves)
        publish(self, leaves)

    OutputsStory.publish = record_first  # type: ignore[method-assign]


def _forget_fsync(module: Any) -> None:
    """Let a module rename files before their bytes are on the disk; folders it syncs."""

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        @staticmethod
        def fsync(descriptor: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                os.fsync(descriptor)

    module.os = Forgetful()


BREAKAGES: dict[str, Callable[[], None]] = {
    "no sync": partial(_open_lmdb, sync=False),
    "no metasync": partial(_open_lmdb, metasync=False),
    "no fsync of outputs": partial(_forget_fsync, publishing),
    "no fsync of folders": lambda: vars(publishing).update(sync_folder=lambda folder: None),
    "record first": _record_first,
    "no fsync of objects": partial(_forget_fsync, storage_objects),
}
