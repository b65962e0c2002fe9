"""Ways to break the ledger, each with the check that must notice it.

    python -m tests.fault.ledger_mutants MUTANT CHECK

A process breaks itself and then runs one check of the suite; it must fail. Unbroken, every check passes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lmdb
import pytest

from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage import objects as io_objects
from ledgerbeam.io.storage import publish as io_publish
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb import commit as lmdb_commit
from ledgerbeam.ledger.lmdb import failures as lmdb_failures
from ledgerbeam.ledger.lmdb.environment import Environment
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.counting import Entry
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.ledger.remote import apply as sidecars
from ledgerbeam.ledger.remote import compaction, registration
from ledgerbeam.ledger.remote import replay as folding
from ledgerbeam.ledger.remote import segment as segments
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.snapshot import UnnamedOutputs
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.fuzz import fuzz
from tests.fault.simulation import simulate
from tests.ledger.builders import filtered_leaf, leaf_of, leaves_of_split, plain

SEEDS = 25
STEPS = 150
FUZZ_INPUTS = 3000


# Checks: each raises, or ends the process with another status than 0


def conformance(names: str) -> None:
    """Run the tests of the conformance class whose names fit, on LMDB."""
    options = ["-q", "-n0", "-x", "-p", "no:cacheprovider", "--hypothesis-profile", "first failure"]
    status = pytest.main([*options, "tests/ledger/lmdb/test_store.py", "-k", names])
    if status:
        raise AssertionError(f"conformance: {status}")


def simulation(first: int = 0) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for seed in range(first, first + SEEDS):
            simulate(seed, "remote", Path(folder) / str(seed), STEPS)


def fuzzing() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        fuzz(FUZZ_INPUTS, 1, Path(folder), 0.5)


def checksums() -> None:
    """Check that a flipped bit of a segment is detected."""
    data = bytearray(segments.encode_segment(segments.Segment(1, 1.0, job="a")))
    data[data.index(b'"a"') + 1] ^= 1
    with pytest.raises(Exception, match="checksum"):
        segments.decode_segment(bytes(data), "here")


def durability() -> None:
    """Whatever is recorded or published asks the disk: the file first, then its folder."""
    with tempfile.TemporaryDirectory() as folder:
        for write in (lambda: ObjectFolder(folder).create("a", b"data"), lambda: publish_bytes(f"{folder}/b", b"data")):
            synced = _synced(write)
            if synced != ["file", "folder"]:
                raise AssertionError(f"synced {synced}")
        store = LmdbStore(f"{folder}/ledger")
        store.open(create=True)
        flags = store._open()._env.flags()
        store.close()
        if not (flags["sync"] and flags["metasync"]):
            raise AssertionError(f"LMDB does not sync: {flags}")


def _synced(write: Callable[[], object]) -> list[str]:
    found: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        found.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        real(descriptor)

    with mock.patch("os.fsync", note):
        write()
    return found


@contextlib.contextmanager
def remote_ledger() -> Iterator[tuple[ObjectFolder, RemoteStore, Callable[[], RemoteStore]]]:
    """Return the objects of a new remote ledger, the store of its job, and what opens it as a new host does."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, contextlib.ExitStack() as opened:
        objects = ObjectFolder(f"{folder}/ledger")
        writer = RemoteStore(objects, f"{folder}/writer")
        opened.callback(writer.close)
        writer.open(create=True)
        writer.open_job(Job("map", {}))

        def newcomer() -> RemoteStore:
            reader = RemoteStore(objects, f"{folder}/reader")
            opened.callback(reader.close)
            reader.open()
            return reader

        yield objects, writer, newcomer


def folding_once() -> None:
    """Check that folded objects are not read again."""
    with remote_ledger() as (_, writer, newcomer):
        writer.register([plain()])
        reader = newcomer()
        with mock.patch.object(ObjectFolder, "read", lambda _, names: [None for _ in names]):
            reader.refresh()


def unknown_sources() -> None:
    """Check that a leaf of an unregistered source does not count, and is no failure."""
    with remote_ledger() as (objects, store, _):
        RemoteSink(objects).commit(leaves_of_split(plain("unknown"), 2))
        store.refresh()
        found = (store.status()["sources"], list(store.failures()))
        if found != ({"complete": 0, "open": 0, "failed": 0}, []):
            raise AssertionError(f"an unknown source made {found}")


def broken_compaction() -> None:
    """Check that a compaction that ends before or after its manifest loses no leaf."""
    for is_broken in (True, False):
        with remote_ledger() as (_, writer, newcomer):
            writer.register([plain()])
            writer.commit(leaves_of_split(plain(), 3)[:1])
            stop = mock.patch.object(folding, "encode_manifest", side_effect=KeyboardInterrupt)
            with stop if is_broken else contextlib.nullcontext(), contextlib.suppress(KeyboardInterrupt):
                compaction.compact(writer)
            pending = newcomer().pending(plain().id)
            if pending != 2:
                raise AssertionError(f"{pending} live tasks, expected 2")


