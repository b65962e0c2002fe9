"""The rows of a snapshot, one by one: their effect on a ledger, and invalid rows."""

# mypy: disable-error-code="func-returns-value"
# A step is its effect: a tuple of calls without results, in order.

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, NonDeterministicTaskError, UnsupportedShapeError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb.commit import prepare, record
from ledgerbeam.ledger.lmdb.failures import Stamp
from ledgerbeam.ledger.lmdb.sources import register
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import APPLIED, COUNTS, META, OUTPUTS, PENDING, Transaction
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic, counts_row, statistics_row
from ledgerbeam.ledger.model.identity import ROOT, node_id
from ledgerbeam.ledger.model.rows import Failure, Leaf, Output, Totals, output_row
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS, LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.registration import KEY_NUMBER, hold_open, register_sources
from ledgerbeam.ledger.remote.replay import segment_name
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.snapshot import cutoff_pages, merge_state, state_pages, supersede_state
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import (
    ONE,
    TWO,
    counted_leaf,
    failure_of,
    filtered_leaf,
    leaf_of,
    leaves_of_split,
    mark_of,
    plain,
    sum_of,
)
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import picture, registered, replaces, several, superseded

ID, NODE = plain().id.hex(), node_id(plain().id, ()).hex()
OUTPUT = ["a.jsonl", 1, "sum", 2, 0]


def merge(store: RemoteStore, number: int = 1, /, **state: Any) -> None:
    store._open().write(lambda txn: merge_state(txn, state, number))


def rows_of(store: RemoteStore) -> dict[str, list[Any]]:
    """Everything that a snapshot would keep."""
    found: dict[str, list[Any]] = {}
    with store._open().read() as txn:
        for page in (*cutoff_pages(txn), *state_pages(txn)):
            for name, rows in page.items():
                found.setdefault(name, []).extend(decode(encode(rows)))
    return found


