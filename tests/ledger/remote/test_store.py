"""The remote ledger: the conformance class on one host, and what several hosts see of each other."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import (
    JobMismatchError,
    LedgerDamagedError,
    LedgerNotFoundError,
    LedgerVersionError,
    StorageError,
    UsageError,
)
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.tables import FORMAT, KEY_FORMAT, META, Transaction
from ledgerbeam.ledger.model.claims import Claims, Span, encode_claims
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.job import Job, OnJobChange
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote.apply import KEY_LEDGER
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import decode_control, encode_ledger
from ledgerbeam.ledger.remote.segment import MAGIC, Segment, decode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore, _locked
from ledgerbeam.ledger.worker.sharing import ObjectClaims
from tests.conftest import AzureServer, GcsServer, S3Requests, S3Server
from tests.ledger.builders import ONE, TWO, failure_of, leaf_of, leaves_of_split, plain
from tests.ledger.conformance import LedgerStoreConformance
from tests.ledger.conformance_accounts import AccountsConformance
from tests.ledger.conformance_changes import ChangesConformance
from tests.ledger.stores import begin_at_once, damage_row, finish, numbered, picture, registered, several


class Noted(ObjectFolder):
    """A folder of objects that notes which folders are listed and which objects are read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.listed, self.reads = list[str](), list[str]()

    def names(self, folder: str) -> list[str]:
        self.listed.append(folder)
        return super().names(folder)

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        self.reads += names
        return super().read(names)


class Hosts:
    """Hosts that share nothing but the objects of one ledger."""

    def __init__(self, folder: Path) -> None:
        self.objects = Noted(str(folder / "ledger"))
        self._folder = folder
        self._stores: list[RemoteStore] = []

    def store(self, *sources: Source, **settings: Any) -> RemoteStore:
        """Return the ledger as a host sees it that has never seen it before; it may register sources."""
        store = self.on(self.objects, **settings)
        store.open(create=True)
        if sources:
            store.register(sources)
        return store

    def on(self, objects: ObjectFolder, path: str = "", **settings: Any) -> RemoteStore:
        """Return a host, or another process of one, that is not open yet and reaches the objects in its own way."""
        store = RemoteStore(objects, path or str(self._folder / f"host-{len(self._stores)}"), **settings)
        self._stores.append(store)
        return store

    def launcher(self, *sources: Source, runs: int = 1) -> RemoteStore:
        """Return a host that opens the job `ONE`, begins runs, and registers sources."""
        store = self.store()
        store.open_job(ONE)
        for _ in range(runs):
            store.begin_run({})
        store.register(sources)
        return store

    def segments(self, folder: str = "segments") -> list[Segment]:
        """Return the segments, or the parts of snapshots, by their names."""
        names = [name for name in self.objects.names(folder) if name.endswith(".seg")]
        return [decode_segment(data or b"", name) for name, data in zip(names, self.objects.read(names), strict=True)]

    def manifests(self) -> list[str]:
        return [name for name in self.objects.names("snapshots") if name.endswith(".json")]

    def close(self) -> None:
        for store in self._stores:
            store.close()


class TestRemoteStore(LedgerStoreConformance, ChangesConformance, AccountsConformance):
    """The conformance tests on objects. After each of them every other way to read the ledger must say the same."""

    @pytest.fixture
    def store(self, hosts: Hosts) -> Iterator[RemoteStore]:
        store = hosts.store()
        yield store
        expected = picture(store)
        assert picture(hosts.store()) == expected
        before = hosts.store()
        compact(hosts.store())
        before.refresh()
        assert picture(before) == expected
        assert picture(hosts.store()) == expected
        compact(hosts.store())
        assert picture(hosts.store()) == expected


def sink(hosts: Hosts, **settings: Any) -> RemoteSink:
    return RemoteSink(hosts.objects, **settings)


def test_two_hosts_complete_a_source_together(hosts: Hosts) -> None:
    one, two = hosts.store(), hosts.store()
    source = registered(one)
    first, second, third = leaves_of_split(source, 3)
    assert one.commit([first]).completed == []
    assert two.commit([third, first]).completed == []
    sink(hosts).commit([second])
    assert not any(one.completed_mask([source.id]))
    for store in (one, two):
        store.refresh()
        assert all(store.completed_mask([source.id]))
    assert picture(one) == picture(two)