def moving_sidecar() -> None:
    """Check that a source replaced while a snapshot is written counts alike for new hosts and others."""
    with remote_ledger() as (_, writer, newcomer):
        writer.begin_run({})
        writer.register([plain(), plain("b")])
        writer.begin_run({})
        writer.register([plain("b", "2")])
        writer.commit(leaves_of_split(plain(), 2)[:1])
        real = ObjectFolder.create

        def create(of: ObjectFolder, name: str, data: bytes) -> bool:
            created = real(of, name, data)
            if name.endswith("/000001.seg"):
                writer.begin_run({})
                writer.register([plain(version="2")])
            return created

        with mock.patch.object(ObjectFolder, "create", create):
            compaction.compact(writer)
        stale = newcomer().stale_outputs()
        if stale:
            raise AssertionError(f"{stale} may be deleted before what replaces them is there")


def deletions() -> None:
    """Return a host learns from snapshots what was deleted of what it had seen superseded, or reads in another one."""
    with remote_ledger() as (objects, writer, newcomer), tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        writer.begin_run({})
        writer.register([plain()])
        writer.commit([leaf_of(plain())])
        writer.begin_run({})
        writer.register([plain(version="2")])
        writer.commit([filtered_leaf(plain(version="2"))])
        host = newcomer()
        copy = ObjectFolder(f"{folder}/ledger")
        for name in objects.names(""):
            copy.create(name, objects.read([name])[0] or b"")
        writer.drop_stale(host.stale_outputs())
        compaction.compact(writer)
        # Made at the same time by who did not know, of an object that the other one has not seen.
        other = RemoteStore(copy, f"{folder}/other")
        other.open()
        other.register([plain("b")])
        compaction.compact(other)
        other.close()
        both = ObjectFolder(f"{folder}/both")
        for objects_of in (objects, copy):
            for name in objects_of.names(""):
                both.create(name, objects_of.read([name])[0] or b"")
        late = RemoteStore(both, f"{folder}/late")
        late.open()
        writer.register([plain("c")])
        compaction.compact(writer)
        host.refresh()
        found = {name: store.stale_outputs() for name, store in (("a host", host), ("a late host", late))}
        late.close()
        if any(found.values()):
            raise AssertionError(f"out of date, and deleted: {found}")


CHECKS: dict[str, Callable[[], None]] = {
    "repetition": lambda: conformance("again or any_order or twice"),
    "completion": lambda: conformance("complete or any_order"),
    "purity": lambda: conformance("error"),
    "simulation": simulation,
    "folding once": folding_once,
    "broken compaction": broken_compaction,
    "moving sidecar": moving_sidecar,
    "deletions": deletions,
    "unknown sources": unknown_sources,
    "fuzzing": fuzzing,
    "checksums": checksums,
    "durability": durability,
}


# Mutants: each gives what patches the library


def _patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Any:
    return mock.patch.object(owner, name, wrap(getattr(owner, name)))


def _returns(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, return_value=value)


