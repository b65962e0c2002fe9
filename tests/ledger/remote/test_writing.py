"""Writing to a remote ledger by a store and by a worker's sink: no empty segments, the right numbers, the own job."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from ledgerbeam.errors import (
    JobMismatchError,
    LedgerDamagedError,
    LedgerNotFoundError,
    NonDeterministicTaskError,
    UsageError,
)
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import SetUps, Withdrawn, WorkTime
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.remote import sink as remote_sink
from ledgerbeam.ledger.remote import store as remote_store
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import Control, decode_control, encode_control
from ledgerbeam.ledger.remote.registration import highest_number
from ledgerbeam.ledger.remote.segment import Segment, create_own, decode_segment, encode_segment
from ledgerbeam.ledger.remote.sink import CHECK_SECONDS, RemoteSink
from ledgerbeam.ledger.remote.store import writer_name
from tests.ledger.builders import ONE, TWO, counted_leaf, failure_of, leaf_of, leaves_of_split, mark_of, plain
from tests.ledger.conformance import CHANGES
from tests.ledger.remote.test_store import Hosts, Noted
from tests.ledger.stores import fold, picture


def test_who_knows_the_job_of_a_ledger_makes_no_other_in_its_place(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    hosts.objects.delete(["job.json"])
    store.open_job(ONE)
    assert hosts.objects.names("") == []


def test_what_changes_nothing_writes_nothing(hosts: Hosts) -> None:
    store = hosts.launcher(plain(), runs=0)
    before = hosts.objects.names("")
    store.register([])
    store.register([plain()])
    store.drop_stale([])
    store.forget_sources([])
    assert store.forget("nothing like it") == []
    store.open_job(ONE)
    store.refresh()
    assert hosts.objects.names("") == before


@pytest.mark.parametrize("change", CHANGES)
def test_a_read_only_store_refuses_changes_and_sees_those_of_others(hosts: Hosts, change: str) -> None:
    store, looking = hosts.store(), hosts.store(read_only=True)
    store.open_job(ONE)
    store.begin_run({})
    store.register([plain()])
    looking.refresh()
    before, names = picture(looking), hosts.objects.names("")
    for reader in (looking, pickle.loads(pickle.dumps(looking))):
        with pytest.raises(UsageError, match="read only"):
            CHANGES[change](reader)
        assert (picture(reader), hosts.objects.names("")) == (before, names)
    CHANGES[change](store)
    assert len(hosts.objects.names("")) == len(names) + 1
    looking.refresh()
    assert picture(looking) == picture(store)


def test_a_store_that_was_opened_to_look_does_not_make_a_ledger(hosts: Hosts) -> None:
    with pytest.raises(UsageError, match="read only"):
        hosts.store(read_only=True).open_job(ONE)
    assert hosts.objects.names("") == []


def test_a_store_records_for_its_own_run_or_else_for_the_newest(hosts: Hosts) -> None:
    one, two, nobody = hosts.store(), hosts.store(), hosts.store()
    one.begin_run({})
    two.begin_run({})
    one.refresh()
    one.register([plain("one")])
    copy = pickle.loads(pickle.dumps(one))
    copy.register([plain("copy")])
    two.register([plain("two")])
    nobody.refresh()
    nobody.register([plain("nobody")])
    numbers = {segment.sources[0].url: segment.number for segment in hosts.segments()}
    assert numbers == {plain(name).url: n for name, n in {"one": 1, "copy": 1, "two": 2, "nobody": 2}.items()}
    copy.close()


def test_each_segment_says_for_which_job_it_was_written(hosts: Hosts) -> None:
    store = hosts.store(plain("before"))
    store.open_job(ONE)
    store.register([plain()])
    assert [segment.job for segment in hosts.segments()] == [None, ONE.fingerprint]


def test_leaves_that_are_refused_are_not_written_and_the_rest_is(hosts: Hosts) -> None:
    store = hosts.store(plain(), plain("b"), plain("c"))
    store.commit(leaves_of_split(plain(), 2)[:1])
    wrong = leaf_of(plain(), ((0, 2),), content="other")
    before = hosts.objects.names("segments")
    with pytest.raises(NonDeterministicTaskError):
        store.commit([wrong])
    assert hosts.objects.names("segments") == before, "nothing is left of it"
    for leaves, failures in (([leaf_of(plain("b"))], []), ([], [failure_of(plain("c"))])):
        with pytest.raises(NonDeterministicTaskError):
            store.commit([wrong, *leaves], failures)
    news = hosts.segments()[len(before) :]
    assert [(list(segment.leaves), len(segment.failures)) for segment in news] == [([leaf_of(plain("b"))], 0), ([], 1)]
    assert picture(hosts.store()) == picture(store)


def test_a_writer_has_a_name_that_fits_the_name_of_an_object(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="ho_st/é." + "x" * 300))
    names = {writer_name() for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch(rf"ho-st--\.x{{32}}-{os.getpid()}-[0-9a-f]{{12}}", name) for name in names)
    store = hosts.store(plain())
    store.register([plain("b")])
    assert hosts.store().source_count() == 2
    first, second = hosts.objects.names("segments")
    assert (first[-11:], second[-11:]) == ("-000001.seg", "-000002.seg")
    assert first[:-11] == second[:-11]


def test_a_store_whose_object_is_not_made_has_not_changed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.store(plain())
    before = picture(store)
    seen: list[tuple[str, int]] = []

    def reached(point: str) -> None:
        seen.append((point, len(hosts.objects.names("segments"))))

    monkeypatch.setattr(remote_store, "fault_point", reached)
    store.commit(leaves_of_split(plain(), 2)[:1])
    assert seen == [("record.before", 1), ("record.after", 2)]

    def fail(name: str, data: bytes) -> bool:
        raise ConnectionError("no answer")

    before = picture(store)
    with monkeypatch.context() as patched:
        patched.setattr(hosts.objects, "create", fail)
        with pytest.raises(OSError, match="no answer"):
            store.commit(leaves_of_split(plain(), 2)[1:])
    assert picture(store) == before


def test_a_commit_is_refused_once_the_ledger_was_taken(hosts: Hosts) -> None:
    store = hosts.launcher(plain(), runs=0)
    hosts.store().open_job(TWO, "accept")
    names = hosts.objects.names("")
    for act in (lambda: store.commit([leaf_of(plain())]), lambda: store.begin_run({})):
        with pytest.raises(JobMismatchError, match=TWO.fingerprint):
            act()
    assert hosts.objects.names("") == names


def test_a_store_commits_for_the_job_that_it_was_made_for_wherever_it_travels(hosts: Hosts) -> None:
    hosts.store().open_job(ONE)
    own, other = (hosts.store(job=job.fingerprint) for job in (ONE, TWO))
    own.register([plain()])
    for store in (other, pickle.loads(pickle.dumps(other))):
        assert store.url == hosts.objects.url
        with pytest.raises(JobMismatchError, match=f"{hosts.objects.url}.*{ONE.fingerprint}"):
            store.commit([leaf_of(plain())])
        store.close()
    assert own.commit([leaf_of(plain())]).completed == [plain().id]


def test_a_ledger_that_is_deleted_as_it_is_made_is_told(hosts: Hosts) -> None:
    class Gone(ObjectFolder):
        """Loses created objects."""

        exclusive = True

        def create(self, name: str, data: bytes) -> bool:
            return True

    class Late(Gone):
        """Does not decide which creator is first either."""

        exclusive = False

    for kind in (Gone, Late):
        store = hosts.on(kind(hosts.objects.url))
        store.open(create=True)
        with pytest.raises(LedgerNotFoundError, match=r"job\.json was deleted just after its creation"):  # noqa: PT012
            store.open_job(ONE)
            store.begin_run({})
        assert store.runs() == []
        store.close()


def test_a_new_ledger_is_made_and_its_first_run_begun_with_five_requests(hosts: Hosts) -> None:
    asked: list[str] = []

    class Counted(ObjectFolder):
        """Records the requests."""

        def names(self, folder: str) -> list[str]:
            asked.append("list")
            return super().names(folder)

        def read(self, names: Sequence[str]) -> list[bytes | None]:
            asked.extend(f"read {name}" for name in names)
            return super().read(names)

        def create(self, name: str, data: bytes) -> bool:
            asked.append(f"create {name}")
            return super().create(name, data)

    store = hosts.on(Counted(hosts.objects.url))
    store.open(create=True)
    assert sorted(asked) == ["list", "read job.json"]
    store.open_job(ONE)
    assert store.begin_run({}) == "000001"
    assert asked[2:] == ["create job.json", "list", "create controls/000001.json"]
    store.close()
    asked.clear()
    again = hosts.on(Counted(hosts.objects.url))
    again.open()
    assert sorted(asked) == ["list", "read controls/000001.json", "read job.json"]
    assert len(again.runs()) == 1


def test_where_creation_is_not_exclusive_two_may_have_one_number(hosts: Hosts) -> None:
    class Shared(ObjectFolder):
        """A store that cannot decide which of two creators was first."""

        exclusive, seen = False, True

        def names(self, folder: str) -> list[str]:
            return super().names(folder) if self.seen else []

    stores = [hosts.on(Shared(hosts.objects.url)) for _ in range(2)]
    for store in stores:
        store.open(create=True)
    Shared.seen = False  # neither sees the other's objects
    runs = [store.begin_run({}) for store in stores]
    Shared.seen = True
    names = hosts.objects.names("controls")
    assert runs == ["000001", "000001"]
    assert all(re.fullmatch(r"controls/000001-[0-9a-f]{16}\.json", name) for name in names)
    for store in stores:
        store.refresh()
        assert store.begin_run({}) in ("000002", "000003")


def test_a_store_that_may_make_the_ledger_travels_as_one(hosts: Hosts) -> None:
    copy = pickle.loads(pickle.dumps(hosts.store()))
    assert copy.source_count() == 0
    copy.open_job(ONE)
    assert copy.job() == ONE
    copy.close()


def test_runs_are_changed_by_those_who_know_them(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    run = store.begin_run({"host": "here"})
    store.register([plain(), plain("b")])
    store.note_listing(run, listed=5, finished=False, gone=[plain().id])
    assert (store.status()["gone"], store.runs()[0]["listing_finished"]) == (0, False)
    store.note_listing(run, listed=7, finished=True, gone=iter([plain().id]))
    store.end_run(run, "done", tidied=True)
    for host in (store, hosts.store()):
        (known,) = host.runs()
        found = [known[name] for name in ("listed", "outcome", "tidied", "info")]
        assert found == [7, "done", True, {"host": "here"}]
        assert host.status()["gone"] == 1
    names = hosts.objects.names("")
    for act in (lambda: store.end_run("000009", "done"), lambda: store.note_listing("000009", listed=1, finished=True)):
        with pytest.raises(Exception, match="000009"):
            act()
    assert hosts.objects.names("") == names


def test_a_change_that_is_made_again_is_written_once(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.store()
    environment = store._open()
    write = environment.write

    def again(change: Callable[[Transaction], object]) -> object:
        def full(txn: Transaction) -> object:
            change(txn)
            raise lmdb.MapFullError("full", 0)

        monkeypatch.undo()
        grown: list[int] = []
        monkeypatch.setattr(environment, "_grow_map", grown.append)
        tries = iter((full, change))

        def tried(txn: Transaction) -> object:
            return next(tries)(txn)

        found = write(tried)
        assert len(grown) == 1
        return found

    monkeypatch.setattr(environment, "write", again)
    store.register([plain()])
    assert len(hosts.objects.names("segments")) == 1
    assert hosts.store().source_count() == store.source_count() == 1


def test_what_was_forgotten_during_a_withdrawal_stays_forgotten(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    one = hosts.launcher(plain())
    one.commit([counted_leaf(plain(), ((ordinal, 3),)) for ordinal in range(3)])
    two = hosts.store()
    create = ObjectFolder.create

    def overtaken(objects: ObjectFolder, name: str, data: bytes) -> bool:
        if name.startswith("controls/"):
            monkeypatch.undo()
            two.forget_sources([plain().id])
        return create(objects, name, data)

    monkeypatch.setattr(ObjectFolder, "create", overtaken)
    assert one.withdraw([(plain().id, [node_id(plain().id, ((1, 3),))])]) == 0
    assert len(hosts.objects.names("controls")) == 2
    for store in (one, two, hosts.store()):
        store.refresh()
        assert store.totals().tasks == 0
        assert store.completed_count() == 0


def test_numbers_of_controls_never_fall(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    fold(store, *(Control(number, "run", 1.0, token) for number, token in ((1, "a"), (2, "b"), (1, "c"))))
    with store._open().read() as txn:
        assert highest_number(txn) == 2


@pytest.mark.parametrize(("jobs", "expected"), [((TWO, TWO), 1), ((TWO, ONE), 0)])
def test_restarting_the_job_that_is_there_restarts_nothing(hosts: Hosts, jobs: tuple[Job, Job], expected: int) -> None:
    store = hosts.launcher(runs=0)
    fold(store, *(Control(number, "restart", 1.0, f"{number}", job=job) for number, job in enumerate(jobs, start=1)))
    fold(store, Segment(1, 1.0, sources=[plain()], leaves=[leaf_of(plain())]))
    assert store.completed_count() == expected


@pytest.mark.parametrize(
    ("is_known", "restarts", "least"),
    [(True, [(2, TWO), (1, ONE)], 2), (True, [(1, TWO)], 1), (False, [(1, ONE)], 1), (False, [(2, TWO), (1, ONE)], 2)],
)
def test_what_was_recorded_before_the_last_restart_is_dropped_in_any_order(
    hosts: Hosts, is_known: bool, restarts: list[tuple[int, Job]], least: int
) -> None:
    store = hosts.launcher(runs=0) if is_known else hosts.store()
    fold(store, *(Control(number, "restart", 1.0, f"{number}", job=job) for number, job in restarts))
    for number in (least - 1, least):
        fold(store, Segment(number, 1.0, sources=[plain()], leaves=[leaf_of(plain())]))
        assert store.completed_count() == (number == least)


@pytest.mark.parametrize(
    ("batch", "sketch", "batches"),
    [(1, 0, [1] * 4), (2_000, 0, [2, 2]), (2_001, 0, [3, 1]), (2_000, 1_000, [1] * 4), (2_001, 1_000, [2, 2])],
)
def test_withdrawals_are_split_so_that_what_stays_fits_in_memory(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, batch: int, sketch: int, batches: list[int]
) -> None:
    monkeypatch.setattr(remote_store, "_LEAF_BYTES", 500)
    monkeypatch.setattr(remote_store, "_BATCH_BYTES", batch)
    store = hosts.launcher()
    sources = [plain(name) for name in "abcd"]
    store.register([*sources, plain("open")])
    statistics = {"length": Statistic("count", b"s" * sketch)} if sketch else {}
    for source in sources:
        leaves = [counted_leaf(source, ((ordinal, 2),)) for ordinal in range(2)]
        store.commit([replace(leaf, statistics=statistics) for leaf in leaves])
    last = {source.id: [node_id(source.id, ((1, 2),))] for source in sources}
    before = len(hosts.objects.names("controls"))
    assert store.withdraw([(plain("open").id, [node_id(plain("open").id, ())]), *last.items()]) == 4
    names = hosts.objects.names("controls")[before:]
    controls = [decode_control(data or b"", "here") for data in hosts.objects.read(names)]
    assert [(control.kind, len(control.sources)) for control in controls] == [("forget", count) for count in batches]
    again = [segment for segment in hosts.segments() if segment.again]
    assert [(segment.number, len(segment.leaves)) for segment in again] == [
        (control.number, len(control.sources)) for control in controls
    ]
    for host in (store, hosts.store()):
        assert (host.totals().tasks, host.completed_count()) == (4, 0)
        assert host.pending(sources[0].id) == 1
    assert picture(hosts.store()) == picture(store)


def test_tasks_are_recorded_again_after_a_forget_for_their_job(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.launcher(plain())
    store.commit([counted_leaf(plain(), ((ordinal, 3),)) for ordinal in range(3)])
    seen: list[tuple[str, int, int]] = []

    def reached(point: str) -> None:
        seen.append((point, len(hosts.objects.names("controls")), len(hosts.objects.names("segments"))))

    monkeypatch.setattr(remote_store, "fault_point", reached)
    assert store.withdraw([(plain().id, [node_id(plain().id, ((1, 3),))])]) == 1
    assert seen == [("withdraw.forgotten", 2, 2), ("record.before", 2, 2), ("record.after", 2, 3)]
    hosts.store().open_job(TWO, "accept")
    before = hosts.objects.names("")
    with pytest.raises(JobMismatchError, match=TWO.fingerprint):
        store.withdraw([(plain().id, [node_id(plain().id, ((0, 3),))])])
    assert hosts.objects.names("") == before


@pytest.mark.parametrize("compacted", [False, True])
def test_a_killed_withdrawal_is_known_anywhere(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, compacted: bool) -> None:
    store = hosts.launcher(plain(), plain("other"))
    store.commit([counted_leaf(plain(), ((ordinal, 3),)) for ordinal in range(3)])
    store.commit([], [failure_of(plain("other"), ((0, 2),))])

    def killed(point: str) -> None:
        if point == "withdraw.forgotten":
            raise KeyboardInterrupt

    monkeypatch.setattr(remote_store, "fault_point", killed)
    store.withdraw_failures({plain("other").id: ["KeyError"]}, [])
    with pytest.raises(KeyboardInterrupt):
        store.withdraw([(plain().id, [node_id(plain().id, ((1, 3),))])])
    if compacted:
        compact(store)
    known = {plain().id: Withdrawn(("bad",)), plain("other").id: Withdrawn(failed=("KeyError",))}
    assert [dict(host.withdrawn()) for host in (store, hosts.store())] == [known, known]
    store.begin_run({})
    store.commit([counted_leaf(plain(), ((ordinal, 3),)) for ordinal in range(3)])
    if compacted:
        compact(store)
    store.forget_sources([plain().id, plain("other").id])
    del known[plain().id]
    assert [dict(host.withdrawn()) for host in (store, hosts.store())] == [known, known]


def test_what_stays_and_contradicts_new_tasks_is_refused(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.launcher(plain())
    store.commit([counted_leaf(plain(), ((ordinal, 2),)) for ordinal in range(2)])
    beside = RemoteSink(hosts.objects)

    def reached(point: str) -> None:
        if point == "withdraw.forgotten":
            beside.commit([leaf_of(plain(), ((0, 2),), content="other")])
            store.refresh()

    monkeypatch.setattr(remote_store, "fault_point", reached)
    with pytest.raises(NonDeterministicTaskError, match=re.escape(plain().url)):
        store.withdraw([(plain().id, [node_id(plain().id, ((1, 2),))])])
    assert [segment.number for segment in hosts.segments() if segment.again] == []


def test_what_is_withdrawn_whole_leaves_nothing_to_record_again(hosts: Hosts) -> None:
    store = hosts.launcher(plain())
    store.commit([leaf_of(plain())])
    before = len(hosts.segments())
    assert store.withdraw([(plain().id, [node_id(plain().id, ())])]) == 1
    assert store.withdraw([(plain().id, [node_id(plain().id, ())])]) == 0
    assert store.withdraw([]) == 0
    assert (len(hosts.segments()), len(hosts.objects.names("controls"))) == (before, 2)
    assert store.totals().tasks == 0


def test_what_a_run_says_of_itself_is_seen_by_others(hosts: Hosts) -> None:
    store = hosts.store()
    run = store.begin_run({})
    hosts.store().begin_run({})
    store.note(run, SetUps())
    store.note(run, WorkTime())
    store.end_run(run, "failed")
    began = time.time()
    for host in (store, hosts.store()):
        known = next(known for known in host.runs() if known["id"] == run)
        assert (known["outcome"], known["tidied"]) == ("failed", False)
        assert abs(known["ended"] - began) < 60
        assert known["set_ups"] == SetUps()._asdict()
        assert known["time"] == WorkTime().as_dict()
    assert {segment.number for segment in hosts.segments()} == {1}
    assert all(abs(segment.at - began) < 60 for segment in hosts.segments())


def test_a_change_is_written_as_made_and_not_taken_in_again(hosts: Hosts) -> None:
    store = hosts.launcher(plain(), plain("b"))
    hosts.store().begin_run({})
    store.refresh()
    mark = mark_of(plain())
    result = store.commit([leaf_of(plain("b"))], [failure_of(plain())])
    assert (result.completed, result.fresh, 0 <= result.seconds < 30) == ([plain("b").id], 1, True)
    assert store.record_deaths([mark]) == []
    assert store.record_deaths([mark] * MAX_ATTEMPTS) != []
    store.set_gone(iter([plain().id]))
    store.drop_stale(iter(["a"]))
    store.register([plain(), plain("b"), plain("c")])
    store.set_gone([plain().id])
    store.register([plain()])
    assert store.status()["gone"] == 0
    ordered = sorted(hosts.objects.names("segments"), key=lambda name: name.rpartition("-")[2])
    found = [decode_segment(data or b"", "here") for data in hosts.objects.read(ordered)]
    expected: list[dict[str, Any]] = [
        {"sources": [plain(), plain("b")]},
        {"leaves": [leaf_of(plain("b"))], "failures": [failure_of(plain())]},
        {"deaths": [mark]},
        {"deaths": [mark] * MAX_ATTEMPTS},
        {"gone": [plain().id]},
        {"dropped": ["a"], "number": 2},
        {"sources": [plain("c")], "back": [plain().id]},
        {"gone": [plain().id]},
        {"back": [plain().id]},
    ]
    made = [encode_segment(replace(segment, at=0.0, job=None)) for segment in found]
    assert made == [encode_segment(Segment(**{"number": 1, "at": 0.0, **fields})) for fields in expected]
    before = picture(store)
    hosts.objects.reads.clear()
    store.refresh()
    assert (picture(store), hosts.objects.reads) == (before, [])


@pytest.mark.parametrize(("exclusive", "listings"), [(True, 1), (False, 2)])
def test_runs_are_listed_if_creation_is_shared(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, exclusive: bool, listings: int
) -> None:
    monkeypatch.setattr(Noted, "exclusive", exclusive)
    store = hosts.launcher(runs=0)
    hosts.objects.listed.clear()
    assert store.begin_run({}) == "000001"
    assert len(hosts.objects.listed) == listings
    assert len(store.runs()) == 1


class Clock:
    """The time since the host began, as a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def controls(hosts: Hosts, count: int, taken_at: int = 0) -> None:
    """Create so many control objects; at a number the ledger is taken for another job."""
    for number in range(1, count + 1):
        taken = number == taken_at
        control = Control(number, "accept" if taken else "run", 1.0, "token", job=TWO if taken else None)
        assert hosts.objects.create(f"controls/{number:06d}.json", encode_control(control))


