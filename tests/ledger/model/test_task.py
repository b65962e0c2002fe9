from __future__ import annotations

import itertools
import pickle
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerError, UsageError
from ledgerbeam.ledger.model import identity, task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import ROOT, content_checksum, node_id, source_id
from ledgerbeam.ledger.model.task import FailedTask, NoneTask, Source, Task, pack_sources
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
    assert pack.id == identity.pack_id([one.id, two.id])
    assert pack.urls == (one.url, two.url)
    assert (pack.url, pack.size) == (one.url, 17)


def test_packs_are_not_empty_and_do_not_nest() -> None:
    with pytest.raises(UsageError, match="at least one member"):
        Source.pack([])
    nested = Source.pack([plain()])
    with pytest.raises(UsageError, match=r"b\.jsonl.*a pack cannot contain a pack"):
        Source.pack([plain("b"), nested])
    with pytest.raises(UsageError, match=r"a\.jsonl.*a pack cannot contain a pack"):
        Source("/data/a.jsonl", 1, "", (plain("b"), nested))


@each("values", [(1, 1, "1"), ("\ud800", 1, ""), ("/a", "1", "1"), ("/a", -1, "1"), ("/a", True, "1"), ("/a", 1, 1)])
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


sizes = st.lists(st.integers(0, 60), max_size=80)


def members(lengths: list[int]) -> list[Source]:
    return [Source(f"/data/{n:04d}.jsonl", size, "1") for n, size in enumerate(lengths)]


@given(sizes, st.integers(1, 100))
def test_packs_hold_all_members_in_order_within_their_limits(lengths: list[int], target: int) -> None:
    found = members(lengths)
    packs = list(pack_sources(found, target))
    assert [member for pack in packs for member in pack.members] == found
    for pack in packs:
        assert pack.size <= 2 * target or len(pack.members) == 1
    for pack, following in itertools.pairwise(packs):
        assert pack.size >= target // 4 or pack.size + following.members[0].size > 2 * target


@given(sizes, st.integers(1, 100))
def test_packs_by_folder_have_members_of_one_folder_each(lengths: list[int], target: int) -> None:
    found = [Source(f"/data/{n // 7}/{n:04d}.jsonl", size, "1") for n, size in enumerate(lengths)]
    packs = list(pack_sources(found, target, by_folder=True))
    assert [member for pack in packs for member in pack.members] == found
    folders = [{member.url.rpartition("/")[0] for member in pack.members} for pack in packs]
    assert all(len(one) == 1 for one in folders)
    apart = [list(pack_sources(part, target)) for _, part in itertools.groupby(found, lambda one: one.url[:-10])]
    assert packs == [pack for part in apart for pack in part], "as if each folder were packed alone"


def test_packs_have_the_target_size_on_average_and_a_new_member_moves_few() -> None:
    found = members([10] * 4000)
    packs = list(pack_sources(found, 200))
    assert 120 < 40_000 / len(packs) < 280
    other = list(pack_sources([*found[:2000], Source("/data/2000a.jsonl", 10, "1"), *found[2000:]], 200))
    assert len({pack.id for pack in packs} ^ {pack.id for pack in other}) <= 12


def test_a_pack_has_so_many_members_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MAX_MEMBERS", 3)
    assert [len(pack.members) for pack in pack_sources(members([0] * 7), 10)] == [3, 3, 1]
    with pytest.raises(UsageError, match="found 0"):
        list(pack_sources([], 0))
    assert [len(pack.members) for pack in pack_sources(members([1]), 1)] == [1]


@pytest.mark.parametrize(
    ("lengths", "target", "cut"),
    [
        ([5] * 160, 100, [40, 40, 11, 38, 31]),
        ([5] * 80, 40, [2, 2, 11, 2, 10, 4, 16, 7, 16, 9, 1]),
        ([n * 37 % 61 for n in range(40)], 100, [2, 2, 1, 4, 6, 2, 2, 5, 3, 4, 1, 8]),
        ([0] * 50_001, 100, [50_000, 1]),
    ],
)
def test_packs_are_cut_for_ever_where_they_are_cut_now(lengths: list[int], target: int, cut: list[int]) -> None:
    # A pack that is cut elsewhere is another source: every ledger of packs would forget its work.
    assert [len(pack.members) for pack in pack_sources(members(lengths), target)] == cut