def _no_fsync(module: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(module, "os", _Careless())


class _Careless:
    """The module `os`, whose fsync does nothing."""

    def __getattr__(self, name: str) -> Any:
        return (lambda _: None) if name == "fsync" else getattr(os, name)


def _drop_a_count() -> Any:
    def wrap(entries: Any) -> Any:
        def dropped(*args: Any, **named: Any) -> tuple[Entry, ...]:
            group = entries(*args, **named)
            return (*group[:-2], group[-1]) if len(group) > 2 else group

        return dropped

    return _patch(lmdb_commit, "entries", wrap)


def _count_duplicates() -> Any:
    def wrap(_: Any) -> Any:
        def fold(pending: int, __: Any, group: Any) -> tuple[int, list[Entry]]:
            return max(0, pending + sum(entry.delta for entry in group) - 1), list(group)

        return fold

    return _patch(lmdb_commit, "fold", wrap)


def _manifest_first() -> Any:
    """Create the manifest of a snapshot before its parts."""

    class Early(compaction._Snapshot):
        def add(self, segment: Any) -> None:
            self._late = [*getattr(self, "_late", []), segment]
            self.parts[f"{self._name}/{len(self._late):06d}.seg"] = segments.checksum_of(
                segments.encode_segment(segment)
            )

        def finish(self, environment: Any, covers: Any) -> None:
            super().finish(environment, covers)
            self.parts = {}
            for late in getattr(self, "_late", []):
                super().add(late)

    return mock.patch.object(compaction, "_Snapshot", Early)


def _delete_first() -> Any:
    """Delete what a snapshot covers before its manifest exists."""

    class Hasty(compaction._Snapshot):
        def finish(self, environment: Any, covers: Any) -> None:
            self._objects.delete(covers)
            super().finish(environment, covers)

    return mock.patch.object(compaction, "_Snapshot", Hasty)


def _no_moment() -> Any:
    """Let each look of a compaction at the sidecar see what was folded since the one before."""
    real = RemoteStore.parts

    class Looks:
        """A transaction that reads each time what was committed last."""

        def __init__(self, environment: Environment) -> None:
            self._environment = environment

        def __getattr__(self, name: str) -> Callable[..., Any]:
            def look(*args: Any, **options: Any) -> Any:
                with self._environment.read() as txn:
                    found = getattr(txn, name)(*args, **options)
                    return iter([*found]) if isinstance(found, Iterator) else found

            return look

    class Restless:
        def __init__(self, environment: Environment) -> None:
            self._environment, self.write = environment, environment.write

        @contextlib.contextmanager
        def read(self) -> Iterator[Looks]:
            yield Looks(self._environment)

    def parts(store: RemoteStore) -> Any:
        objects, environment = real(store)
        return objects, Restless(environment)

    return mock.patch.object(RemoteStore, "parts", parts)


def _tasks_before_sources() -> Any:
    kinds = {"s": folding._TASKS, "t": folding._SOURCES, "z": folding._SWEEP}
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(folding, "_KINDS", kinds))
    stack.enter_context(mock.patch.object(sidecars, "lacks_sources", return_value=False))
    return stack


def _unknown_sources_fail() -> Any:
    real = sidecars.fold_segment

    def fold(txn: Any, *args: Any, **options: Any) -> list[Leaf]:
        lost = real(txn, *args, **options)
        for leaf in lost:
            failure = Failure(leaf.source_id, leaf.lineage, "task", "reason")
            row = lmdb_failures.failure_row(failure, lmdb_failures.Stamp(0, 0.0))
            txn.put("failed", leaf.source_id + leaf.source_id, encode(row))
        return lost

    return mock.patch.object(sidecars, "fold_segment", fold)


def _set_no_cutoff(real: Any) -> Any:
    return lambda txn, key, number: None if key == b"cutoff" else real(txn, key, number)


def _open_without_sync(real: Any) -> Any:
    return lambda *words, **named: real(*words, **{**named, "sync": False})


MUTANTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "LMDB does not sync": ("durability", lambda: _patch(lmdb, "open", _open_without_sync)),
    "objects are not synced": ("durability", _no_fsync(io_objects)),
    "folders of objects are not synced": ("durability", _returns(io_objects, "sync_folder", None)),
    "outputs are not synced": ("durability", _no_fsync(io_publish)),
    "a lineage count is dropped": ("completion", _drop_a_count),
    "a duplicate is counted twice": ("repetition", _count_duplicates),
    "results are not compared": ("purity", _returns(lmdb_commit._SourceCommit, "_compare_outputs", True)),
    "cutoffs are ignored": ("simulation", _returns(registration, "cutoffs", (0, 0))),
    "the folded mark is not written": ("folding once", _returns(registration, "mark_folded", None)),
    "the manifest is written before its parts": ("simulation", _manifest_first),
    "covered objects are deleted before the manifest": ("broken compaction", _delete_first),
    "open leaves are left out of a snapshot": ("broken compaction", _returns(compaction, "_open_leaves", ())),
    "what a snapshot does not name stays": ("deletions", _returns(UnnamedOutputs, "drop_unnamed", None)),
    "a snapshot does not repeat deletions": ("deletions", _returns(compaction, "_deletions", ())),
    "a snapshot is of several moments": ("moving sidecar", _no_moment),
    "tasks are folded before their sources": ("simulation", _tasks_before_sources),
    "a restart does not drop what is late": ("simulation", lambda: _patch(sidecars, "_put_number", _set_no_cutoff)),
    "checksums are not verified": (
        "checksums",
        lambda: mock.patch.object(segments, "unseal", lambda data, _: data[32:]),
    ),
    "leaves of unknown sources are kept as failures": ("unknown sources", _unknown_sources_fail),
}


def main() -> int:
    """Break this process and run a check. Returns 0 if the check noticed nothing, 1 if it did."""
    mutant, check = sys.argv[1:]
    with MUTANTS[mutant][1]() if mutant else contextlib.nullcontext():
        try:
            CHECKS[check]()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - what a broken ledger raises
            print(f"{type(error).__name__}: {error}"[:500])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
