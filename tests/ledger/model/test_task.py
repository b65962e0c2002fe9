from __future__ import annotations

import pickle
from typing import Any

import pytest

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import node_id, pack_id, source_id
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.task import FailedTask, NoneTask, Source, Task
from tests.cases import each
from tests.ledger.builders import plain


def test_a_source_is_the_same_whatever_was_found_of_its_file() -> None:
    listed = Source("/data/a.jsonl", 10, "1")
    looked_at = Source("/data/a.jsonl", 10, "1", changed_ns=7, stored="etag")
    assert listed.id == looked_at.id
    assert {listed, Source("/data/a.jsonl", 10, "1"), looked_at} == {listed}
    assert Source("/data/a.jsonl", 10, "1", changed_ns=8) == looked_at
    assert Source("/data/a.jsonl", 10, "2") != listed
    assert repr(listed) == repr(Source("/data/a.jsonl", 10, "1"))
    with pytest.raises(TypeError):  # its id is never given
        Source("/data/a.jsonl", 10, "1", (), 7, "etag", b"id")  # type: ignore[call-arg]


def test_a_source_is_named_by_url_size_and_version() -> None:
    source = plain()
    assert source.id == source_id(source.url, source.size, source.version)
    assert source.id is source.id
    assert source.urls == ("/data/a.jsonl",)


def test_a_pack_is_named_by_its_members() -> None:
    one, two = plain("a"), plain("b", size=7)
    pack = Source.pack([one, two])
    assert pack.id == pack_id([one.id, two.id])
    assert pack.urls == (one.url, two.url)
    assert (pack.url, pack.size) == (one.url, 17)


def test_packs_are_not_empty_and_do_not_nest() -> None:
    with pytest.raises(UsageError, match="at least one member"):
        Source.pack([])
    nested = Source.pack([plain()])
    with pytest.raises(UsageError, match=r"b\.jsonl.*do not nest"):
        Source.pack([plain("b"), nested])
    with pytest.raises(UsageError, match=r"a\.jsonl.*do not nest"):
        Source("/data/a.jsonl", 1, "", (plain("b"), nested))