@pytest.mark.parametrize("booted", [0.5, 1000.0], ids=["just booted", "long up"])
def test_a_sink_of_a_run_looks_from_time_to_time(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, booted: float) -> None:
    controls(hosts, 1)
    clock = Clock(monkeypatch, booted)
    sink = RemoteSink(hosts.objects, run="1")
    for wait, looked in ((0.0, 1), (0.9 * CHECK_SECONDS, 1), (0.2 * CHECK_SECONDS, 2), (0.1, 2)):
        clock.now += wait
        sink.commit([leaf_of(plain())])
        assert hosts.objects.listed == ["controls"] * looked


def test_a_sink_without_a_run_looks_at_each_commit(hosts: Hosts) -> None:
    controls(hosts, 1)
    hosts.objects.listed.clear()
    sink = RemoteSink(hosts.objects)
    for looked in (1, 2):
        sink.commit([leaf_of(plain())])
        assert hosts.objects.listed == ["controls"] * looked


@pytest.mark.parametrize("taken_at", [1, 64, 65, 130])
def test_a_sink_sees_that_the_ledger_was_taken_wherever_it_stands(hosts: Hosts, taken_at: int) -> None:
    controls(hosts, 130, taken_at)
    with pytest.raises(JobMismatchError, match=TWO.fingerprint):
        RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []
    for job in (None, TWO.fingerprint):
        RemoteSink(hosts.objects, job=job).commit([leaf_of(plain())])
    assert all(name.startswith("segments/000130/t-") for name in hosts.objects.names("segments"))