TEXT = st.text(alphabet="ab:/0129\0", max_size=6)
TRIPLE = st.tuples(TEXT, st.integers(0, 10**12), TEXT)
LINEAGE = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=4).map(tuple)


def test_identities_stay_what_they_are_for_ever() -> None:
    # A change of any of these makes every existing ledger forget its work.
    source = source_id("s3://bucket/part-000.jsonl", 1234, "etag-1")
    assert source.hex() == "200daa159acb2ba6573bf4916f7aea7b"
    assert node_id(source, ()).hex() == "f59274ffe81676de4d4656fd35b0d609"
    assert node_id(source, ((2, 7), (0, 1))).hex() == "6c63a004d5c108cbcc678b7a0f307264"
    assert identity.pack_id([source, source]).hex() == "032273f141950ec1e1f342bb05150a0c"
    assert identity.url_key("s3://bucket/part-000.jsonl").hex() == "f4f305ea3007630c72bb03af7a53c122"
    assert identity.name_key("part-000-0.jsonl").hex() == "20e680125d01173ce8818803e68890bb"
    assert bytes(16) == ROOT


@given(TRIPLE, TRIPLE)
def test_sources_that_differ_have_different_ids(one: tuple[str, int, str], other: tuple[str, int, str]) -> None:
    assert (source_id(*one) == source_id(*other)) == (one == other)


@given(LINEAGE, LINEAGE)
def test_other_tasks_have_other_nodes(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> None:
    source = source_id("/a", 1, "1")
    assert (node_id(source, one) == node_id(source, other)) == (one == other)
    assert node_id(source, one) != ROOT


@given(st.lists(TRIPLE, max_size=5))
def test_ids_of_a_page_equal_ids_one_by_one(rows: list[tuple[str, int, str]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    assert identity.source_ids(*columns) == [source_id(*row) for row in rows]


def test_ids_of_a_ragged_page_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        identity.source_ids(["/a", "/b"], [1], ["1", "1"])


def test_a_pack_depends_on_the_order_of_its_members_and_is_no_plain_source() -> None:
    one, two = source_id("/a", 1, "1"), source_id("/b", 1, "1")
    assert len({identity.pack_id([one, two]), identity.pack_id([two, one]), identity.pack_id([one]), one, two}) == 5


def test_a_local_name_that_is_not_utf8_has_an_id() -> None:
    name = b"/data/\xff.jsonl".decode("utf-8", "surrogateescape")
    assert source_id(name, 1, "1") != source_id("/data/\u00ff.jsonl", 1, "1")
    assert len(identity.url_key(name)) == len(identity.name_key(name)) == 16


def test_a_checksum_says_its_algorithm_and_does_not_depend_on_chunks() -> None:
    # The test vector of BLAKE3 for no input; the checksum is its first 16 bytes.
    assert content_checksum([]) == "blake3:af1349b9f5f9a1a6a0404dea36dcc949"
    assert content_checksum([b"ab", b"", b"c"]) == content_checksum([b"abc"]) != content_checksum([b"abd"])


def test_a_recorded_checksum_is_compared_with_one_of_its_own_algorithm() -> None:
    earlier = blake2b(b"abc", digest_size=16).hexdigest()
    assert content_checksum([b"a", b"bc"], like=earlier) == earlier
    assert content_checksum([b"abc"], like=content_checksum([b"x"])) == content_checksum([b"abc"])
    assert identity.are_comparable(earlier, "0" * 32)
    assert not identity.are_comparable(earlier, content_checksum([b"abc"]))


def test_an_algorithm_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(LedgerError, match="found later:1234; use the version"):
        content_checksum([b"abc"], like="later:1234")


@pytest.mark.parametrize("checksum", ["blake3:af13", "af13", ""])
def test_the_version_of_a_content_names_its_checksum(checksum: str) -> None:
    assert identity.content_version(checksum) == f"content:{checksum}"
    assert identity.checksum_of(identity.content_version(checksum)) == checksum


@pytest.mark.parametrize("version", ["", "af13", "blake3:af13", "1700000000000000000"])
def test_another_version_names_no_checksum(version: str) -> None:
    assert identity.checksum_of(version) is None