@each("values", [(1, 1, "1"), ("/a", "1", "1"), ("/a", -1, "1"), ("/a", True, "1"), ("/a", 1, 1)])
def test_a_source_that_no_ledger_can_hold_cannot_be_made(values: tuple[Any, Any, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        Source(*values)


def test_when_a_file_was_changed_is_no_part_of_its_identity_and_is_not_lost() -> None:
    source = Source("/data/a.jsonl", 10, "1", changed_ns=77)
    assert (source, source.id, plain().changed_ns) == (plain(), plain().id, 0)
    again = pickle.loads(pickle.dumps(source))
    assert (again, again.changed_ns) == (source, 77)


def test_a_pack_travels_with_all_that_is_known_of_its_members() -> None:
    names = [f"/data/{number:06d} \udcff" for number in range(1_000)]
    pack = Source.pack([Source(name, 10, str(place), changed_ns=place) for place, name in enumerate(names)])
    data = pickle.dumps(pack)
    again = pickle.loads(data)
    assert (again, again.id) == (pack, pack.id)
    assert [member.changed_ns for member in again.members] == list(range(1_000))
    assert len(data) < 16 * len(pack.members)  # an engine may hold ten million of them
    named = Source("/data/a", 5, "v", (plain(),), 3)
    again = pickle.loads(pickle.dumps(named))
    assert (again, again.changed_ns) == (named, 3)


def test_a_pack_travels_with_what_the_store_calls_the_contents_of_its_members() -> None:
    found = [("", 0), ("etag", 7), ("other", 0)]
    members = [Source(f"/data/{name}", 1, "content:x", changed_ns=at, stored=name) for name, at in found]
    again = pickle.loads(pickle.dumps(Source.pack(members)))
    assert [(member.stored, member.changed_ns) for member in again.members] == found


def test_children_carry_the_whole_path() -> None:
    root = Task(plain(), 0, 10)
    spans = root.split([(0, 4), (4, 10)])
    assert [(task.start, task.stop, task.lineage) for task in spans] == [(0, 4, ((0, 2),)), (4, 10, ((1, 2),))]
    batches = spans[1].fan_out([["x"], [], ["y"]])
    assert [task.lineage for task in batches] == [((1, 2), (n, 3)) for n in range(3)]
    assert [task.records for task in batches] == [["x"], [], ["y"]]
    assert batches[2].node == node_id(root.source.id, ((1, 2), (2, 3)))
    assert batches[2].name == "/data/a.jsonl[4:10]#2/3"
    assert root.fan_out([]) == []
    assert spans[1].fan_out(iter([["x"], [], ["y"]])) == batches


def test_children_keep_what_was_read_and_since_when() -> None:
    task = Task(plain(), 3, 9, (), ["r"], 5.5)
    assert (plain_task := Task(plain(), 3, 9)).records is None
    assert plain_task.started == 0
    (split,) = task.split([(3, 4)])
    assert (split.source, split.records, split.started) == (plain(), ["r"], 5.5)
    (batch,) = task.fan_out([["s"]])
    assert (batch.source, batch.start, batch.stop, batch.started) == (plain(), 3, 9, 5.5)
    assert pickle.loads(pickle.dumps(split)) == split


def test_how_the_bytes_of_its_records_are_read_is_no_part_of_what_a_task_is() -> None:
    task, held = Task(plain(), 3, 9), Task(plain(), 3, 9, raw=lambda: [b"a"])
    assert held == task
    assert repr(held) == repr(task)


def test_what_was_observed_of_a_task_goes_to_its_first_child_alone() -> None:
    seen = {"length": Statistic("count", b"3")}
    task = Task(plain(), 3, 9, statistics=seen)
    for children in (task.split([(3, 4), (4, 6), (6, 9)]), task.fan_out([["a"], ["b"], ["c"]])):
        assert [child.statistics for child in children] == [seen, {}, {}]
        assert [child.statistics for child in pickle.loads(pickle.dumps(children))] == [seen, {}, {}]


@each(
    ("records", "message", "counts", "expected"),
    [
        (None, "", None, None),
        (["r"], "", RecordCounts(2, 2), RecordCounts(2, 2)),
        (None, "too short", None, RecordCounts(6, 0, {"too short": 6})),
        (["r"], "too short", None, RecordCounts(1, 0, {"too short": 1})),
        ([], "too short", None, RecordCounts()),
        (["r"], "too short", RecordCounts(2, 1, {"other": 1}), RecordCounts(2, 1, {"other": 1})),
    ],
)
def test_the_records_of_a_task_that_was_filtered_out_for_a_reason_were_dropped_for_it(
    records: list[str] | None, message: str, counts: RecordCounts | None, expected: RecordCounts | None
) -> None:
    marker = NoneTask(Task(plain(), 3, 9, records=records), message, counts)
    assert (marker.message, marker.counts) == (message, expected)


def test_a_marker_of_a_task_that_was_filtered_out_holds_no_secret() -> None:
    marker = NoneTask(Task(plain(), 0, 1), "not at ftp://me:hunter2@host/")
    assert marker.counts is not None
    assert "hunter2" not in marker.message + str(dict(marker.counts.dropped))


def test_a_marker_of_a_failed_task_holds_no_secret() -> None:
    failed = FailedTask(Task(plain(), 0, 1), "at ftp://me:hunter2@host/", "at ftp://me:hunter2@host/")
    assert "hunter2" not in f"{failed}"
    assert not failed.broke


def test_tasks_survive_pickling_with_their_identity() -> None:
    task = Task(Source.pack([plain("a"), plain("b")]), 0, 2, ((0, 1),), ["r"])
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    assert again.node == task.node
    assert again.replace(records=None).node == task.node


@pytest.mark.parametrize("lineage", [((2, 2),), ((-1, 2),), ((0, 1), (0, 0))])
def test_a_leaf_with_an_impossible_lineage_cannot_be_made(lineage: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(UnsupportedShapeError, match="ordinal < count"):
        Leaf(plain().id, lineage)


def test_a_filtered_leaf_has_no_outputs() -> None:
    with pytest.raises(UnsupportedShapeError, match="out"):
        Leaf(plain().id, (), "filtered", (Output("out", 1, "x", 1),))