def test_a_sink_that_has_seen_another_job_records_nothing_any_more(hosts: Hosts) -> None:
    controls(hosts, 3, taken_at=2)
    sink = RemoteSink(hosts.objects, job=ONE.fingerprint, run="1")
    for _ in range(2):
        with pytest.raises(JobMismatchError, match=TWO.fingerprint):
            sink.commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []


def test_a_sink_does_not_go_back_to_the_jobs_of_before_its_run(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 3, taken_at=2)
    monkeypatch.setattr(remote_sink, "CHECK_SECONDS", -1.0)
    sink = RemoteSink(hosts.objects, job=ONE.fingerprint, run="3")
    for count in (1, 2, 3):  # nothing new is there when it looks
        sink.commit([leaf_of(plain())])
        assert len(hosts.objects.names("segments")) == count


def test_a_control_that_is_gone_when_a_sink_reads_it_is_told(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 2)
    real = hosts.objects.read
    monkeypatch.setattr(hosts.objects, "read", lambda names: [None, *real(names)[1:]])
    with pytest.raises(LedgerDamagedError, match=r"controls/000001\.json"):
        RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []


def test_a_commit_says_how_long_it_took(hosts: Hosts) -> None:
    store = hosts.launcher(plain(), runs=0)
    for committing in (RemoteSink(hosts.objects), store):
        began = time.monotonic()
        result = committing.commit([leaf_of(plain())])
        assert 0 < result.seconds <= time.monotonic() - began