BAD: dict[str, list[Any]] = {
    "complete": [
        ["00", 1, [1, 1, 1, 0, 1], []],
        [ID, -1, [1, 1, 1, 0, 1], []],
        [ID, 1.5, [1, 1, 1, 0, 1], []],
        [ID, 1, [1, 1, 1, 0], []],
        [ID, 1, [1, 1, 1, 0, 1, 1], []],
        [ID, 1, [1, -1, 1, 0, 1], []],
        [ID, 1, None, []],
        [ID, 1, [1, 1, 1, 0, 1], None],
        [ID, 1, [1, 1, 1, 0, 1], [["../a", 1, "sum", 2, 0]]],
        [ID, 1, [1, 1, 1, 0, 1], [OUTPUT[:4]]],
        [ID, 1, [1, 1, 1, 0, 1]],
        [ID, 2**35, [1, 1, 1, 0, 1], []],
    ],
    "contradicted": [["00"], [None], []],
    "passed": [["00", NODE, 1, 1.0], [ID, "00", 1, 1.0], [ID, NODE, -1, 1.0], [ID, NODE, 1, -1.0], [ID, NODE, 1]],
    "failed": [
        ["00", NODE, "t", "r", "e", 1, 1.0, 1],
        [ID, "00", "t", "r", "e", 1, 1.0, 1],
        [ID, NODE, 1, "r", "e", 1, 1.0, 1],
        [ID, NODE, "t", None, "e", 1, 1.0, 1],
        [ID, NODE, "t", "r", 3, 1, 1.0, 1],
        [ID, NODE, "t", "r", "e", 0, 1.0, 1],
        [ID, NODE, "t", "r", "e", 1, -1.0, 1],
        [ID, NODE, "t", "r", "e", 1, 1.0, -1],
        [ID, NODE, "t", "r", "e", 1, 1.0],
    ],
    "attempts": [
        ["00", NODE, "t", []],
        [ID, "00", "t", []],
        [ID, NODE, 1, []],
        [ID, NODE, "t", None],
        [ID, NODE, "t", [[1, 1.0, 0]]],
        [ID, NODE, "t", [[1, 1.0, 0, 1]]],
        [ID, NODE, "t", [[-1, 1.0, 0, True]]],
        [ID, NODE, "t", [[1, -1.0, 0, True]]],
        [ID, NODE, "t", [[1, 1.0, -1, True]]],
    ],
    "superseded": [["00", "a", 1], [ID, "../a", 1], [ID, "", 1], [ID, "a", -1], [ID, "a"]],
    "retired": [["00", ["u"], 1], [ID, "u", 1], [ID, [1], 1], [ID, ["u"], -1], [ID, ["u"]]],
    "cutoffs": [["00", [0, 0], [0, 0]], [ID, [0, 0]], [ID, [0, -1], [0, 0]], [ID, [0, 0], [0.5, 0]], [ID, 1, 2]],
    "replaces": [["00"], []],
    "back": [["00", 1], [ID, -1], [ID]],
    "history": [
        *([1] * 7, [1] * 10, [2**32, *[1] * 8], [-1, *[1] * 8], [1, 10**12, *[1] * 7], [1, -1, *[1] * 7]),
        *([1, 1, *[-1] * 7], [1, 1, *[0.5] * 7], [2**32, *[1] * 7], [1, *[-1] * 7]),
    ],
    "durations": [[1], [2**16, 1], [-1, 1], [1, -1], [1, 1, 1]],
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_that_cannot_be_is_refused(hosts: Hosts, name: str) -> None:
    store = hosts.store(plain())
    before = picture(store)
    for row in [*BAD[name], None, "row", {}]:
        # What `INVALID_ROWS` has, as it comes out of a transaction.
        with pytest.raises((LedgerDamagedError, UnsupportedShapeError), match=r"\((ValueError|error): |be recorded: "):
            merge(store, **{name: [row]})
    with pytest.raises(LedgerDamagedError, match=r"\(ValueError: expected a list"):
        merge(store, **{name: {}})
    segment = Segment(0, 1.0, state={name: [BAD[name][0]]})
    hosts.objects.create("segments/000000/t-hand-000001.seg", encode_segment(segment))
    with pytest.raises(LedgerDamagedError, match="t-hand"):
        store.refresh()
    assert picture(store) == before


def test_the_greatest_steps_of_time_and_duration_are_taken(hosts: Hosts) -> None:
    store = hosts.store()
    for _ in range(2):
        merge(store, history=[[2**32 - 1, 10**12 - 1, 1, 2, 3, 4, 5, 6, 7]], durations=[[2**16 - 1, 3]])
    merge(store, history=[[2**32 - 1, 10**12 - 1, 0, 9, 0, 9, 0, 9, 0]], durations=[[2**16 - 1, 2]])
    kept = rows_of(store)
    assert kept["history"] == [[2**32 - 1, 10**12 - 1, 1, 9, 3, 9, 5, 9, 7]]
    assert kept["durations"] == [[2**16 - 1, 3]]


def test_history_of_an_older_version_is_of_no_run(hosts: Hosts) -> None:
    store = hosts.launcher()
    for _ in range(2):
        merge(store, history=[[1, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1, 1, 1]])
    assert [(row.run, row.totals.records) for row in store.history()] == [(None, 2), ("000001", 1)]
    assert rows_of(store)["history"] == [[1, 0, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1, 1, 1]]


def test_a_snapshot_of_a_ledger_says_it_again_and_again(hosts: Hosts) -> None:
    store = hosts.launcher()
    sources = several(store, "done", "begun", "failed", "died", "old")
    store.register([plain("old", "2")])
    store.commit([leaf_of(sources[0]), leaf_of(sources[1], ((0, 2), (0, 2)))], [failure_of(sources[2])])
    store.record_deaths([mark_of(sources[3])])
    store.forget(sources[0].url)
    store.begin_run({})
    store.commit([leaf_of(sources[0], content="again")])
    before, kept = picture(store), rows_of(store)
    assert {name for name, rows in kept.items() if rows} == {
        *("cutoffs", "retired", "replaces", "replaced", "complete", "passed", "failed", "attempts", "superseded"),
        *("history", "durations"),
    }
    for _ in range(2):
        merge(store, 2, **kept)
        assert rows_of(store) == kept
        assert picture(store) == before


def test_a_source_that_a_snapshot_completes_has_what_it_says_and_nothing_of_before(hosts: Hosts) -> None:
    store = hosts.store(plain())
    store.commit(leaves_of_split(plain(), 3)[:1], [failure_of(plain(), ((1, 3),))])
    outputs = [["b.jsonl", 7, "sum-b", 3, 5, 2], OUTPUT]
    merge(store, 0, complete=[[ID, 1234, [2, 30, 400, 1, 50], outputs]])
    (row,) = store.sources()
    assert (row.state, row.completed, row.totals) == ("complete", 1234, Totals(2, 30, 400, 1, 50))
    assert store.totals() == Totals(2, 30, 400, 1, 50)
    assert {"a.jsonl", "b.jsonl"} <= {row.output.name for row in store.outputs() if row.complete}
    assert {row.output.nulled for row in store.outputs() if row.output.name == "b.jsonl"} == {2}
    assert (list(store.failures()), store.applied(plain().id), store.pending(plain().id)) == ([], {}, 0)


def test_a_source_that_is_not_registered_leaves_the_outputs_of_a_snapshot_behind(hosts: Hosts) -> None:
    store = hosts.store()
    merge(store, 1, complete=[[ID, 1234, [1, 1, 1, 0, 1], [OUTPUT]]])
    assert (store.completed_count(), store.totals()) == (0, Totals())
    assert superseded(store) == ["a.jsonl"]


def test_what_a_snapshot_of_a_former_job_says_is_superseded(hosts: Hosts) -> None:
    store = hosts.store()
    state = {"complete": [[ID, 1, [1, 1, 1, 0, 1], [OUTPUT]]], "superseded": [[ID, "b.jsonl", 1]], "history": [[1] * 8]}
    store._open().write(lambda txn: supersede_state(txn, state, 7))
    assert superseded(store) == ["a.jsonl", "b.jsonl"]
    assert sorted(row[1:] for row in rows_of(store)["superseded"]) == [["a.jsonl", 7], ["b.jsonl", 1]]
    assert store.history() == []


def test_a_newer_failure_of_a_snapshot_takes_the_place_of_an_older_one(hosts: Hosts) -> None:
    store = hosts.store(plain())
    store.commit([], [Failure(plain().id, (), "task", "ValueError", "known")])
    (known,) = store.failures()
    older = [ID, NODE, "task", "KeyError", "older", 1, 0.0, 0]
    newer = [ID, NODE, "task", "TypeError", "newer", 3, known.last + 5, 1]
    merge(store, failed=[older])
    assert [(row.error, row.attempts, row.last) for row in store.failures()] == [("known", 1, known.last)]
    for _ in range(2):
        merge(store, failed=[newer])
        assert [(row.reason, row.error, row.attempts, row.last) for row in store.failures()] == [
            ("TypeError", "newer", 3, known.last + 5)
        ]


def test_the_failure_of_a_later_run_is_the_newer_one_though_the_clock_of_its_host_is_behind(hosts: Hosts) -> None:
    store = hosts.store(plain())
    for number, last in ((2, 1000.0), (3, 5.0), (1, 2000.0)):
        merge(store, 9, failed=[[ID, NODE, "task", "ValueError", f"of run {number}", 1, last, number]])
    assert [(row.error, row.last) for row in store.failures()] == [("of run 3", 5.0)]


def test_deaths_are_counted_once_each(hosts: Hosts) -> None:
    store = hosts.store(plain())
    for deaths in ([[0, 1.0, 0, False]], [[0, 1.0, 0, False], [0, 1.0, 1, False]], [[0, 2.0, 0, True]]):
        merge(store, 0, attempts=[[ID, NODE, "task", deaths]])
    assert store.attempts(plain().id) == {bytes.fromhex(NODE): 3}
    (failure,) = store.failures()
    assert (failure.task, failure.quarantined) == ("task", True)


def test_a_fan_out_that_a_later_run_has_got_below_is_not_failed_by_an_earlier_one(hosts: Hosts) -> None:
    store = hosts.store(plain())
    store.commit([leaf_of(plain(), ((0, 2),))])
    row = [ID, ROOT.hex(), 5, 100.0]
    merge(store, passed=[row, [ID, ROOT.hex(), 4, 900.0]])
    kept = [found for found in rows_of(store)["passed"] if found[1] == ROOT.hex()]
    assert kept in ([row], [])
    merge(store, passed=[[ID, node_id(plain().id, ((1, 2),)).hex(), 5, 1.0]])  # which has not fanned out: no matter
    assert store.pending(plain().id) == 1


def test_a_death_that_a_later_run_got_below_does_not_count_however_late_it_is_told(hosts: Hosts) -> None:
    store = hosts.store(plain())
    leaf = leaf_of(plain(), ((0, 2), (0, 2)))
    store._open().write(lambda txn: record(txn, prepare([leaf]), [], Stamp(5, 10.0), passed=Stamp(5, 10.0)))
    node = node_id(plain().id, ((0, 2),)).hex()
    merge(store, 9, attempts=[[ID, node, "task", [[4, 90.0, 0, False]]]])
    assert store.attempts(plain().id) == {}
    merge(store, 9, attempts=[[ID, node, "task", [[5, 90.0, 0, False]]]])
    assert store.attempts(plain().id) == {bytes.fromhex(node): 1}


def test_a_url_goes_to_who_comes_next_once_its_source_is_retired(hosts: Hosts) -> None:
    store = hosts.store(plain(version="1"))
    merge(store, 3, retired=[[ID, [plain().url], 3]])
    assert list(store.sources()) == []
    merge(store, 3, retired=[[plain(version="2").id.hex(), [plain().url], 2]])
    assert sorted(row[2] for row in rows_of(store)["retired"]) == [2, 3]
    for _ in range(3):
        store.begin_run({})
    store.register([plain(version="3")])
    (row,) = store.sources()
    assert row.source_id == plain(version="3").id
    assert replaces(store, plain(version="3")) == [True]


DONE = [ID, 1234, [2, 30, 400, 1, 50], [OUTPUT]]


def rule_out(store: RemoteStore, leaves: int, failures: int) -> RemoteStore:
    """Let leaves and failures of the source count from some numbers on."""
    merge(store, cutoffs=[[ID, [0, leaves], [0, failures]]])
    return store


@pytest.mark.parametrize(("number", "counts"), [(4, False), (5, True), (6, True)])
def test_a_snapshot_counts_from_the_cutoffs_of_leaves_and_of_failures_on(
    hosts: Hosts, number: int, counts: bool
) -> None:
    store, other = (rule_out(numbered_host(hosts, 0, plain()), 5, 9) for _ in range(2))
    sketch = [ID, NODE, statistics_row({"length": Statistic("count", b"5")})]
    merge(store, number, complete=[DONE], statistics=[sketch])
    assert store.completed_count() == counts
    assert list(store.statistics()) == [("length", Statistic("count", b"5"))] * counts
    assert superseded(store) == ["a.jsonl"] * (not counts)
    merge(other, number, contradicted=[[ID]])
    assert (other.pending(plain().id) > 1) == counts
    assert rows_of(other).get("contradicted") == [[ID]] * counts
    merge(other, 9, complete=[DONE])
    assert other.completed_count() == (not counts)
    failed = rule_out(numbered_host(hosts, 0, plain()), 9, 5)
    merge(failed, number, failed=[[ID, NODE, "task", "KeyError", "why", 2, 10.0, 7]])
    assert [(row.task, row.error, row.attempts) for row in failed.failures()] == [("task", "why", 2)] * counts
    died = rule_out(numbered_host(hosts, 0, plain()), 9, 5)
    merge(died, number, attempts=[[ID, NODE, "task", [[7, 1.0, 0, False]]]])
    assert died.attempts(plain().id) == ({bytes.fromhex(NODE): 1} if counts else {})


def test_a_finished_task_has_neither_failures_nor_deaths(hosts: Hosts) -> None:
    store = hosts.store(plain())
    store.commit(leaves_of_split(plain(), 2)[:1])
    node = node_id(plain().id, ((0, 2),)).hex()
    merge(store, 9, failed=[[ID, node, "t", "r", "e", 1, 9e9, 9]], attempts=[[ID, node, "t", [[9, 9e9, 0, False]]]])
    assert (list(store.failures()), store.attempts(plain().id)) == ([], {})


def test_of_a_source_that_a_snapshot_completes_nothing_is_left_that_its_tasks_had_recorded(hosts: Hosts) -> None:
    store = hosts.store(plain(), plain("plain"))
    first = counted_leaf(plain(), ((0, 2),))
    store.commit([first])
    environment = store._open()
    with environment.read() as txn:
        before = list(txn.scan(OUTPUTS, plain().id))
    counts = RecordCounts(6, 4, {"why": 2}, {}, {"": 4})
    account = [NODE, [*counts_row(counts), 400, 50]]
    known = output_row(first.outputs[0])
    state = {"complete": [[ID, 1234, [1, 4, 400, 0, 50], [known, OUTPUT], [account]]]}
    for _ in range(2):
        merge(store, 0, **state)
        assert store.records() == counts
        assert list(store.statistics()) == []
    with environment.read() as txn:
        assert [txn.count(table) for table in (APPLIED, PENDING, COUNTS)] == [0, 0, 1]
        after = list(txn.scan(OUTPUTS, plain().id))
    assert (len(before), len(after), set(before) <= set(after)) == (1, 2, True)
    merge(store, 0, complete=[[plain("plain").id.hex(), 1234, [1, 4, 400, 0, 50], []]])
    assert sorted(map(len, rows_of(store)["complete"])) == [4, 5]
    assert next(row for row in rows_of(store)["complete"] if row[0] == ID)[4] == [account]


def test_statistics_of_a_snapshot_are_those_of_complete_sources_and_are_taken_in_once(hosts: Hosts) -> None:
    store = hosts.store(plain(), plain("open"))
    sketches = [statistics_row({"length": Statistic("count", data)}) for data in (b"1", b"2")]
    open_id = plain("open").id.hex()
    open_node = node_id(plain("open").id, ()).hex()
    merge(store, 0, complete=[DONE], statistics=[[open_id, open_node, sketches[0]], [ID, NODE, []]])
    assert list(store.statistics()) == []
    for sketch in sketches:
        merge(store, 0, statistics=[[ID, NODE, sketch]])
        assert list(store.statistics()) == [("length", Statistic("count", b"1"))]
    store.commit([counted_leaf(plain("open"), ((0, 2),))])
    assert rows_of(store)["statistics"] == [[ID, NODE, sketches[0]]]
    rule_out(store, 5, 9)
    for number, data in ((4, []), (5, [b"2"])):
        merge(store, number, statistics=[[ID, ROOT.hex(), sketches[1]]])
        assert [sketch.data for _, sketch in store.statistics() if sketch.data == b"2"] == data
    for bad in ([ID, "00", sketches[0]], [ID, NODE, sketches[0], 1]):
        with pytest.raises(LedgerDamagedError, match="ValueError"):
            merge(store, 9, statistics=[bad])


@pytest.mark.parametrize("children", [1, 2])
def test_a_failure_of_a_fan_out_is_over_once_a_later_run_got_below_it(hosts: Hosts, children: int) -> None:
    store = hosts.store(plain())
    store._open().write(
        lambda txn: record(txn, prepare([leaf_of(plain(), ((0, 2), (0, children)))]), [], Stamp(1, 10.0))
    )
    fanned_out = node_id(plain().id, ((0, 2),)).hex()
    leaf, other = (node_id(plain().id, lineage).hex() for lineage in (((0, 2), (0, children)), ((1, 2),)))
    failed = [ID, fanned_out, "task", "r", "e", 1, 50.0, 4]
    merge(store, 4, failed=[failed])
    for number, at, is_over in ((4, 50.0, False), (3, 90.0, False), (5, 1.0, True), (4, 90.0, True)):
        merge(store, 9, passed=[[ID, node, number, at] for node in (fanned_out, leaf, other)])
        assert [row.error for row in store.failures()] == ["e"] * (not is_over)
    assert [ID, fanned_out, 5, 1.0] in rows_of(store)["passed"]
    assert not {leaf, other} & {row[1] for row in rows_of(store)["passed"]}
    merge(store, 9, failed=[failed])
    assert list(store.failures()) == []
    merge(store, 9, failed=[[*failed[:-2], 1.0, 5]])
    assert [row.error for row in store.failures()] == ["e"]


def test_a_task_keeps_the_name_under_which_it_died_first(hosts: Hosts) -> None:
    store = hosts.store(plain())
    deaths = [[number % 3, float(at), number, False] for number, at in enumerate((5, 1, 4, 2, 8, 3, 7, 6))]
    for name in ("first", "second"):
        merge(store, 0, attempts=[[ID, NODE, name, deaths]])
    assert rows_of(store)["attempts"] == [[ID, NODE, "first", sorted(deaths)]]
    assert rows_of(store)["failed"] == []
    assert [row.task for row in store.failures()] == ["first"]


def test_that_a_source_is_contradicted_is_kept_and_its_failure_is_made_of_its_leaves(hosts: Hosts) -> None:
    store = hosts.store(plain())
    error = NonDeterministicTaskError("contradicts another")
    store._open().write(lambda txn: hold_open(txn, plain().id, (), error, 1.0))
    assert len(list(store.failures())) == 1
    assert (rows_of(store)["contradicted"], rows_of(store)["failed"]) == ([[ID]], [])


def test_an_output_is_superseded_with_the_greatest_number_that_is_known(hosts: Hosts) -> None:
    store = hosts.store()
    for number, known in ((0, 0), (5, 5), (3, 5)):
        merge(store, 9, superseded=[[ID, "a", number]])
        assert rows_of(store)["superseded"] == [[ID, "a", known]]


def numbered_host(hosts: Hosts, number: int, *sources: Source) -> RemoteStore:
    """Return a host on which a run with a number has registered sources."""
    store = hosts.store()
    numbered(store, number, *sources)
    return store


def numbered(store: RemoteStore, number: int, *sources: Source) -> None:
    """Register sources as a run of some number does."""
    store._open().write(lambda txn: register(txn, sources, number=number))


@pytest.mark.parametrize(
    ("registered", "retired", "is_gone"), [(0, 0, False), (0, 1, True), (2, 2, False), (2, 3, True)]
)
def test_a_source_is_retired_by_its_later_successor(hosts: Hosts, registered: int, retired: int, is_gone: bool) -> None:
    store = numbered_host(hosts, registered, plain())
    for _ in range(2):
        merge(store, 9, retired=[[ID, [plain().url], retired]])
        assert store.source_count() == (not is_gone)
        assert rows_of(store).get("retired", []) == [[ID, [plain().url], retired]] * is_gone


def test_a_source_replaced_twice_was_replaced_with_the_greater_number(hosts: Hosts) -> None:
    for order in ((5, 3), (3, 5)):
        store = hosts.store()
        for number in order:
            merge(store, 9, retired=[[ID, [plain().url], number]])
        assert rows_of(store)["retired"] == [[ID, [plain().url], 5]]


def test_the_url_of_a_retired_source_is_that_of_who_has_it(hosts: Hosts) -> None:
    store = hosts.store()
    old, new, newest = (plain(version=version) for version in "123")
    merge(store, 9, retired=[[old.id.hex(), [old.url], 3]])
    numbered(store, 4, new)
    assert replaces(store, new) == [True]
    merge(store, 9, retired=[[plain(version="0").id.hex(), [old.url], 3]])
    numbered(store, 5, newest)
    assert [row.source_id for row in store.sources()] == [newest.id]


@pytest.mark.parametrize(
    ("registered", "cutoff", "known"),
    [
        (1, [0, 0], [0, 0]),
        (1, [0, 3], [0, 3]),
        (1, [2, 0, 3], [2, 0, 3]),
        (2, [4, 0, 5, 8], [4, 0, 5, 8]),
        (4, [3, 0, 5], [3, 0, 4, 5]),
        (5, [3, 0, 5], [3, 0, 5]),
        (6, [3, 0, 5], [3, 0, 5, 6]),
    ],
)
def test_replaced_work_is_done_again(hosts: Hosts, registered: int, cutoff: list[int], known: list[int]) -> None:
    """It was done with number 0, whichever registrations of the source this host has seen."""
    store = numbered_host(hosts, registered, plain())
    store.commit([leaf_of(plain())])
    merge(store, 9, cutoffs=[[ID, cutoff, [0, 0]]])
    withdrawn = bool(cutoff[0])
    assert store.completed_count() == (not withdrawn)
    names = [output.name for output in leaf_of(plain()).outputs]
    assert [row[1:] for row in rows_of(store).get("superseded", [])] == [[names[0], cutoff[0]]] * withdrawn
    assert rows_of(store)["cutoffs"][0][1] == known
    store._open().write(lambda txn: record(txn, prepare([leaf_of(plain())]), [], Stamp(8, 10.0)))
    merge(store, 9, cutoffs=[[ID, cutoff, [0, 0]]])
    assert store.completed_count() == 1


def test_what_is_said_of_sources_that_nobody_registered_changes_nothing(hosts: Hosts) -> None:
    store = hosts.store()
    merge(store, 9, replaces=[[ID]], back=[[ID, 5]], cutoffs=[[ID, [3, 0, 5], [0, 0]]], contradicted=[[ID]])
    assert store.source_count() == 0
    assert rows_of(store) == {"cutoffs": [[ID, [3, 0, 5], [0, 0]]]}


def test_that_a_source_replaces_another_and_is_back_is_kept(hosts: Hosts) -> None:
    store = hosts.store(plain())
    for _ in range(2):
        merge(store, 9, replaces=[[ID]], back=[[ID, 5]])
        assert (rows_of(store)["replaces"], rows_of(store)["back"]) == ([[ID]], [[ID, 5]])
    assert replaces(store, plain()) == [True]


def test_outputs_of_a_source_that_a_snapshot_replaces_are_superseded_with_its_number(hosts: Hosts) -> None:
    """Whoever deletes them has seen the snapshot, not the replacement."""
    store = hosts.store()
    for number in (1, 5):
        store._open().write(lambda txn, number=number: register_sources(txn, [plain()], number))  # type: ignore[misc]
    merge(store, 9, replaced=[[ID, 3]], complete=[DONE], tenures=[])
    assert store.completed_mask([plain().id]) == [False]
    assert rows_of(store)["superseded"] == [[ID, "a.jsonl", 9]]


def test_steps_in_which_nothing_happened_are_kept_as_such(hosts: Hosts) -> None:
    store = hosts.store()
    merge(store, history=[[3, 1, *[0] * 7]], durations=[[2, 0]])
    assert (rows_of(store)["history"], rows_of(store)["durations"]) == ([[3, 1, *[0] * 7]], [[2, 0]])


@pytest.mark.parametrize(
    "state", [{"complete": [[*DONE, [], []]]}, {"complete": [DONE[:3]]}, {"superseded": [[ID, "a"]]}]
)
def test_rows_of_another_length_are_refused_of_a_former_job_too(hosts: Hosts, state: dict[str, Any]) -> None:
    store = hosts.store(plain())
    for change in (supersede_state, merge_state):
        with pytest.raises(LedgerDamagedError, match="ValueError"):
            store._open().write(lambda txn, change=change: change(txn, state, 7))  # type: ignore[misc]


OLD, NEW, OTHER = plain(), plain(version="2"), plain("b")

Objects = dict[str, bytes]


class History:
    """A ledger whose objects are kept as they were after each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.objects = ObjectFolder(str(folder / "ledger"))
        self.store = RemoteStore(self.objects, str(folder / "writer"))
        self.store.open(create=True)
        self.store.open_job(ONE)
        self.run = self.store.begin_run({})
        self._others = 0

    def begin(self) -> None:
        self.run = self.store.begin_run({})

    def commit(self, *leaves: Leaf, failures: tuple[Failure, ...] = (), run: str = "") -> None:
        """Record as a worker does that knows nothing of others."""
        RemoteSink(self.objects, run=run or self.run).commit(leaves, failures)

    def sweep(self) -> None:
        """Record that stale outputs were deleted, if there were any."""
        self.store.refresh()
        stale = self.store.stale_outputs()
        assert stale
        self.store.drop_stale(stale)

    def put(self, segment: Segment) -> None:
        self._others += 1
        name = segment_name(segment, segment.number, "hand", self._others)
        assert self.objects.create(name, encode_segment(segment))

    def now(self) -> Objects:
        names = self.objects.names("")
        return {name: data for name, data in zip(names, self.objects.read(names), strict=True) if data is not None}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path)
    yield history
    history.store.close()


def add(folder: ObjectFolder, objects: Objects) -> None:
    for name, data in objects.items():
        path = Path(folder.url, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def compacted(folder: Path, objects: Objects) -> Objects:
    """Return the objects as a compaction leaves them."""
    copy = ObjectFolder(str(folder / "ledger"))
    add(copy, objects)
    # It stands for an object that no host has seen, so each takes it in.
    unseen = Segment(0, 1.0)
    add(copy, {segment_name(unseen, 0, "unseen", 1): encode_segment(unseen)})
    store = RemoteStore(copy, str(folder / "host"))
    store.open(create=False)
    assert compact(store).parts > 0
    store.close()
    names = copy.names("")
    return {name: data for name, data in zip(names, copy.read(names), strict=True) if data is not None}


def said(store: RemoteStore) -> dict[str, Any]:
    """Return the state of a host.

    For two leaves that contradict each other, it has the output of the first that arrived.
    """
    contradicted = {row.source_id for row in store.failures() if row.reason == NonDeterministicTaskError.__name__}
    outputs = [
        (row.source_id, row.output.name) if row.source_id in contradicted else row for row in picture(store)["outputs"]
    ]
    return {**picture(store), "outputs": outputs, "superseded": superseded(store)}


Step = Callable[[History], object]


def published(source: Source, name: str) -> Leaf:
    return Leaf(source.id, (), "published", (Output(name, 1, "x", 1),), 1, 1)


def broken(source: Source) -> Failure:
    return dataclasses.replace(failure_of(source), broke=True)


SCENARIOS: dict[str, list[Step]] = {
    "begun, failed, complete": [
        lambda h: h.store.register([OLD, OTHER]),
        lambda h: h.commit(leaves_of_split(OLD, 3)[0], failures=(failure_of(OLD, ((1, 3),)), failure_of(OTHER))),
        lambda h: h.commit(*leaves_of_split(OLD, 3)[1:], failures=(failure_of(OTHER, (), "again"),)),
        lambda h: h.commit(leaf_of(OTHER)),
    ],
    "forgotten, and the same again": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), published(OTHER, "other"))),
        lambda h: h.store.forget("*"),
        lambda h: (h.begin(), h.commit(leaf_of(OLD), filtered_leaf(OTHER))),
    ],
    "replaced": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD))),
        lambda h: (h.begin(), h.store.register([NEW])),
        lambda h: h.commit(published(NEW, "new")),
        lambda h: h.commit(published(OLD, "late"), run="000001"),
    ],
    "replaced and back": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD))),
        lambda h: (h.begin(), h.store.register([NEW])),
        lambda h: (h.begin(), h.store.register([OLD]), h.commit(leaves_of_split(OLD, 2)[0])),
        lambda h: (h.begin(), h.put(Segment(4, 1.0, sources=[OLD]))),
        lambda h: h.commit(leaves_of_split(OLD, 2)[1]),
    ],
    "registered late": [
        lambda h: (h.begin(), h.store.register([NEW]), h.commit(leaf_of(NEW))),
        lambda h: h.put(Segment(1, 1.0, sources=[OLD])),
        lambda h: h.put(Segment(1, 1.0, leaves=[published(OLD, "old")])),
    ],
    "contradicted when begun, then forgotten": [
        lambda h: (h.store.register([OLD]), h.commit(leaves_of_split(OLD, 2)[0])),
        lambda h: h.commit(leaf_of(OLD, ((0, 2),), content="other")),
        lambda h: h.store.forget("*"),
        lambda h: (h.begin(), h.commit(filtered_leaf(OLD))),
    ],
    "contradicted when complete, then forgotten": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), leaf_of(OTHER))),
        lambda h: h.commit(leaf_of(OLD, content="other")),
        lambda h: h.store.forget("*"),
        lambda h: (h.begin(), h.commit(filtered_leaf(OLD))),
    ],
    "contradicted when complete": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD))),
        lambda h: h.commit(leaf_of(OLD, content="other")),
    ],
    "quarantined, then done": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(failures=(broken(OLD), broken(OLD)))),
        lambda h: (
            h.store.refresh(),
            h.store.record_deaths([mark_of(OTHER)] * MAX_ATTEMPTS),
        ),
        lambda h: h.commit(failures=(broken(OLD),)),
        lambda h: h.store.forget("*", failures_only=True),
        lambda h: (h.begin(), h.commit(leaf_of(OLD), failures=(broken(OTHER),))),
    ],
    "a fan-out that failed, and a later run got below it": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD, ((0, 2), (0, 2))))),
        lambda h: h.commit(failures=(failure_of(OLD, ((0, 2),)), failure_of(OLD, ((1, 2),)))),
        lambda h: (h.begin(), h.commit(leaf_of(OLD, ((0, 2), (1, 2))))),
        lambda h: h.commit(failures=(failure_of(OLD, ((0, 2),), "late"),), run="000001"),
    ],
    "gone and back": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD))),
        lambda h: (h.begin(), h.begin(), h.put(Segment(3, 1.0, gone=[OLD.id, OTHER.id]))),
        lambda h: (h.begin(), h.put(Segment(4, 1.0, back=[OTHER.id]))),
        lambda h: h.put(Segment(2, 2.0, gone=[OTHER.id])),
    ],
    "another job": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), leaves_of_split(OTHER, 2)[0])),
        lambda h: h.store.open_job(TWO, "restart"),
        lambda h: (h.begin(), h.store.register([OLD]), h.commit(filtered_leaf(OLD))),
        lambda h: h.commit(published(OTHER, "late"), run="000001"),
    ],
    "replaced, deleted, and the same again": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(published(OLD, "old"), published(OTHER, "other"))),
        lambda h: (h.begin(), h.store.register([NEW]), h.commit(published(NEW, "new"))),
        lambda h: h.sweep(),
        lambda h: (h.store.forget("*"), h.begin(), h.store.register([OLD])),
        lambda h: h.commit(published(OLD, "old"), filtered_leaf(OTHER)),
        lambda h: h.sweep(),
    ],
    "a pack and its members": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), leaf_of(OTHER))),
        lambda h: (h.begin(), h.store.register([Source.pack([OLD, OTHER])])),
        lambda h: (h.begin(), h.store.register([NEW])),
        lambda h: (h.begin(), h.store.register([OTHER]), h.commit(filtered_leaf(NEW), filtered_leaf(OTHER))),
    ],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment(
    history: History, tmp_path: Path, scenario: str
) -> None:
    moments = [history.now()]
    for step in SCENARIOS[scenario]:
        step(history)
        moments.append(history.now())
    last = moments[-1]
    expected: dict[str, Any] | None = None
    snapshots = [compacted(tmp_path / f"compacted-{b}", moment) for b, moment in enumerate(moments) if b]
    for a, seen in enumerate(moments):
        for b, (covered, snapshot) in enumerate(zip(moments[1:], snapshots, strict=True), 1):
            if expected is not None and (a == b or (a == 0 and b < len(snapshots))):
                continue  # the others say more
            objects = ObjectFolder(str(tmp_path / f"{a}-{b}" / "ledger"))
            add(objects, seen)
            host = RemoteStore(objects, str(tmp_path / f"{a}-{b}" / "host"))
            host.open(create=False)
            host.refresh()
            if expected is None:  # from the objects alone
                add(objects, last)
                host.refresh()
                expected = said(host)
            else:
                objects.delete([name for name in objects.names("") if name in covered and name not in snapshot])
                add(objects, snapshot)
                add(objects, {name: data for name, data in last.items() if name not in covered})
                host.refresh()
                assert said(host) == expected, f"seen {a}, snapshot of {b}"
            host.close()


def test_deletions_are_repeated_by_one_snapshot_and_not_by_the_next(history: History) -> None:
    for step in SCENARIOS["replaced, deleted, and the same again"][:3]:
        step(history)
    found = []
    for name in ("b", "c"):
        history.store.register([plain(name)])
        compact(history.store)
        objects = history.now().items()
        parts = [decode_segment(data, name) for name, data in objects if name.endswith(".seg")]
        found.append([dropped for part in parts for dropped in part.dropped])
    assert found == [["old"], []]


def test_who_deletes_has_seen_what_was_superseded_since_its_run_began(history: History, tmp_path: Path) -> None:
    history.store.register([OLD])
    history.commit(published(OLD, "old"))
    other = RemoteStore(history.objects, str(tmp_path / "other"))
    other.open(create=False)
    run = other.begin_run({})
    other.register([NEW])
    history.commit(filtered_leaf(NEW), run=run)
    history.sweep()
    other.refresh()
    assert (history.store.stale_outputs(), other.stale_outputs()) == ([], [])
    other.close()


def test_what_a_snapshot_completes_can_be_done_again(history: History, tmp_path: Path) -> None:
    history.store.register([OLD])
    first, last = leaves_of_split(OLD, 2)
    history.commit(first)
    objects = ObjectFolder(str(tmp_path / "other" / "ledger"))
    add(objects, history.now())
    host = RemoteStore(objects, str(tmp_path / "other" / "host"))
    host.open(create=False)
    history.commit(last)
    covered = history.now()
    snapshot = compacted(tmp_path / "compacted", covered)
    objects.delete([name for name in covered if name not in snapshot and name in objects.names("")])
    add(objects, snapshot)
    host.refresh()
    assert host.completed_count() == 1
    host.forget("*")
    sink = RemoteSink(objects, run=host.begin_run({}))
    sink.commit([last])
    host.refresh()
    sink.commit([first])
    host.refresh()
    assert host.completed_count() == 1
    host.close()


def test_a_source_that_is_open_here_and_complete_in_a_snapshot_counts_once(history: History, tmp_path: Path) -> None:
    leaves = [counted_leaf(OLD, ((ordinal, 3),)) for ordinal in range(3)]
    history.store.register([OLD])
    history.commit(leaves[0], leaves[1])
    late = RemoteStore(history.objects, str(tmp_path / "late"))
    late.open(create=False)
    history.commit(leaves[2])
    compact(history.store)
    late.refresh()
    for store in (late, history.store):
        assert store.records() == sum_of(leaves)
        assert Counter(store.statistics()) == Counter(item for leaf in leaves for item in leaf.statistics.items())
    late.close()


@pytest.mark.parametrize(
    ("totals", "accounts", "problem"),
    [
        ([1, 4, 3, 0, 5], [["ab" * 16, [6, 4, [], [["bad", 1]], [["", 4]], 3, 5]]], "the number of records read to"),
        ([1, 3, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1]], [["", 4]], 3, 5]]], "at most 3 records written"),
        ([0, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1]], [["", 4]], 3, 5]]], "at most 0 tasks"),
        ([2, 8, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1]], [["", 4]], 3, 5]]] * 2, "one row each"),
        ([1, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1], ["bad", 0]], [["", 4]], 3, 5]]], "each name once"),
        ([1, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", -1]], [["", 4]], 3, 5]]], "expected a number"),
        ([1, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [], [["", 4]]]]], "row of 7 values"),
    ],
)
def test_counts_that_cannot_be_are_refused(history: History, totals: list[int], accounts: Any, problem: str) -> None:
    history.store.register([OLD])
    state = {"complete": [[OLD.id.hex(), 1_700_000_000, totals, [], accounts]]}
    history.put(Segment(1, 1.7e9, state=state))
    with pytest.raises(LedgerDamagedError, match=problem):
        history.store.refresh()
    assert history.store.records() == RecordCounts()


SOURCES = [plain(f"s{number:02d}") for number in range(13)]


def by_run(store: LedgerStore) -> dict[str | None, tuple[int, int]]:
    """Return tasks and failures by run."""
    found: dict[str | None, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in store.history():
        tasks, failures = found[row.run]
        found[row.run] = tasks + row.totals.tasks, failures + row.failures
    return dict(found)


def worked(hosts: Hosts) -> None:
    """Let workers of two runs, and one without a run, record in turn; a control object without a run comes between."""
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    one.register(SOURCES)
    runs = [one.begin_run({"host": "one"}), two.begin_run({"host": "two"})]
    assert runs == ["000001", "000002"]
    sinks = [RemoteSink(hosts.objects, run=run) for run in runs]
    one.forget(SOURCES[12].url)
    sinks[0].commit([leaf_of(SOURCES[0])])
    for number, source in enumerate(SOURCES[1:10]):
        sinks[number % 3 == 0].commit([leaf_of(source)])
    sinks[0].commit([leaf_of(SOURCES[2])], [failure_of(SOURCES[11], ())])
    RemoteSink(hosts.objects).commit([leaf_of(SOURCES[10])])  # for the newest number, of the forget event


EXPECTED = {"000001": (7, 1), "000002": (4, 0)}
"""Repeated commits count once; commits without a run count for the newest run."""


def test_all_hosts_know_which_run_has_recorded_what(hosts: Hosts) -> None:
    worked(hosts)
    reader, early = hosts.store(), hosts.store()
    assert by_run(reader) == by_run(early) == EXPECTED
    compact(reader)
    for store in (reader, early, hosts.store()):
        store.refresh()
        assert by_run(store) == EXPECTED


def test_new_hosts_have_the_history_of_open_sources(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.launcher(runs=0)
    run = store.begin_run({})
    store.register(SOURCES[:2])
    store.commit([*leaves_of_split(SOURCES[0], 3)[:2], leaf_of(SOURCES[1])])
    recorded = store.history()
    later = time.time() + 1000
    monkeypatch.setattr(time, "time", lambda: later)
    compact(store)
    new = hosts.store()
    assert by_run(new) == {run: (3, 0)}
    assert (new.history(), new.durations()) == (recorded, store.durations())


def runs_about_a_million(store: Any) -> list[str]:
    """Start two runs of a ledger that had 999,999 runs; return the last of these and the two."""

    def jump(txn: Transaction) -> None:
        lmdb_jobs.add_run(txn, "999999", {}, 1.0)
        txn.put(META, KEY_NUMBER, b"999999")  # of a remote ledger

    store._write(jump)
    return ["999999", *(store.begin_run({}) for _ in range(2))]


@pytest.mark.parametrize("place", ["local", "remote"])
def test_the_million_and_first_run_is_the_last(hosts: Hosts, tmp_path: Path, place: str) -> None:
    store = hosts.store() if place == "remote" else LmdbStore(str(tmp_path / "local"))
    LmdbStore.open(store, create=True)
    store.open_job(ONE)
    runs = runs_about_a_million(store)
    assert runs == ["999999", "1000000", "1000001"]
    assert [run["id"] for run in store.runs()][-3:] == runs
    assert store.status()["last_run"]["id"] == runs[-1]
    store.end_run(runs[1], "done")
    assert [run["outcome"] for run in store.runs()][-3:] == [None, "done", None]
    source = registered(store)
    store.commit([leaf_of(source)])
    assert [row.run for row in store.history()] == runs[-1:]