def test_a_worker_needs_no_sidecar_and_what_it_records_is_seen_after_a_refresh(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    run = store.begin_run({})
    done, failed = several(store, "done", "failed")
    worker = pickle.loads(pickle.dumps(sink(hosts, job=ONE.fingerprint, run=run)))
    assert worker.commit([leaf_of(done)], [failure_of(failed)]).fresh == 1
    assert store.totals().tasks == 0
    store.refresh()
    assert (store.totals().tasks, [row.url for row in store.failures()]) == (1, [failed.url])


def test_a_worker_of_a_job_that_lost_the_ledger_is_told(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    source = registered(store)
    worker = sink(hosts, job=ONE.fingerprint)
    hosts.store().open_job(TWO, "accept")
    with pytest.raises(JobMismatchError, match=TWO.fingerprint):
        worker.commit([leaf_of(source)])


def test_what_an_old_worker_records_after_a_restart_does_not_count_and_its_outputs_are_stale(hosts: Hosts) -> None:
    store = hosts.launcher()
    source = registered(store)
    worker = sink(hosts, job=ONE.fingerprint, run="1")
    other = hosts.store()
    other.open_job(TWO, "restart")
    other.begin_run({})
    other.register([source])
    worker._checked = time.monotonic()  # it has looked just before
    worker.commit([leaf_of(source)])
    for host in (other, hosts.store()):
        host.refresh()
        assert host.pending(source.id) == 1
        assert host.completed_count() == 0
    finished = Leaf(source.id, (), "published", (), 5, 50)
    sink(hosts, job=TWO.fingerprint).commit([finished])
    for host in (other, hosts.store()):
        host.refresh()
        assert host.completed_count() == 1
        assert host.stale_outputs() == [output.name for output in leaf_of(source).outputs]


def test_what_was_on_its_way_when_a_source_was_forgotten_does_not_count(hosts: Hosts) -> None:
    store = hosts.launcher()
    source = registered(store)
    late = sink(hosts, run="1")
    store.commit([leaves_of_split(source, 2)[0]])
    hosts.store().forget("*")
    late.commit([leaves_of_split(source, 2)[1]])
    store.refresh()
    assert (store.pending(source.id), picture(store)) == (1, picture(hosts.store()))
    store.begin_run({})
    store.commit(leaves_of_split(source, 2, content="new"))
    assert store.completed_count() == 1
    assert picture(hosts.store()) == picture(store)


def test_a_late_leaf_of_a_source_that_was_replaced_leaves_a_stale_output(hosts: Hosts) -> None:
    store = hosts.launcher()
    old, new = plain(version="1"), plain(version="2")
    store.register([old])
    late = sink(hosts, run="1")
    store.begin_run({})
    store.register([new])
    store.commit([Leaf(new.id, (), "published", (), 1, 1)])
    late.commit([leaf_of(old)])
    for host in (store, hosts.store()):
        host.refresh()
        assert host.stale_outputs() == [output.name for output in leaf_of(old).outputs]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_tasks_that_contradict_each_other_hold_their_source_open_anywhere(hosts: Hosts, order: tuple[int, ...]) -> None:
    store = hosts.store()
    source = registered(store)
    leaves = [*leaves_of_split(source, 2), leaf_of(source, ((0, 2),), content="other")]
    watching = hosts.store()
    for place in order:
        sink(hosts).commit([leaves[place]])
        watching.refresh()
    for host in (watching, hosts.store()):
        assert host.completed_count() == 0
        (failure,) = host.failures()
        assert failure.reason == "NonDeterministicTaskError"
        assert "forget" in failure.error
    watching.forget(source.url)
    watching.begin_run({})
    watching.commit(leaves_of_split(source, 2))
    assert watching.completed_count() == 1
    assert picture(hosts.store()) == picture(watching)


def test_of_two_launchers_that_make_a_ledger_one_wins(hosts: Hosts) -> None:
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    with pytest.raises(JobMismatchError):
        two.open_job(TWO)
    two.open_job(ONE)
    runs = {one.begin_run({}), two.begin_run({}), one.begin_run({})}
    assert runs == {"000001", "000002", "000003"}


def test_runs_that_begin_at_once_have_numbers_of_their_own(hosts: Hosts) -> None:
    stores = [hosts.store() for _ in range(4)]
    assert sorted(begin_at_once(stores, 5)) == [f"{n:06d}" for n in range(1, 21)]


def test_a_ledger_that_was_deleted_and_made_anew_is_not_mixed_with_what_was_read_of_the_former(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    finish(store, plain())
    path = store._path
    store.close()
    shutil.rmtree(hosts.objects.url)
    hosts.store().open_job(ONE)
    again = hosts.on(hosts.objects, path)
    again.open()
    assert again.status()["sources"] == {"complete": 0, "open": 0, "failed": 0}


class MadeMeanwhile(ObjectFolder):
    """The folder of a ledger that another launcher of this host creates just after the first check for it."""

    def __init__(self, url: str, make: Callable[[], object]) -> None:
        super().__init__(url)
        self._make = [make]

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        found = super().read(names)
        if self._make:
            self._make.pop()()
        return found


def test_the_sidecar_of_a_ledger_made_while_it_is_opened_is_not_thrown_away(hosts: Hosts) -> None:
    maker = hosts.on(hosts.objects)

    def make() -> None:
        maker.open(create=True)
        maker.open_job(ONE)

    late = hosts.on(MadeMeanwhile(hosts.objects.url, make), maker._path)
    late.open(create=True)
    maker.register([plain()])
    late.refresh()
    assert (late.source_count(), late.ledger_id()) == (1, maker.ledger_id())


def test_no_sidecar_is_on_a_network_filesystem(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 1 0:1 / / rw - nfs4 server:/ rw\n")
    monkeypatch.setattr("ledgerbeam.ledger.lmdb.files.MOUNTINFO", str(mounts))
    store = hosts.on(hosts.objects)
    with pytest.raises(UsageError, match=r"network filesystem \(nfs4\)"):
        store.open(create=True)
    assert not (tmp_path / "sidecar").exists()


def open_again(objects: ObjectFolder, path: str, go: threading.Barrier) -> None:
    store = RemoteStore(objects, path)
    go.wait()
    store.open()
    store.refresh()
    store.register([plain(str(os.getpid()))])
    store.close()


def test_processes_that_throw_away_one_sidecar_at_once_use_one_new(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    for attempt in range(1, 6):
        store.parts()[1].write(lambda txn: txn.put(META, KEY_LEDGER, b"another"))
        store.close()
        context = multiprocessing.get_context("fork")
        go = context.Barrier(4)
        args = (hosts.objects, store._path, go)
        processes = [context.Process(target=open_again, args=args) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
        store.open()
        assert store.source_count() == 4 * attempt


def test_who_opens_a_sidecar_keeps_others_out_until_it_is_open_whoever_was_forked_meanwhile(tmp_path: Path) -> None:
    beside = os.open(tmp_path, os.O_RDONLY)
    with _locked(str(tmp_path)):
        with pytest.raises(BlockingIOError):
            fcntl.flock(beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
        places = {int(name): os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
        forked = [os.dup(number) for number, place in places.items() if place == str(tmp_path)]  # it would have these
    fcntl.flock(beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in (beside, *forked):
        os.close(descriptor)


def test_of_a_sidecar_that_is_made_anew_both_files_are_new(hosts: Hosts) -> None:
    """A process with the former file open shares no locks with processes that open the new file."""
    store = hosts.launcher(runs=0)
    store.parts()[1].write(lambda txn: txn.put(META, KEY_LEDGER, b"another"))
    store.close()
    with open(f"{store._path}/data.mdb", "rb") as data, open(f"{store._path}/lock.mdb", "rb") as lock:
        store.open()
        for file in (data, lock):
            assert os.fstat(file.fileno()).st_nlink == 0
    assert sorted(os.listdir(store._path)) == ["data.mdb", "lock.mdb"]


def kinds(hosts: Hosts) -> list[str]:
    """Return what happened to a ledger, in order."""
    names = hosts.objects.names("controls")
    return [decode_control(data or b"", "here").kind for data in hosts.objects.read(names)]


def test_a_job_is_taken_once_and_in_the_way_that_was_asked_for(hosts: Hosts) -> None:
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    two.refresh()
    with pytest.raises(JobMismatchError, match="to: was 'jsonl', is 'tar'"):
        two.open_job(TWO)
    assert kinds(hosts) == []
    two.open_job(TWO, "accept")
    one.open_job(TWO)  # which it has not heard of
    assert (one.job(), kinds(hosts)) == (TWO, ["accept"])
    one.open_job(ONE, "restart")
    two.open_job(ONE, "restart")
    assert (two.job(), kinds(hosts)) == (ONE, ["accept", "restart"])
    one.begin_run({})
    two.begin_run({})
    assert kinds(hosts) == ["accept", "restart", "run", "run"]


@pytest.mark.parametrize("way", ["accept", "restart"])
def test_of_two_that_take_a_ledger_one_does(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, way: OnJobChange) -> None:
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    two.refresh()
    create = ObjectFolder.create

    def overtaken(objects: ObjectFolder, name: str, data: bytes) -> bool:
        monkeypatch.undo()
        two.open_job(TWO, way)
        return create(objects, name, data)

    monkeypatch.setattr(ObjectFolder, "create", overtaken)
    one.open_job(TWO, way)
    assert (one.job(), kinds(hosts)) == (TWO, [way])


def test_who_finds_a_ledger_that_was_just_made_takes_it_as_it_is_by_now(hosts: Hosts) -> None:
    one, two, three = hosts.store(), hosts.store(), hosts.store()
    one.open_job(ONE)
    one.open_job(TWO, "accept")
    two.open_job(TWO)
    assert (two.job(), two.ledger_id(), kinds(hosts)) == (TWO, one.ledger_id(), ["accept"])
    with pytest.raises(JobMismatchError, match="to: was 'tar', is 'jsonl'"):
        three.open_job(ONE)


def test_who_cannot_tell_whether_another_made_the_ledger_first_reads_whose_it_is(hosts: Hosts) -> None:
    class Late(ObjectFolder):
        """Does not decide which creator is first, and another one writes later."""

        exclusive = False

        def create(self, name: str, data: bytes) -> bool:
            return super().create(name, encode_ledger("ab" * 16, TWO))

    store = hosts.on(Late(hosts.objects.url))
    store.open(create=True)
    with pytest.raises(JobMismatchError, match="to: was 'tar', is 'jsonl'"):
        store.open_job(ONE)
    assert (store.job(), store.ledger_id()) == (TWO, "ab" * 16)


def test_an_impossible_run_is_refused_before_anything_is_asked(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    hosts.objects.listed.clear()
    with pytest.raises(UsageError, match="the info of a run cannot be recorded"):
        store.begin_run({"host": b"bytes"})
    assert hosts.objects.listed == []


def test_what_others_have_recorded_meanwhile_is_forgotten_and_withdrawn_too(hosts: Hosts) -> None:
    one, two = hosts.store(), hosts.store()
    one.register([plain()])
    two.register([plain("b")])
    assert one.forget("*") == [plain().url, plain("b").url]
    two.refresh()
    two.commit([leaf_of(plain())])
    assert one.withdraw([(plain().id, [node_id(plain().id, ())])]) == 1


SIDECARS: dict[str, tuple[bool, Callable[[Hosts, Transaction], object]]] = {
    "of this ledger": (True, lambda hosts, txn: None),
    "that does not say of which": (True, lambda hosts, txn: txn.delete(META, KEY_LEDGER)),
    "of another ledger": (False, lambda hosts, txn: txn.put(META, KEY_LEDGER, b"another")),
    "of an older form": (False, lambda hosts, txn: txn.put(META, KEY_FORMAT, str(FORMAT - 1).encode())),
    "of a newer form": (False, lambda hosts, txn: txn.put(META, KEY_FORMAT, str(FORMAT + 1).encode())),
    "that is damaged": (False, lambda hosts, txn: damage_row(txn, META, b"mark")),
    "of a ledger that was deleted": (False, lambda hosts, txn: shutil.rmtree(hosts.objects.url)),
}


@pytest.mark.parametrize("kind", SIDECARS)
def test_a_sidecar_is_made_anew_unless_it_is_of_this_ledger_and_of_this_form(hosts: Hosts, kind: str) -> None:
    is_kept, change = SIDECARS[kind]
    store = hosts.launcher(runs=0)
    finish(store, plain())
    expected = picture(store)

    def mark(txn: Transaction) -> None:
        txn.put(META, b"mark", b"here")
        change(hosts, txn)

    store.parts()[1].write(mark)
    store.close()
    again = hosts.on(hosts.objects, store._path)
    again.open(create=True)
    with again.parts()[1].read() as txn:
        assert (txn.get(META, b"mark") is not None) == is_kept
    if "deleted" in kind:
        assert (again.source_count(), again.job(), again.runs()) == (0, None, [])
    else:
        assert picture(again) == expected
        assert (again.history(), again.ledger_id()) == (store.history(), hosts.store().ledger_id())


def test_a_store_that_was_opened_twice_and_closed_leaves_nothing_open(hosts: Hosts) -> None:
    hosts.store().open_job(ONE)
    before = sorted(os.listdir("/proc/self/fd"))
    store = hosts.on(hosts.objects)
    for _ in range(2):
        store.open()
    store.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_store_that_does_not_open_leaves_the_sidecar_of_another_ledger_closed(hosts: Hosts, tmp_path: Path) -> None:
    class Silent(ObjectFolder):
        """Does not answer the second request."""

        asked = 0

        def read(self, names: Sequence[str]) -> list[bytes | None]:
            self.asked += 1
            if self.asked > 1:
                raise StorageError("the store does not answer")
            return super().read(names)

    store = hosts.launcher(runs=0)
    store.parts()[1].write(lambda txn: txn.put(META, KEY_LEDGER, b"another"))
    store.close()
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageError, match="does not answer"):
        RemoteStore(Silent(hosts.objects.url), store._path).open()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_job_that_another_process_of_the_host_takes_in_meanwhile_is_not_missed(hosts: Hosts, tmp_path: Path) -> None:
    beside = hosts.on(hosts.objects, str(tmp_path / "shared"))
    looks: list[Job | None] = []

    class Slow(RemoteStore):
        """Once it has looked for the job twice, another process takes everything in."""

        def job(self) -> Job | None:
            looks.append(super().job())
            if len(looks) == 2:
                beside.open()
            return looks[-1]

    store = Slow(hosts.objects, str(tmp_path / "shared"))
    store.open(create=True)
    launcher = hosts.launcher()
    store.open_job(ONE)
    assert looks[:2] == [None, None]
    assert (store.job(), store.ledger_id()) == (ONE, launcher.ledger_id())
    store.close()


def test_a_store_in_a_forked_process_waits_for_no_thread_of_its_parent_and_has_a_name_of_its_own(hosts: Hosts) -> None:
    store = hosts.store()
    for name in ("first", "second"):
        store.register([plain(name)])
    held = store._lock
    assert held.acquire(timeout=1)
    store.forget_parent()
    assert store._environment is None
    store.register([plain("third")])
    held.release()
    writers = [name.split("/")[-1].rpartition("-")[0] for name in hosts.objects.names("segments")]
    assert sorted(writers.count(writer) for writer in set(writers)) == [1, 2]


def test_a_sidecar_of_a_ledger_that_is_still_to_be_made_is_kept(hosts: Hosts) -> None:
    store = hosts.store()
    with pytest.raises(LedgerNotFoundError, match="it does not exist yet"):
        store.ledger_id()
    store.parts()[1].write(lambda txn: txn.put(META, b"mark", b"here"))
    store.close()
    hosts.store().open_job(ONE)
    again = hosts.on(hosts.objects, store._path)
    again.open()
    with again.parts()[1].read() as txn:
        assert txn.get(META, b"mark") == b"here"
    assert (again.job(), again.ledger_id()) == (ONE, hosts.store().ledger_id())


def test_there_is_no_ledger_where_none_was_made(hosts: Hosts) -> None:
    with pytest.raises(LedgerNotFoundError, match=r"job\.json"):
        hosts.on(hosts.objects).open()


def test_a_reader_that_is_overtaken_by_a_compaction_sees_everything(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    sources = [plain(f"s{n}") for n in range(40)]
    for source in sources:
        finish(store, source)

    class Overtaken(ObjectFolder):
        """Compacts the ledger after the segments were listed, once."""

        done = False

        def names(self, folder: str) -> list[str]:
            listed = super().names(folder)
            if not self.done:
                Overtaken.done = True
                assert compact(store).replaced > 40
            return listed

    reader = hosts.on(Overtaken(hosts.objects.url))
    reader.open()
    assert reader.completed_count() == 40


def test_compactions_that_overlap_lose_nothing(hosts: Hosts) -> None:
    one = hosts.launcher(runs=0)
    sources = numbered(one, 6)
    one.commit([leaf_of(sources[0]), leaves_of_split(sources[1], 2)[0]])
    expected = picture(one)
    two = hosts.store()

    class Slow(ObjectFolder):
        """Another host compacts just before this one makes its snapshot whole."""

        def create(self, name: str, data: bytes) -> bool:
            if name.endswith(".json"):
                compact(two)
            return super().create(name, data)

    compact(hosts.on(Slow(hosts.objects.url)))
    assert len(hosts.manifests()) == 2
    for host in (hosts.store(), one, two):
        host.refresh()
        assert picture(host) == expected
    compact(one)
    assert len(hosts.manifests()) == 1
    assert picture(hosts.store()) == expected


DAMAGE = {
    "cut": lambda data: data[:-1],
    "empty": lambda _: b"",
    "one bit": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "not ours": lambda data: b"x" * len(data),
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("folder", ["segments", "snapshots", "controls"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_an_object_that_does_not_read_is_named_and_not_taken_in(hosts: Hosts, folder: str, damage: str) -> None:
    store = hosts.launcher()
    finish(store, plain())
    if folder == "snapshots":
        compact(store)
    name = hosts.objects.names(folder)[-1]
    path = Path(hosts.objects.url) / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    if folder == "controls" and damage in ("one bit",):
        path.write_bytes(b'{"format":1}')
    with pytest.raises(LedgerDamagedError, match=re.escape(str(path))):
        hosts.store()


def test_a_segment_of_a_newer_version_is_refused(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    finish(store, plain())
    path = Path(hosts.objects.url) / hosts.objects.names("segments")[0]
    data = bytearray(path.read_bytes())
    data[len(MAGIC) - 1] += 1
    path.write_bytes(data)
    with pytest.raises(LedgerVersionError, match="newer"):
        hosts.store()


def test_strange_names_are_not_ours_and_are_left_alone(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    finish(store, plain())
    for name in ("segments/readme.txt", "segments/000001/x.seg", "snapshots/a.json", "controls/1.json", "other/x"):
        hosts.objects.create(name, b"not ours")
    assert hosts.store().completed_count() == 1
    compact(hosts.store())
    assert hosts.objects.exists("segments/readme.txt")


@pytest.mark.s3
def test_the_ledger_works_on_s3(tmp_path: Path, s3: S3Server, s3_requests: S3Requests) -> None:
    objects = ObjectFolder(f"s3://{s3.bucket()}/a/ledger", s3.options)
    one, two = (RemoteStore(objects, str(tmp_path / name)) for name in ("one", "two"))
    one.open(create=True)
    one.open_job(ONE)
    one.begin_run({})
    sources = numbered(one, 50)
    worker = RemoteSink(objects, job=ONE.fingerprint, run="1")
    worker.commit([leaf_of(source) for source in sources[:30]])
    s3_requests.take()
    worker.commit([leaf_of(source) for source in sources[30:]])
    assert s3_requests.take() == ["put_object"]
    two.open()
    assert two.completed_count() == 50
    compact(two)
    one.refresh()
    assert picture(one) == picture(two)
    s3_requests.take()
    one.refresh()
    assert s3_requests.take() == ["list_objects_v2"]
    one.close()
    two.close()


def claims_of(store: RemoteStore, host: str) -> ObjectClaims:
    return ObjectClaims(store, store.begin_run({}), host, lambda run: run == "000001")


@pytest.fixture
def pair(hosts: Hosts) -> tuple[RemoteStore, ObjectClaims, RemoteStore, ObjectClaims]:
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    two.open_job(ONE)
    return one, claims_of(one, "a host/1"), two, claims_of(two, "b")


def test_other_claims_are_seen_after_a_refresh(
    hosts: Hosts, pair: tuple[RemoteStore, ObjectClaims, RemoteStore, ObjectClaims]
) -> None:
    one, mine, two, others = pair
    assert mine.names() == others.names() == []
    mine.put(b"first")
    others.put(b"second")
    one.refresh()
    assert mine.names() == ["claims/000002/b.json"]
    assert mine.read(mine.names()) == [b"second"]
    two.refresh()
    assert others.names() == ["claims/000001/a-host-1.json"]
    mine.put(b"third")
    assert others.read(others.names()) == [b"third"]
    mine.remove()
    assert others.read(others.names()) == [None]
    two.refresh()
    assert others.names() == []
    assert not mine.has_died(Claims("000001", "", 1, 1.0))
    assert mine.has_died(Claims("000002", "", 1, 1.0))


@pytest.mark.parametrize(
    ("host", "part"), [("x" * 50, "x" * 40), ("h\u00f6st/of  one", "h-st-of-one"), ("a.B-9_z", "a.B-9-z"), ("", "")]
)
def test_a_host_of_any_name_has_a_claim_whose_name_is_short_and_plain(hosts: Hosts, host: str, part: str) -> None:
    store = hosts.store()
    mine = claims_of(store, host)
    mine.put(b"mine")
    assert hosts.objects.names("claims") == [f"claims/000001/{part}.json"]
    store.refresh()
    assert mine.names() == []


@pytest.mark.parametrize("data", [b"", b"damaged", encode_claims(Claims("1", "", 1, 9.0, [Span(b"s" * 16, 0, 1)]))])
def test_claims_are_no_part_of_the_ledger(hosts: Hosts, data: bytes) -> None:
    store = hosts.launcher(runs=0)
    finish(store, plain("a"))
    before = picture(store)
    hosts.objects.replace("claims/000009/x.json", data)
    hosts.objects.replace("claims/odd", data)
    store.refresh()
    assert picture(store) == before == picture(hosts.store())


def test_a_compaction_removes_those_of_the_dead(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    source = registered(store, "a")
    store.commit([leaf_of(source)])
    hosts.objects.replace("claims/000009/x.json", b"old")
    assert compact(store).replaced
    assert hosts.objects.names("claims") == []


@pytest.fixture(params=["gcs", "azure"])
def objects(request: pytest.FixtureRequest) -> ObjectFolder:
    server: GcsServer | AzureServer = request.getfixturevalue(request.param)
    return ObjectFolder(f"{server.place()}/a/ledger", server.options)


@pytest.mark.stores
class TestRemoteStores(LedgerStoreConformance):
    """The conformance tests on objects of either store, which then say the same to a host that is new to them."""

    @pytest.fixture
    def store(self, objects: ObjectFolder, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(objects, str(tmp_path / "host"))
        store.open(create=True)
        yield store
        other = RemoteStore(objects, str(tmp_path / "other"))
        other.open(create=True)
        assert picture(other) == picture(store)
        for host in (store, other):
            host.close()


@pytest.mark.stores
def test_hosts_and_workers_share_a_ledger(objects: ObjectFolder, tmp_path: Path) -> None:
    one, two, three = (RemoteStore(objects, str(tmp_path / name)) for name in ("one", "two", "three"))
    one.open(create=True)
    one.open_job(ONE)
    one.begin_run({})
    sources = [plain(f"s{n}") for n in range(50)]
    one.register(sources)
    worker = RemoteSink(objects, job=ONE.fingerprint, run="1")
    worker.commit([leaf_of(source) for source in sources[:30]])
    worker.commit([leaf_of(source) for source in sources[30:]])
    two.open()
    assert two.completed_count() == 50
    compact(two)
    assert [name for name in objects.names("segments") if "/t-" in name] == []
    one.refresh()
    three.open()
    assert picture(one) == picture(two) == picture(three)
    for host in (one, two, three):
        host.close()


@pytest.mark.stores
def test_runs_that_begin_at_once_on_other_stores_have_own_numbers(objects: ObjectFolder, tmp_path: Path) -> None:
    stores = [RemoteStore(objects, str(tmp_path / f"host-{n}")) for n in range(3)]
    for store in stores:
        store.open(create=True)
        store.open_job(ONE)
    assert sorted(begin_at_once(stores, 4)) == [f"{n:06d}" for n in range(1, 13)]
    for store in stores:
        store.close()