def test_a_sink_asks_for_what_is_new_only(hosts: Hosts) -> None:
    controls(hosts, 3)
    sink = RemoteSink(hosts.objects)
    sink.commit([leaf_of(plain())])
    assert hosts.objects.reads == [f"controls/{number:06d}.json" for number in (1, 2, 3)]
    sink.commit([leaf_of(plain())])
    RemoteSink(hosts.objects, run="3").commit([leaf_of(plain())])
    assert len(hosts.objects.reads) == 3


def test_a_sink_counts_numbers_as_numbers_are_counted(hosts: Hosts) -> None:
    for number in (999_999, 1_000_000):
        control = Control(number, "run", 1.0, "token")
        assert hosts.objects.create(f"controls/{number:06d}.json", encode_control(control))
    RemoteSink(hosts.objects, run="999998").commit([leaf_of(plain())])
    (name,) = hosts.objects.names("segments")
    assert name.startswith("segments/999998/")


def test_a_number_that_follows_in_no_listing_is_refused(hosts: Hosts) -> None:
    controls(hosts, 3)
    hosts.objects.delete(["controls/000002.json"])
    hosts.objects.listed.clear()
    with pytest.raises(LedgerDamagedError, match=r"controls/000003\.json.*up to 2 in a control.*found 3"):
        RemoteSink(hosts.objects).commit([leaf_of(plain())])
    assert hosts.objects.listed == ["controls"] * 2
    assert hosts.objects.names("segments") == []


