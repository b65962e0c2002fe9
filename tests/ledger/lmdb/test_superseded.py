"""Superseded outputs: those forgotten after their objects were deleted, and those that must stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import OUTPUTS, SUPERSEDED
from ledgerbeam.ledger.lmdb.withdrawal import decode_superseded, supersede
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote.segment import Segment
from tests.ledger.builders import plain
from tests.ledger.lmdb.test_failures import folded

OLD, NEW = plain("a", "1"), plain("a", "2")


def done(source: Source, *names: str) -> Leaf:
    return Leaf(source.id, (), "published" if names else "filtered", tuple(Output(name, 1, "x", 1) for name in names))


def finish(store: LedgerStore, source: Source, *names: str) -> None:
    store.register([source])
    store.commit([done(source, *names)])


def superseded(store: LedgerStore) -> list[str]:
    return sorted(name for page in store.superseded_names() for name in page)


def test_what_was_not_deleted_stays_stale(store: LmdbStore) -> None:
    finish(store, OLD, "x", "y", "z")
    finish(store, NEW)
    store.drop_stale(["y", "other"])
    assert store.stale_outputs() == ["x", "z"]
    store.drop_stale([])
    assert store.stale_outputs() == ["x", "z"]


def test_what_is_not_stale_yet_is_not_forgotten(store: LmdbStore) -> None:
    finish(store, OLD, "x", "y")
    store.register([NEW])
    store.drop_stale(["x"])
    store.commit([done(NEW)])
    assert store.stale_outputs() == ["x", "y"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_was_written_again_in_its_place_is_superseded_no_more(store: LmdbStore, forgotten: bool) -> None:
    finish(store, OLD, "x", "y")
    if forgotten:
        store.forget("*")
    finish(store, OLD if forgotten else NEW, "x")
    assert (store.stale_outputs(), superseded(store)) == (["y"], ["x", "y"])
    store.drop_stale(["y"])
    assert (store.stale_outputs(), superseded(store)) == ([], [])


def test_what_another_source_has_written_under_its_name_is_still_superseded(store: LmdbStore) -> None:
    finish(store, OLD, "x", "y")
    finish(store, NEW)
    finish(store, plain("b"), "y")
    store.drop_stale(store.stale_outputs())
    assert superseded(store) == ["y"]
    store.forget("*/b.jsonl")
    assert store.stale_outputs() == ["y"]


def test_outputs_of_a_pack_are_written_again_by_any_that_took_its_place(store: LmdbStore) -> None:
    pack = Source.pack([plain("a"), plain("b")])
    finish(store, pack, "first", "second", "third")
    finish(store, plain("a", "2"), "first")
    finish(store, plain("b", "2"), "second")
    assert store.stale_outputs() == ["third"]
    store.drop_stale(["third"])
    assert superseded(store) == []


def test_an_input_that_nobody_took_over_keeps_no_output_of_its_pack(store: LmdbStore) -> None:
    finish(store, Source.pack([plain("a"), plain("b")]), "first")
    store.register([NEW])
    assert store.stale_outputs() == []
    store.commit([done(NEW)])
    assert store.stale_outputs() == ["first"]


@pytest.mark.parametrize(("number", "left"), [(2, ["x", "y"]), (3, ["y"]), (4, ["y"])])
@pytest.mark.parametrize("complete", [False, True])
def test_who_deletes_in_a_remote_ledger_has_seen_what_was_superseded_before(
    tmp_path: Path, number: int, left: list[str], complete: bool
) -> None:
    made = [
        Segment(1, 10.0, sources=[OLD], leaves=[done(OLD, "x", "y")]),
        Segment(3, 30.0, sources=[NEW], leaves=[done(NEW)] if complete else []),
        Segment(number, 40.0, dropped=["x"]),
    ]
    store = folded(tmp_path / "host", *made)
    assert superseded(store) == left
    assert store.stale_outputs() == (left if complete else [])
    store.close()


def test_what_was_deleted_stays_so_for_whoever_learns_first_that_it_was_superseded_again(tmp_path: Path) -> None:
    again = Segment(5, 50.0, sources=[OLD], leaves=[done(OLD, "z")])
    last = Segment(7, 70.0, sources=[Source(NEW.url, 1, "3")], leaves=[done(Source(NEW.url, 1, "3"))])
    made = [
        Segment(1, 10.0, sources=[OLD], leaves=[done(OLD, "x", "y")]),
        Segment(3, 30.0, sources=[NEW], leaves=[done(NEW)]),
        Segment(4, 40.0, dropped=["x"]),
    ]
    in_time = folded(tmp_path / "in time", *made, again, last)
    late = folded(tmp_path / "late", again, last, *made)
    assert superseded(in_time) == superseded(late) == ["y", "z"]
    for store in (in_time, late):
        store.close()


def test_what_is_half_done_again_is_superseded_still(tmp_path: Path) -> None:
    half = Leaf(NEW.id, ((0, 2),), "published", (Output("x", 1, "x", 1),))
    made = [
        Segment(1, 10.0, leaves=[done(OLD, "x", "y")]),
        Segment(3, 30.0, sources=[NEW], leaves=[half]),
        Segment(4, 40.0, dropped=["other"]),
    ]
    store = folded(tmp_path / "host", *made)
    assert superseded(store) == ["x", "y"]
    store.close()


@pytest.mark.parametrize("numbers", [(3, 5), (5, 3)])
def test_what_is_superseded_twice_has_the_greater_number(store: LmdbStore, numbers: tuple[int, int]) -> None:
    finish(store, OLD, "x")
    with store._open().read() as txn:
        rows = list(txn.scan(OUTPUTS, OLD.id))
    for number in numbers:
        store._write(lambda txn, number=number: supersede(txn, rows, number))  # type: ignore[misc]
    with store._open().read() as txn:
        assert [decode_superseded(row) for _, row in txn.scan(SUPERSEDED, b"")] == [(5, "x")]


def test_what_comes_in_late_of_a_replaced_source_makes_those_run_again_whose_outputs_it_wrote_over(
    store: LmdbStore,
) -> None:
    store.register([OLD])
    finish(store, NEW, "x", "y")
    store.commit([done(OLD)])
    store.commit([done(OLD, "z")])
    assert store.completed_mask([NEW.id]) == [True]
    assert store.stale_outputs() == ["z"]
    store.commit([done(OLD, "y")])
    assert store.completed_mask([OLD.id, NEW.id]) == [False, False]
    assert store.stale_outputs() == []
    store.commit([done(NEW, "x", "y")])
    assert store.completed_mask([NEW.id]) == [True]
    assert store.stale_outputs() == ["z"]
    assert [row.output.name for row in store.outputs()] == ["x", "y"]


def test_one_output_of_several_that_a_late_task_wrote_over_is_enough(store: LmdbStore) -> None:
    finish(store, OLD, "u")
    finish(store, NEW, "x")
    store.commit([done(OLD, "w", "x", "z")])
    assert store.completed_mask([NEW.id]) == [False]
    with store._open().read() as txn:
        found = sorted(decode_superseded(row) for _, row in txn.scan(SUPERSEDED, b""))
    assert found == [(0, "u"), (0, "w"), (0, "x"), (0, "x"), (0, "z")], "a local ledger has no numbers"


def test_a_late_task_of_a_pack_makes_all_run_again_whose_outputs_it_wrote_over(store: LmdbStore) -> None:
    parts = [plain("a", "2"), plain("b", "2")]
    pack = Source.pack([plain("a", "1"), plain("b", "1")])
    store.register([pack])
    finish(store, parts[0], "x")
    finish(store, parts[1], "y")
    store.commit([done(pack, "x", "y")])
    assert store.completed_mask([source.id for source in parts]) == [False, False]


def test_a_late_task_makes_no_source_run_again_that_has_published_nothing_yet(store: LmdbStore) -> None:
    store.register([OLD])
    store.register([NEW])
    store.commit([done(OLD, "x")])
    store.commit([done(NEW, "x")])
    assert store.completed_mask([NEW.id]) == [True]
    assert store.stale_outputs() == []


def test_a_late_task_makes_others_run_again_whatever_is_recorded_beside_it(store: LmdbStore) -> None:
    beside = [plain(name) for name in "bcdefgh"]
    assert min(source.id for source in beside) < OLD.id < max(source.id for source in beside)
    store.register([OLD, *beside])
    finish(store, NEW, "x")
    store.commit([done(OLD, "x"), *(done(source, source.url) for source in beside)])
    assert store.completed_mask([NEW.id, *(source.id for source in beside)]) == [False] + [True] * len(beside)
