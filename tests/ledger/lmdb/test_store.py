from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import JobMismatchError, LedgerDamagedError, LedgerError, UnsupportedShapeError, UsageError
from ledgerbeam.ledger.lmdb import commit as lmdb_commit
from ledgerbeam.ledger.lmdb import environment as lmdb_environment
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb import views as lmdb_views
from ledgerbeam.ledger.lmdb.sources import number_of_retired, register, urls_of_sources
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import COMPLETED, KEY_ID, META, PAGE_ROWS, RUNS, pack_completion
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark, Output, TaskCountsRow, Totals
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.opening import local_path, open_local_store
from ledgerbeam.ledger.remote.registration import register_sources
from ledgerbeam.ledger.remote.segment import Segment
from ledgerbeam.ledger.remote.snapshot import state_pages
from tests.ledger.builders import counted_leaf, failure_of, filtered_leaf, leaf_of, mark_of, plain
from tests.ledger.conformance import CHANGES, LedgerStoreConformance
from tests.ledger.conformance_accounts import AccountsConformance
from tests.ledger.conformance_changes import ChangesConformance
from tests.ledger.stores import folded, picture, registered, replaces, several, superseded


class TestLmdbStore(LedgerStoreConformance, ChangesConformance, AccountsConformance):
    """The conformance tests on LMDB; the fixture `store` is in conftest."""


def test_a_mask_stays_right_through_many_pages_and_withdrawals(store: LmdbStore) -> None:
    sources = [plain(f"s{n}") for n in range(20_000)]
    ids = [source.id for source in sources]
    for start in range(0, 20_000, 5000):
        store.register(sources[start : start + 5000])
        store.commit([leaf_of(source) for source in sources[start : start + 5000]])
    for _ in range(2):
        for start in range(0, 20_000, 1000):
            assert all(store.completed_mask(ids[start : start + 1000]))
    other = pickle.loads(pickle.dumps(store))
    other.forget("/data/s1999?.jsonl")
    mask = store.completed_mask(ids)
    assert sum(mask) == 20_000 - 10
    assert not any(mask[19_990:])
    other.commit([leaf_of(sources[19_995])])
    assert sum(store.completed_mask(ids)) == 20_000 - 9
    other.close()


@pytest.mark.parametrize("first", [b"h" * 8, b""], ids=["first half", "last half"])
def test_ids_that_agree_in_one_half_are_told_apart(store: LmdbStore, first: bytes) -> None:
    last = b"" if first else b"h" * 8
    asked = [first + bytes([number]) * 8 + last for number in b"abcdef"]
    done = asked[::2]
    store._write(lambda txn: txn.put_many(COMPLETED, [(source, pack_completion(0, Totals(1))) for source in done]))
    for _ in range(3):
        assert store.completed_mask(asked) == [True, False] * 3


@pytest.mark.parametrize("at_once", [4, 100])
def test_ids_in_memory_are_looked_up_no_more(store: LmdbStore, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(lmdb_views, "_LOADED_ROWS", at_once)
    done = sorted(os.urandom(16) for _ in range(9))
    store._write(lambda txn: txn.put_many(COMPLETED, [(source, pack_completion(0, Totals(1))) for source in done]))
    asked = [*reversed(done), b"n" * 16]
    for _ in range(3):
        assert store.completed_mask(asked) == [True] * 9 + [False]
    store._write(lambda txn: txn.clear(COMPLETED))  # and no withdrawal is counted
    assert store.completed_mask(asked) == [True] * 9 + [False]


def test_all_may_be_forgotten_while_complete_ids_are_read(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [plain(f"s{n}") for n in range(8)]
    ids = [source.id for source in sources]
    store.register(sources)
    store.commit([leaf_of(source) for source in sources])
    assert all(store.completed_mask(ids))
    other = pickle.loads(pickle.dumps(store))

    def after_all_are_forgotten(*arguments: Any) -> Iterator[list[bytes]]:
        other.forget("*")
        return lmdb_environment.key_pages(*arguments)

    monkeypatch.setattr(lmdb_views, "key_pages", after_all_are_forgotten)
    assert not any(store.completed_mask(ids))
    other.close()


def test_what_a_removed_ledger_had_complete_is_not_complete_in_the_one_made_in_its_place(store: LmdbStore) -> None:
    sources = [plain(f"s{n}") for n in range(8)]
    ids = [source.id for source in sources]
    for _ in range(2):
        store.register(sources)
        assert not any(store.completed_mask(ids))
        store.commit([leaf_of(source) for source in sources])
        for _ in range(3):  # often enough to hold the ids in memory
            assert all(store.completed_mask(ids))
        store.close()
        shutil.rmtree(store.url)
        store.open(create=True)
    assert not any(store.completed_mask(ids))


def test_what_completed_while_all_ids_were_read_is_looked_up(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [plain(f"s{n}") for n in range(40)]
    ids = [source.id for source in sources]
    store.register(sources)
    store.commit([leaf_of(source) for source in sources[:20]])
    assert all(store.completed_mask(ids[:10]))
    monkeypatch.setattr(lmdb_views, "_LOADED_ROWS", 3)
    pages = lmdb_environment.key_pages

    def grown(*arguments: Any) -> Iterator[list[bytes]]:
        store.commit([leaf_of(source) for source in sources[20:30]])
        return pages(*arguments)

    monkeypatch.setattr(lmdb_views, "key_pages", grown)
    for _ in range(3):
        assert store.completed_mask(ids) == [True] * 30 + [False] * 10


def test_views_go_on_behind_their_first_page(store: LmdbStore) -> None:
    sources = sorted((plain(f"s{n}") for n in range(600)), key=lambda source: source.url)
    ids = [source.id for source in sources]
    store.register(sources)
    done = sources[::2]
    store.commit([leaf_of(source) for source in done], [failure_of(source) for source in sources[1::2]])
    rows = list(store.outputs())
    assert [row.url for row in rows] == [source.url for source in done]
    assert sorted(store.outputs(ordered=False), key=lambda row: row.url) == rows
    assert [row.url for row in store.failures()] == [source.url for source in sources[1::2]]
    assert store.failed_mask(ids) == [False, True] * 300
    assert {row.url: row.state for row in store.sources()} == {
        source.url: "failed" if place % 2 else "complete" for place, source in enumerate(sources)
    }


def test_every_page_of_a_view_is_there_once_and_in_order(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_views, "_SOURCES_A_TRANSACTION", 3)
    sources = [plain(f"s{n:02}") for n in range(40)]
    by_id = sorted(sources, key=lambda source: source.id)
    store.register(sources)
    tasks = {source.url: 4 if source is by_id[0] else 2 - place % 2 for place, source in enumerate(by_id)}
    failures = [failure_of(source, ((n, 9),)) for source in by_id[:30] for n in range(tasks[source.url])]
    store.commit([leaf_of(source, ((8, 9),)) for source in sources], failures)
    assert [(row.url, row.task) for row in store.failures()] == sorted(
        (by.url, f"{by.url} {((n, 9),)}") for by in by_id[:30] for n in range(tasks[by.url])
    )
    failed = {source.id for source in by_id[:30]}
    assert store.failed_mask([source.id for source in sources]) == [source.id in failed for source in sources]
    assert [row.url for row in store.outputs()] == [source.url for source in sources]


def test_a_source_with_pages_of_rejected_tasks_is_told_once(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_environment, "PAGE_ROWS", 2)
    sources = sorted((plain(name) for name in "abc"), key=lambda source: source.id)
    store.register(sources)
    store.commit([counted_leaf(source, ((place, 5),)) for source in sources for place in range(3)])
    nodes = [sorted(node_id(source.id, ((place, 5),)) for place in range(3)) for source in sources]
    assert list(store.rejected_tasks()) == list(zip([source.id for source in sources], nodes, strict=True))


def test_a_source_has_its_outputs_in_the_order_of_its_records(store: LmdbStore) -> None:
    source = registered(store)
    outputs = [Output(name, 1, "x", 1, first) for name, first in (("b", 0), ("a", 7), ("c", 7), ("d", 3))]
    store.commit([Leaf(source.id, (), "published", tuple(outputs))])
    assert [row.output.name for row in store.outputs()] == ["b", "d", "a", "c"]


def test_a_job_that_restarts_in_another_folder_touches_nothing_of_the_former(store: LmdbStore) -> None:
    here, there = (Job("map", {"output": name, "to": "tar"}) for name in ("here", "there"))
    store.open_job(here)
    for source in (plain("a"), plain("b")):
        store.register([source])
        store.commit([leaf_of(source)])
    store.forget("*/a.jsonl")
    store.open_job(there, "restart")
    assert (store.stale_outputs(), superseded(store)) == ([], [])
    store.register([plain("a")])
    store.commit([leaf_of(plain("a"))])
    store.open_job(Job("map", {"output": "there"}), "restart")
    assert store.stale_outputs() == ["data/a-.jsonl"]


def test_a_job_that_restarts_knows_which_sources_have_changed_since(store: LmdbStore) -> None:
    """So their indexes are built again: the indexes beside them belong to the former content."""
    same, done, begun, unread, waiting = (plain(name) for name in ("same", "done", "begun", "unread", "waiting"))
    pack = Source.pack([plain("p"), plain("q")])
    store.open_job(Job("map", {"a": 1}))
    store.register([same, done, begun, unread, waiting, pack])
    for number in range(2, 4):  # the second restart has the state of the first
        store.register([plain("unread", str(number))])
    store.register([plain("done", "2"), plain("begun", "2")])
    store.commit([leaf_of(same), leaf_of(plain("done", "2")), leaf_of(plain("begun", "2"), ((0, 2),))])
    for number in (2, 3):
        store.open_job(Job("map", {"a": number}), "restart")
    again = [same, plain("done", "2"), plain("begun", "2"), plain("unread", "3"), plain("p", "2"), waiting]
    again.append(plain("new"))
    store.register(again)
    known = replaces(store, *again)
    assert known == [False, False, False, True, True, False, False]
    store.open_job(Job("map", {"a": 4}), "restart")
    changed = [plain(name, "9") for name in ("same", "done", "q")]
    store.register(changed)
    assert replaces(store, *changed) == [True] * 3
    assert store.source_count() == 3


def test_a_job_that_restarts_looks_at_more_unread_sources_than_a_page(store: LmdbStore) -> None:
    names = [str(number) for number in range(PAGE_ROWS + 3)]
    store.open_job(Job("map", {"a": 1}))
    store.register([plain(name) for name in names])
    changed = [plain(name, "2") for name in names]
    store.register(changed)
    store.open_job(Job("map", {"a": 2}), "restart")
    store.register(changed)
    assert replaces(store, *changed) == [True] * len(names)


@pytest.mark.parametrize("last", ["open", "failed"])
def test_the_status_of_sources_that_are_gone_counts_nothing_twice(store: LmdbStore, last: str) -> None:
    names = ("done", "done_gone", "open", "open_gone", "failed", "failed_gone")
    sources = {name: plain(name) for name in names}
    store.open_job(Job("map", {}))
    store.register(list(sources.values()))
    failures = [
        failure_of(sources[name], lineage) for name in names[4:] for lineage in (((0, 3),), ((1, 3),), ((2, 3),))
    ]
    store.commit([leaf_of(sources[name]) for name in names[:2]], failures)
    run = store.begin_run({})
    gone = [source.id for name, source in sources.items() if name.endswith("_gone")]
    store.note_listing(run, listed=3, finished=True, gone=gone)
    status = store.status()
    assert (status["sources"], status["gone"]) == ({"complete": 2, "open": 1, "failed": 1}, 3)
    assert (status["tasks"], status["complete"], status["listed"]) == ({"done": 2, "failed": 3}, False, 3)
    for name in sorted(("open", "failed"), key=last.__eq__):
        assert not store.status()["complete"]
        store.commit([leaf_of(sources[name])])
    assert store.status()["complete"]
    store.note_listing(run, listed=3, finished=False, gone=[])
    assert (store.status()["complete"], store.status()["gone"]) == (False, 3)


@pytest.mark.parametrize("change", [*CHANGES.values(), lambda store: store.note_file_times({plain().id: [1]})])
@pytest.mark.parametrize("beside", [True, False])
def test_a_store_that_was_opened_to_look_changes_nothing(
    store: LmdbStore, change: Callable[[LmdbStore], object], beside: bool
) -> None:
    store.register([plain()])
    if not beside:
        store.close()
    looking = LmdbStore(store.url, read_only=True)
    for found in (looking, pickle.loads(pickle.dumps(looking))):
        with pytest.raises(UsageError, match="read only"):
            change(found)
        assert found.source_count() == 1
        found.close()


def test_a_copy_of_a_store_is_as_the_store(store: LmdbStore) -> None:
    other = LmdbStore(store.url, job="0" * 32, map_bytes=1 << 25)
    copy = pickle.loads(pickle.dumps(other))
    store.close()
    copy.open()
    assert copy._open()._env.info()["map_size"] == 1 << 25
    with pytest.raises(JobMismatchError):
        copy.commit([])
    assert (copy.url, f"{copy!r}") == (store.url, f"LmdbStore({store.url!r})")
    copy.close()


def test_a_withdrawal_that_is_cut_short_changes_nothing(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [counted_leaf(plain(), ((0, 2),)), leaf_of(plain(), ((1, 2),))]
    store.register([plain()])
    store.commit(leaves)
    before = picture(store)

    def ends(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lmdb_commit, "record", ends)
    with pytest.raises(KeyboardInterrupt):
        store.withdraw([(plain().id, [node_id(plain().id, ((0, 2),))])])
    assert picture(store) == before


def test_a_store_that_was_opened_twice_is_closed_once(store: LmdbStore) -> None:
    store.open()
    store.open(create=True)
    store.close()
    assert os.path.realpath(store.url) not in lmdb_environment._open


@pytest.mark.parametrize(
    "mark", [Mark(b"x", bytes(16), ""), Mark(bytes(16), b"x", ""), Mark(bytes(16), bytes(16), "\ud800")]
)
def test_a_mark_that_cannot_be_is_refused(store: LmdbStore, mark: Mark) -> None:
    with pytest.raises(UnsupportedShapeError, match="cannot be recorded"):
        store.record_deaths([Mark(bytes(16), bytes(16), "task"), mark])


def test_an_empty_url_and_a_contradiction_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        local_path("")
    with pytest.raises(UsageError, match="only one"):
        open_local_store(str(tmp_path / "x"), create=True, read_only=True)


def test_a_ledger_copied_while_closed_is_a_ledger(tmp_path: Path, store: LmdbStore) -> None:
    store.register([plain()])
    store.commit([leaf_of(plain())])
    store.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "data.mdb").write_bytes(Path(store.url, "data.mdb").read_bytes())
    found = open_local_store(str(copy), create=False, read_only=True)
    assert found.completed_count() == 1
    found.close()


A, B = plain("a"), plain("b")
PACK = Source.pack([plain("a", "2"), B])
UNKNOWN = plain("unknown")


def register_all(store: LmdbStore, sources: Sequence[Source], number: int = 0) -> set[bytes]:
    """Register sources, with a number as in a remote ledger, and return the ids of all registered sources."""
    store._write(lambda txn: register_sources(txn, sources, number) if number else register(txn, sources))
    return {source for page in store.source_ids() for source in page}


def retired(store: LmdbStore, *sources: Source) -> list[int]:
    with store._open().read() as txn:
        return [number_of_retired(txn, source.id) for source in sources]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_source_that_changed_while_it_was_listed_is_replaced(store: LmdbStore, order: tuple[int, int]) -> None:
    newer = plain("b", "2")
    listings = [([A], 3), ([A, PACK, newer], 5)]
    for place in order:
        found = register_all(store, *listings[place])
    assert found == {newer.id}
    assert retired(store, A, PACK, newer, UNKNOWN) == [5, 5, 0, 0]


def test_a_source_that_is_not_listed_stays_registered_though_one_was_that_nobody_keeps(store: LmdbStore) -> None:
    register_all(store, [A], 3)
    newer = plain("b", "2")
    assert register_all(store, [PACK, newer], 5) == {A.id, newer.id}
    assert retired(store, A, PACK) == [0, 5]


def test_a_source_keeps_its_progress_though_others_of_its_listing_have_changed(store: LmdbStore) -> None:
    done = plain("done")
    register_all(store, [done])
    store.commit([leaf_of(done)])
    assert register_all(store, [A, done, plain("a", "2")]) == {done.id, plain("a", "2").id}
    assert all(store.completed_mask([done.id]))


def test_what_changed_while_it_was_listed_is_out_of_date_once_what_it_has_become_is_complete(store: LmdbStore) -> None:
    newer = plain("a", "2")
    register_all(store, [A])
    store.commit([leaf_of(A)])
    register_all(store, [A, newer, B])
    store.commit([leaf_of(B)])
    assert store.stale_outputs() == []
    store.commit([filtered_leaf(newer)])
    assert store.stale_outputs() == [output.name for output in leaf_of(A).outputs]


def test_a_source_that_comes_in_late_replaces_what_was_registered_before_it_and_nothing_after(store: LmdbStore) -> None:
    register_all(store, [B], 1)
    newer = plain("a", "3")
    register_all(store, [newer], 5)
    assert register_all(store, [PACK], 3) == {newer.id}
    assert retired(store, B, PACK, newer) == [3, 5, 0]
    assert register_all(store, [PACK], 4) == {newer.id}
    assert retired(store, B, PACK, newer) == [3, 5, 0]
    assert register_all(store, [PACK], 6) == {PACK.id}
    assert retired(store, PACK, newer) == [0, 6]


def test_urls_are_told_of_registered_sources_alone(store: LmdbStore) -> None:
    register_all(store, [B, A])
    with store._open().read() as txn:
        assert urls_of_sources(txn, [B.id, UNKNOWN.id, A.id]) == [A.url, B.url]
        assert urls_of_sources(txn, [UNKNOWN.id]) == []


def test_a_pack_is_replaced_by_the_last_that_took_over_one_of_its_files(store: LmdbStore) -> None:
    last = plain("b", "3")
    register_all(store, [PACK], 1)
    register_all(store, [plain("a", "3")], 3)
    register_all(store, [last], 5)
    assert register_all(store, [PACK], 4) == {last.id}
    assert retired(store, PACK) == [5]
    assert register_all(store, [PACK], 6) == {PACK.id}


def test_a_pack_that_was_replaced_stays_so_though_what_replaced_it_was_replaced_too(store: LmdbStore) -> None:
    last = plain("c", "2")
    for number, source in ((1, PACK), (5, Source.pack([plain("a", "4"), plain("c")])), (7, last)):
        register_all(store, [source], number)
    assert register_all(store, [PACK], 3) == {last.id}
    assert register_all(store, [PACK], 6) == {PACK.id, last.id}


LITTLE: dict[str, Any] = {
    "set_ups": {"times": 1, "seconds": 3.0, "longest": 3.0},
    "time": {"workers": 2, "seconds": {"read": 1.0, "encode": 1.0}, "cpu": {"read": 1.0}},
    "audit": {"tasks": 1, "differ": 0, "found": "", "job": "f"},
}
MUCH: dict[str, Any] = {
    "set_ups": {"times": 2, "seconds": 4.0, "longest": 3.0},
    "time": {"workers": 1, "seconds": {"read": 2.5}, "cpu": {"read": 0.5}},
    "audit": {"tasks": 2, "differ": 1, "found": "a record", "job": "f"},
}
RUN_CHANGES: list[dict[str, Any]] = [
    {"listed": 3, "listing_finished": False, "ended": None, **LITTLE},
    {"listed": 5, "listing_finished": True, "outcome": None, **MUCH},
    {"ended": 10.0, "outcome": "failed", "tidied": True},
    {"ended": 20.0, "outcome": "done", "tidied": False},
]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_what_is_said_of_a_run_comes_to_the_same_in_any_order(store: LmdbStore, order: tuple[int, ...]) -> None:
    run = store.begin_run({"pid": 7})
    for place in order:
        store._write(lambda txn, place=place: lmdb_jobs.change_run(txn, run, RUN_CHANGES[place]))  # type: ignore[misc]
    (found,) = store.runs()
    del found["id"], found["began"]
    assert found == {
        **MUCH,
        "ended": 20.0,
        "outcome": "done",
        "tidied": False,
        "listed": 5,
        "listing_finished": True,
        "info": {"pid": 7},
    }


def test_what_is_said_of_a_run_that_is_not_known_is_ignored(store: LmdbStore) -> None:
    for run in ("000009", "\udcff"):
        store._write(lambda txn, run=run: lmdb_jobs.change_run(txn, run, RUN_CHANGES[0]))  # type: ignore[misc]
    assert store.runs() == []
    run = store.begin_run({})
    store._write(lambda txn: lmdb_jobs.change_run(txn, run, {"outcome": "x"}))
    (found,) = store.runs()
    assert (found["listed"], found["listing_finished"], found["outcome"]) == (None, False, "x")


def test_a_run_that_says_what_cannot_be_read_is_refused(store: LmdbStore) -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        store.begin_run({"pid": "x"})
    with pytest.raises(LedgerDamagedError, match="expected a number"):
        store._write(lambda txn: lmdb_jobs.add_run(txn, "000001", {"pid": "x"}, 1.0))
    assert store.runs() == []
    with pytest.raises(LedgerError, match="run '000001' is not in this ledger"):
        store._write(lambda txn: lmdb_jobs.get_run(txn, "000001"))


def test_a_ledger_without_an_id_of_its_form_is_damaged(store: LmdbStore) -> None:
    for damaged in (b"", b"0" * 31, b"0" * 33, b"G" * 32):
        store._write(lambda txn, damaged=damaged: txn.put(META, KEY_ID, damaged))  # type: ignore[misc]
        with pytest.raises(LedgerDamagedError, match="expected an id"):
            store.ledger_id()
    store._write(lambda txn: txn.delete(META, KEY_ID))
    with pytest.raises(LedgerDamagedError, match="32 hexadecimal digits in the table meta, found None"):
        store.ledger_id()
    store._write(lambda txn: txn.put(RUNS, b"x", b"{}"))
    with pytest.raises(LedgerDamagedError, match="expected the id of a run"):
        store.runs()


def test_a_job_is_taken_once_and_a_ledger_of_no_job_is_taken_by_any(store: LmdbStore) -> None:
    one, two = Job("map", {"a": 1}), Job("map", {"a": 2})
    store.register([plain()])
    store.commit([leaf_of(plain())])
    store.open_job(one, "restart")  # it had no job
    assert store.completed_count() == 1
    store.open_job(one, "restart")
    assert store.completed_count() == 1
    with pytest.raises(JobMismatchError, match=r"belongs to a job that differs in\n  a: was 1, is 2\nrun with"):
        store.open_job(two)
    store.open_job(two, "restart")
    assert store.completed_count() == 0
    with pytest.raises(JobMismatchError, match=f"expected the fingerprint {one.fingerprint}, found {two.fingerprint}"):
        LmdbStore(store.url, job=one.fingerprint).commit([])
    assert "the format of the ledger's jobs" in lmdb_jobs.mismatch(one, one, "here")


def test_the_urls_of_some_sources_are_those_of_the_registered_ones(store: LmdbStore) -> None:
    sources = several(store, *"abc")
    asked = [sources[2].id, plain("unknown").id, sources[0].id]
    assert store.source_urls(asked) == {sources[2].id: sources[2].url, sources[0].id: sources[0].url}
    assert store.source_urls([]) == {}


def test_what_became_of_records_is_told_of_each_task_that_did_not_just_write_them(store: LmdbStore) -> None:
    counted, other, simple = sources = [plain(name) for name in "abc"]
    store.register(sources)
    leaves = [counted_leaf(counted, ((0, 2),)), counted_leaf(counted, ((1, 2),), dropped=3), counted_leaf(other)]
    store.commit([*leaves, leaf_of(simple)])
    found = list(store.task_counts())
    urls = {source.id: source.url for source in sources}
    expected = [
        TaskCountsRow(urls[leaf.source_id], leaf.source_id, node_id(leaf.source_id, leaf.lineage), leaf.counts)
        for leaf in leaves
        if leaf.counts is not None
    ]
    assert sorted(found, key=lambda row: (row.source_id, row.node)) == found
    assert found == sorted(expected, key=lambda row: (row.source_id, row.node))


SOURCE = plain()
LINEAGES = ((), ((0, 2),), ((1, 2),), ((0, 2), (0, 2)), ((0, 2), (1, 2)))
LEAVES = LINEAGES[2:]


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Segments of a few runs, each with a different time."""
    made = []
    for place in range(draw(st.integers(1, 7))):
        number, at = draw(st.integers(1, 3)), float(100 * draw(st.integers(1, 3)) + place)
        leaves = draw(st.lists(st.sampled_from(LEAVES), max_size=2, unique=True))
        failed = draw(st.lists(st.tuples(st.sampled_from(LINEAGES), st.booleans()), max_size=3))
        dead = draw(st.lists(st.sampled_from(LINEAGES), max_size=3))
        failures = [Failure(SOURCE.id, path, "task", f"reason {place}", broke=broke) for path, broke in failed]
        deaths = [mark_of(SOURCE, path) for path in dead]
        made.append(
            Segment(number, at, leaves=[leaf_of(SOURCE, path) for path in leaves], failures=failures, deaths=deaths)
        )
    return made


def shown(store: LmdbStore) -> Any:
    rows = [(row.node, row.reason, row.quarantined, row.last) for row in store.failures()]
    found = (rows, store.attempts(SOURCE.id), store.applied(SOURCE.id), store.status()["tasks"]["failed"])
    store.close()
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=segments(), data=st.data())
def test_failures_are_the_same_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, made: list[Segment], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("hosts")
    expected = shown(folded(folder / "one", *made))
    order = data.draw(st.permutations(made))
    assert shown(folded(folder / "other", *order)) == expected
    # By way of a snapshot of some of them, with the leaves as they were written, and the others before or after it.
    some = order[: data.draw(st.integers(0, len(order)))]
    rest = order[len(some) :]
    compactor = folded(folder / "compactor", *some)
    parts = [Segment(part.number, 1e9, leaves=part.leaves) for part in some]
    with compactor._open().read() as txn:
        states = [Segment(3, 1e9, state=page) for page in state_pages(txn)]
    compactor.close()
    before = data.draw(st.integers(0, len(rest)))
    host = folded(folder / "host", *rest[:before])
    host.close()
    host = folded(folder / "host", *parts, *states, of_snapshot=True)
    host.close()
    assert shown(folded(folder / "host", *rest[before:])) == expected


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_leaf_that_comes_again_got_below_what_had_failed(tmp_path: Path, order: tuple[int, ...]) -> None:
    leaf = leaf_of(SOURCE, LINEAGES[3])
    failures = [Failure(SOURCE.id, path, "task", "ValueError") for path in (*LINEAGES[:2], LINEAGES[2])]
    made = [Segment(1, 10.0, leaves=[leaf]), Segment(2, 20.0, failures=failures), Segment(3, 30.0, leaves=[leaf])]
    store = folded(tmp_path / "ledger", *(made[place] for place in order))
    assert [row.node for row in store.failures()] == [node_id(SOURCE.id, LINEAGES[2])]
    store.close()


@pytest.mark.parametrize(
    ("number", "at", "kept"), [(1, 30.0, False), (2, 10.0, False), (2, 20.0, True), (2, 30.0, True), (3, 10.0, True)]
)
@pytest.mark.parametrize("leaf_first", [True, False])
def test_failures_and_deaths_count_unless_a_leaf_below_is_newer(
    tmp_path: Path, number: int, at: float, kept: bool, leaf_first: bool
) -> None:
    leaf = Segment(2, 20.0, leaves=[leaf_of(SOURCE, LINEAGES[3])])
    failed, died = LINEAGES[0], LINEAGES[1]
    failures = [Failure(SOURCE.id, failed, "task", "ValueError")]
    deaths = [mark_of(SOURCE, died)]
    other = Segment(number, at, failures=failures, deaths=deaths)
    store = folded(tmp_path / "ledger", *([leaf, other] if leaf_first else [other, leaf]))
    assert [row.node for row in store.failures()] == [node_id(SOURCE.id, failed)] * kept
    assert store.attempts(SOURCE.id) == ({deaths[0].node: 1} if kept else {})
    store.close()


@pytest.mark.parametrize("leaf_place", range(4))
def test_a_task_leaves_quarantine_when_a_leaf_below_is_newer_than_its_deaths(tmp_path: Path, leaf_place: int) -> None:
    mark = mark_of(SOURCE)
    made = [Segment(1, at, deaths=[mark]) for at in (10.0, 30.0, 20.0)]
    assert len(made) == MAX_ATTEMPTS
    made.insert(leaf_place, Segment(1, 25.0, leaves=[leaf_of(SOURCE, LINEAGES[1])]))
    store = folded(tmp_path / "ledger", *made)
    assert (list(store.failures()), store.attempts(SOURCE.id)) == ([], {mark.node: 1})
    assert not any(store.failed_mask([SOURCE.id]))
    store.close()


def test_of_many_deaths_the_newest_are_kept(tmp_path: Path) -> None:
    mark = mark_of(SOURCE)
    made = [Segment(1, at, deaths=[mark] * 60) for at in (30.0, 10.0, 20.0)]
    store = folded(tmp_path / "ledger", *made, Segment(1, 25.0, leaves=[leaf_of(SOURCE, LINEAGES[1])]))
    assert store.attempts(SOURCE.id) == {mark.node: 60}
    store.close()


def test_when_a_task_failed_last_and_why_is_said_by_its_failures_until_it_is_quarantined(tmp_path: Path) -> None:
    broke = Failure(SOURCE.id, (), "task", "Panic", "why", broke=True)
    died = mark_of(SOURCE)
    steps = [
        (Segment(1, 10.0, failures=[broke]), (1, "Panic", 10.0, False)),
        (Segment(1, 30.0, deaths=[died]), (2, "Panic", 10.0, False)),
        (Segment(1, 20.0, deaths=[died]), (3, "its worker died 3 times", 30.0, True)),
        (Segment(1, 40.0, failures=[broke]), (4, "its worker died 4 times", 40.0, True)),
    ]
    for number in range(len(steps)):
        store = folded(tmp_path / f"{number}", *(segment for segment, _ in steps[: number + 1]))
        (row,) = store.failures()
        assert (row.task, row.error) == ("task", "why")
        assert (row.attempts, row.reason, row.last, row.quarantined) == steps[number][1]
        store.close()
    store = folded(tmp_path / "deaths", *(Segment(1, at, deaths=[died]) for at in (10.0, 30.0, 20.0)))
    (row,) = store.failures()
    assert (row.task, row.attempts, row.reason, row.last) == ("task", 3, "its worker died 3 times", 30.0)
    store.close()


MEASURED = """
import resource, sys
from ledgerbeam.ledger.model.identity import source_id
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.rows import Failure
from ledgerbeam.ledger.model.task import Source

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

store = LmdbStore(sys.argv[1])
store.open(create=True)
for start in range(0, 40_000, 1000):
    sources = [Source(f"/data/{n:06d}.jsonl", n, "1") for n in range(start, start + 1000)]
    store.register(sources)
    messages = [f"{s.url}: {s.size} ".ljust(5000, "x") for s in sources]
    store.commit([], [Failure(s.id, (), s.url, "ValueError", text) for s, text in zip(sources, messages)])
store.close()
before = peak()
assert sum(1 for row in store.failures()) == 40_000
assert sum(store.failed_mask([source for page in store.source_ids() for source in page])) == 40_000
print(peak() - before)
"""


@pytest.mark.slow
def test_forty_thousand_failures_are_read_in_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "l")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 64  # MiB; their messages are 160 MB