def test_a_control_that_one_listing_passed_is_in_the_next(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 3, taken_at=1)
    hosts.objects.listed.clear()
    whole = hosts.objects.names
    monkeypatch.setattr(hosts.objects, "names", lambda folder: whole(folder)[0 if hosts.objects.listed[1:] else 1 :])
    with pytest.raises(JobMismatchError):
        RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    assert hosts.objects.listed == ["controls"] * 2


def test_what_is_no_control_is_passed_over(hosts: Hosts) -> None:
    controls(hosts, 2)
    for name in ("readme.txt", "1.json", "000003.json.bak", "deep/000003.json"):
        hosts.objects.create(f"controls/{name}", b"not ours")
    RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    (name,) = hosts.objects.names("segments")
    assert name.startswith("segments/000002/")


def test_a_sink_says_for_which_job_and_when_it_recorded(hosts: Hosts) -> None:
    controls(hosts, 2)
    failed = failure_of(plain(), ((1, 2),))
    began = time.time()
    sink = pickle.loads(pickle.dumps(RemoteSink(hosts.objects, job=ONE.fingerprint, run="1")))
    result = sink.commit(leaves_of_split(plain(), 2)[:1], [failed])
    assert (result.completed, result.fresh) == ([], 1)
    assert 0 <= result.seconds < 60
    (name,) = hosts.objects.names("segments")
    segment = decode_segment(hosts.objects.read([name])[0] or b"", name)
    assert (segment.number, segment.job) == (1, ONE.fingerprint)
    assert began - 1 <= segment.at <= time.time() + 1
    assert (segment.leaves, segment.failures) == (leaves_of_split(plain(), 2)[:1], [failed])


