"""The job of a ledger and its runs."""

from __future__ import annotations

import time
from itertools import permutations
from typing import Any

import pytest

from ledgerbeam.errors import JobMismatchError, LedgerDamagedError, LedgerError, UsageError
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import KEY_ID, META, RUNS
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import SetUps, TaskCountsRow
from tests.ledger.builders import counted_leaf, leaf_of, plain

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
CHANGES: list[dict[str, Any]] = [
    {"listed": 3, "listing_finished": False, "ended": None, **LITTLE},
    {"listed": 5, "listing_finished": True, "outcome": None, **MUCH},
    {"ended": 10.0, "outcome": "failed", "tidied": True},
    {"ended": 20.0, "outcome": "done", "tidied": False},
]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_what_is_said_of_a_run_comes_to_the_same_in_any_order(store: LmdbStore, order: tuple[int, ...]) -> None:
    run = store.begin_run({"pid": 7})
    for place in order:
        store._write(lambda txn, place=place: lmdb_jobs.change_run(txn, run, CHANGES[place]))  # type: ignore[misc]
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
        store._write(lambda txn, run=run: lmdb_jobs.change_run(txn, run, CHANGES[0]))  # type: ignore[misc]
    assert store.runs() == []
    run = store.begin_run({})
    store._write(lambda txn: lmdb_jobs.change_run(txn, run, {"outcome": "x"}))
    (found,) = store.runs()
    assert (found["listed"], found["listing_finished"], found["outcome"]) == (None, False, "x")


def test_a_run_is_known_by_what_was_noted_of_it(store: LmdbStore) -> None:
    assert store.status()["last_run"] is None
    runs = [store.begin_run({"pid": pid}) for pid in range(11)]
    assert runs == [f"{number:06d}" for number in range(1, 12)]
    store.note_listing(runs[9], listed=4, finished=True)
    store.end_run(runs[9], "done", tidied=True)
    store.end_run(runs[10], "killed")
    ninth, tenth = store.runs()[9:]
    assert (ninth["listed"], ninth["listing_finished"], ninth["outcome"], ninth["tidied"]) == (4, True, "done", True)
    assert (tenth["listed"], tenth["listing_finished"], tenth["outcome"], tenth["tidied"]) == (
        None,
        False,
        "killed",
        False,
    )
    assert store.status()["last_run"] == tenth
    for change in (lambda: store.note_listing("000099", listed=1, finished=True), lambda: store.end_run("000099", "x")):
        with pytest.raises(LedgerError, match="run '000099' is not in this ledger"):
            change()


def test_a_run_that_says_what_cannot_be_read_is_refused(store: LmdbStore) -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        store.begin_run({"pid": "x"})
    with pytest.raises(LedgerDamagedError, match="expected a number"):
        store._write(lambda txn: lmdb_jobs.add_run(txn, "000001", {"pid": "x"}, 1.0))
    assert store.runs() == []
    with pytest.raises(LedgerError, match="run '000001' is not in this ledger"):
        store._write(lambda txn: lmdb_jobs.check_run(txn, "000001"))


def test_a_ledger_without_an_id_of_its_form_is_damaged(store: LmdbStore) -> None:
    for damaged in (b"", b"0" * 31, b"0" * 33, b"G" * 32):
        store._write(lambda txn, damaged=damaged: txn.put(META, KEY_ID, damaged))  # type: ignore[misc]
        with pytest.raises(LedgerDamagedError, match="expected an id"):
            store.ledger_id()
    store._write(lambda txn: txn.delete(META, KEY_ID))
    with pytest.raises(LedgerDamagedError, match="expected an id of 32 hexadecimal digits, found None"):
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
    with pytest.raises(JobMismatchError, match=f"expected {one.fingerprint}, found {two.fingerprint}"):
        LmdbStore(store.url, job=one.fingerprint).commit([])
    assert "the format of the ledger's jobs" in lmdb_jobs.mismatch(one, one, "here")


def test_the_set_ups_of_a_run_are_kept_as_they_were_noted_last(store: LmdbStore) -> None:
    first, _ = (store.begin_run({"pid": number}) for number in range(2))
    for found in (SetUps.of([1.5]), SetUps.of([1.5, 0.25])):
        store.note(first, found)
    store.end_run(first, "done")
    assert [run["set_ups"] for run in store.runs()] == [{"times": 2, "seconds": 1.75, "longest": 1.5}, None]
    with pytest.raises(LedgerError, match="is not in this ledger"):
        store.note("999999", SetUps())


def test_the_urls_of_some_sources_are_those_of_the_registered_ones(store: LmdbStore) -> None:
    sources = [plain(name) for name in "abc"]
    store.register(sources)
    asked = [sources[2].id, plain("unknown").id, sources[0].id]
    assert store.source_urls(asked) == {sources[2].id: sources[2].url, sources[0].id: sources[0].url}
    assert store.source_urls([]) == {}


def test_a_commit_says_how_long_it_took(store: LmdbStore) -> None:
    store.register([plain()])
    began = time.monotonic()
    result = store.commit([leaf_of(plain())])
    assert 0 < result.seconds <= time.monotonic() - began


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