def test_a_sink_in_a_forked_process_looks_and_names_for_itself(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 1)
    hosts.objects.listed.clear()
    sink = RemoteSink(hosts.objects, run="1")
    sink.commit([leaf_of(plain())])
    forked = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: forked)
    for _ in range(2):
        sink.commit([leaf_of(plain())])
    assert hosts.objects.listed == ["controls"] * 2
    writers = [name.rpartition("-")[0] for name in hosts.objects.names("segments")]
    assert sorted(writers.count(writer) for writer in set(writers)) == [1, 2]


def test_a_name_that_another_has_used_is_not_written_over(hosts: Hosts) -> None:
    for _ in range(2):  # as after an answer that was lost
        create_own(hosts.objects, "segments/a", b"own")
    with pytest.raises(LedgerDamagedError, match=r"ledger/segments/a: expected no object of this name"):
        create_own(hosts.objects, "segments/a", b"other")
    assert hosts.objects.read(["segments/a"]) == [b"own"]


def test_a_worker_killed_before_it_records_recorded_nothing(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception):
        pass

    def kill(point: str) -> None:
        assert point == "flush.before_commit"
        raise KilledError

    monkeypatch.setattr(remote_sink, "fault_point", kill)
    with pytest.raises(KilledError):
        RemoteSink(hosts.objects).commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []
