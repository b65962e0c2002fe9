"""The rows of a snapshot, one by one: their effect on a ledger, and invalid rows."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, NonDeterministicTaskError, UnsupportedShapeError
from ledgerbeam.ledger.lmdb.commit import prepare, record
from ledgerbeam.ledger.lmdb.failures import Stamp
from ledgerbeam.ledger.lmdb.sources import register
from ledgerbeam.ledger.lmdb.tables import APPLIED, COUNTS, OUTPUTS, PENDING
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic, counts_row, statistics_row
from ledgerbeam.ledger.model.identity import ROOT, node_id
from ledgerbeam.ledger.model.rows import Failure, Mark, Totals, output_row
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.remote.registration import hold_open, register_sources
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.snapshot import cutoff_pages, merge_state, state_pages, supersede_state
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import counted_leaf, leaf_of, leaves_of_split, plain
from tests.ledger.conformance import failure_of
from tests.ledger.conformance_changes import ONE
from tests.ledger.remote.test_store import Hosts
from tests.ledger.views import picture

ID, NODE = plain().id.hex(), node_id(plain().id, ()).hex()
OUTPUT = ["a.jsonl", 1, "sum", 2, 0]


def merge(store: RemoteStore, number: int = 1, /, **state: Any) -> None:
    store.parts()[1].write(lambda txn: merge_state(txn, state, number))


def rows_of(store: RemoteStore) -> dict[str, list[Any]]:
    """Everything that a snapshot would keep."""
    found: dict[str, list[Any]] = {}
    with store.parts()[1].hold() as held:
        for page in (*cutoff_pages(held), *state_pages(held)):
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
    store = hosts.store()
    store.register([plain()])
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
    store = hosts.store()
    store.open_job(ONE)
    store.begin_run({})
    for _ in range(2):
        merge(store, history=[[1, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1, 1, 1]])
    assert [(row.run, row.totals.records) for row in store.history()] == [(None, 2), ("000001", 1)]
    assert rows_of(store)["history"] == [[1, 0, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1, 1, 1]]


def test_a_snapshot_of_a_ledger_says_it_again_and_again(hosts: Hosts) -> None:
    store = hosts.store()
    store.open_job(ONE)
    store.begin_run({})
    sources = [plain(name) for name in ("done", "begun", "failed", "died", "old")]
    store.register(sources)
    store.register([plain("old", "2")])
    store.commit([leaf_of(sources[0]), leaf_of(sources[1], ((0, 2), (0, 2)))], [failure_of(sources[2], ())])
    store.record_deaths([Mark(sources[3].id, node_id(sources[3].id, ()), "task")])
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
    store = hosts.store()
    store.register([plain()])
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
    assert [name for page in store.superseded_names() for name in page] == ["a.jsonl"]


def test_what_a_snapshot_of_a_former_job_says_is_superseded(hosts: Hosts) -> None:
    store = hosts.store()
    state = {"complete": [[ID, 1, [1, 1, 1, 0, 1], [OUTPUT]]], "superseded": [[ID, "b.jsonl", 1]], "history": [[1] * 8]}
    store.parts()[1].write(lambda txn: supersede_state(txn, state, 7))
    assert sorted(name for page in store.superseded_names() for name in page) == ["a.jsonl", "b.jsonl"]
    assert sorted(row[1:] for row in rows_of(store)["superseded"]) == [["a.jsonl", 7], ["b.jsonl", 1]]
    assert store.history() == []


def test_a_newer_failure_of_a_snapshot_takes_the_place_of_an_older_one(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain()])
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
    store = hosts.store()
    store.register([plain()])
    for number, last in ((2, 1000.0), (3, 5.0), (1, 2000.0)):
        merge(store, 9, failed=[[ID, NODE, "task", "ValueError", f"of run {number}", 1, last, number]])
    assert [(row.error, row.last) for row in store.failures()] == [("of run 3", 5.0)]


def test_deaths_are_counted_once_each(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain()])
    for deaths in ([[0, 1.0, 0, False]], [[0, 1.0, 0, False], [0, 1.0, 1, False]], [[0, 2.0, 0, True]]):
        merge(store, 0, attempts=[[ID, NODE, "task", deaths]])
    assert store.attempts(plain().id) == {bytes.fromhex(NODE): 3}
    (failure,) = store.failures()
    assert (failure.task, failure.quarantined) == ("task", True)


def test_a_fan_out_that_a_later_run_has_got_below_is_not_failed_by_an_earlier_one(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain()])
    store.commit([leaf_of(plain(), ((0, 2),))])
    row = [ID, ROOT.hex(), 5, 100.0]
    merge(store, passed=[row, [ID, ROOT.hex(), 4, 900.0]])
    kept = [found for found in rows_of(store)["passed"] if found[1] == ROOT.hex()]
    assert kept in ([row], [])
    merge(store, passed=[[ID, node_id(plain().id, ((1, 2),)).hex(), 5, 1.0]])  # which has not fanned out: no matter
    assert store.pending(plain().id) == 1


def test_a_death_that_a_later_run_has_got_below_does_not_count_however_late_a_snapshot_tells_of_it(
    hosts: Hosts,
) -> None:
    store = hosts.store()
    store.register([plain()])
    leaf = leaf_of(plain(), ((0, 2), (0, 2)))
    store.parts()[1].write(lambda txn: record(txn, prepare([leaf]), [], Stamp(5, 10.0), passed=Stamp(5, 10.0)))
    node = node_id(plain().id, ((0, 2),)).hex()
    merge(store, 9, attempts=[[ID, node, "task", [[4, 90.0, 0, False]]]])
    assert store.attempts(plain().id) == {}
    merge(store, 9, attempts=[[ID, node, "task", [[5, 90.0, 0, False]]]])
    assert store.attempts(plain().id) == {bytes.fromhex(node): 1}


def test_a_url_goes_to_who_comes_next_once_its_source_is_retired(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain(version="1")])
    merge(store, 3, retired=[[ID, [plain().url], 3]])
    assert list(store.sources()) == []
    merge(store, 3, retired=[[plain(version="2").id.hex(), [plain().url], 2]])
    assert sorted(row[2] for row in rows_of(store)["retired"]) == [2, 3]
    for _ in range(3):
        store.begin_run({})
    store.register([plain(version="3")])
    (row,) = store.sources()
    assert row.source_id == plain(version="3").id
    (progress,) = store.progress([row.source_id])
    assert progress is not None
    assert progress.replaces


DONE = [ID, 1234, [2, 30, 400, 1, 50], [OUTPUT]]


def rule_out(store: RemoteStore, leaves: int, failures: int) -> None:
    """Let leaves and failures of the source count from some numbers on."""
    merge(store, cutoffs=[[ID, [0, leaves], [0, failures]]])


@pytest.mark.parametrize(("number", "counts"), [(4, False), (5, True), (6, True)])
def test_what_a_snapshot_says_of_finished_tasks_counts_from_the_number_of_leaves_on(
    hosts: Hosts, number: int, counts: bool
) -> None:
    store, other = hosts.store(), hosts.store()
    for host in (store, other):
        host.parts()[1].write(lambda txn: register(txn, [plain()]))
        rule_out(host, 5, 9)
    sketch = [ID, NODE, statistics_row({"length": Statistic("count", b"5")})]
    merge(store, number, complete=[DONE], statistics=[sketch])
    assert store.completed_count() == counts
    assert list(store.statistics()) == [("length", Statistic("count", b"5"))] * counts
    assert [name for page in store.superseded_names() for name in page] == ["a.jsonl"] * (not counts)
    merge(other, number, contradicted=[[ID]])
    assert (other.pending(plain().id) > 1) == counts
    assert rows_of(other).get("contradicted") == [[ID]] * counts
    merge(other, 9, complete=[DONE])
    assert other.completed_count() == (not counts)


@pytest.mark.parametrize(("number", "counts"), [(4, False), (5, True), (6, True)])
def test_what_a_snapshot_says_of_failures_counts_from_the_number_of_failures_on(
    hosts: Hosts, number: int, counts: bool
) -> None:
    store, other = hosts.store(), hosts.store()
    for host in (store, other):
        host.parts()[1].write(lambda txn: register(txn, [plain()]))
        rule_out(host, 9, 5)
    merge(store, number, failed=[[ID, NODE, "task", "KeyError", "why", 2, 10.0, 7]])
    assert [(row.task, row.error, row.attempts) for row in store.failures()] == [("task", "why", 2)] * counts
    merge(other, number, attempts=[[ID, NODE, "task", [[7, 1.0, 0, False]]]])
    assert other.attempts(plain().id) == ({bytes.fromhex(NODE): 1} if counts else {})


def test_a_finished_task_has_neither_failures_nor_deaths(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain()])
    store.commit(leaves_of_split(plain(), 2)[:1])
    node = node_id(plain().id, ((0, 2),)).hex()
    merge(store, 9, failed=[[ID, node, "t", "r", "e", 1, 9e9, 9]], attempts=[[ID, node, "t", [[9, 9e9, 0, False]]]])
    assert (list(store.failures()), store.attempts(plain().id)) == ([], {})


def test_of_a_source_that_a_snapshot_completes_nothing_is_left_that_its_tasks_had_recorded(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain(), plain("plain")])
    first = counted_leaf(plain(), ((0, 2),))
    store.commit([first])
    environment = store.parts()[1]
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
    store = hosts.store()
    store.register([plain(), plain("open")])
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
def test_a_failure_of_a_task_that_fanned_out_is_over_once_a_later_run_has_got_below_it(
    hosts: Hosts, children: int
) -> None:
    store = hosts.store()
    store.register([plain()])
    store.parts()[1].write(
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
    store = hosts.store()
    store.register([plain()])
    deaths = [[number % 3, float(at), number, False] for number, at in enumerate((5, 1, 4, 2, 8, 3, 7, 6))]
    for name in ("first", "second"):
        merge(store, 0, attempts=[[ID, NODE, name, deaths]])
    assert rows_of(store)["attempts"] == [[ID, NODE, "first", sorted(deaths)]]
    assert rows_of(store)["failed"] == []
    assert [row.task for row in store.failures()] == ["first"]


def test_that_a_source_is_contradicted_is_kept_and_its_failure_is_made_of_its_leaves(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain()])
    error = NonDeterministicTaskError("contradicts another")
    store.parts()[1].write(lambda txn: hold_open(txn, plain().id, (), error, 1.0))
    assert len(list(store.failures())) == 1
    assert (rows_of(store)["contradicted"], rows_of(store)["failed"]) == ([[ID]], [])


def test_an_output_is_superseded_with_the_greatest_number_that_is_known(hosts: Hosts) -> None:
    store = hosts.store()
    for number, known in ((0, 0), (5, 5), (3, 5)):
        merge(store, 9, superseded=[[ID, "a", number]])
        assert rows_of(store)["superseded"] == [[ID, "a", known]]


def numbered(store: RemoteStore, number: int, *sources: Source) -> None:
    """Register sources as a run of some number does."""
    store.parts()[1].write(lambda txn: register(txn, sources, number=number))


@pytest.mark.parametrize(
    ("registered", "retired", "is_gone"), [(0, 0, False), (0, 1, True), (2, 2, False), (2, 3, True)]
)
def test_a_source_is_retired_by_what_replaced_it_later(
    hosts: Hosts, registered: int, retired: int, is_gone: bool
) -> None:
    store = hosts.store()
    numbered(store, registered, plain())
    for _ in range(2):
        merge(store, 9, retired=[[ID, [plain().url], retired]])
        assert store.source_count() == (not is_gone)
        assert rows_of(store).get("retired", []) == [[ID, [plain().url], retired]] * is_gone


@pytest.mark.parametrize("order", [(5, 3), (3, 5)])
def test_a_source_that_was_replaced_twice_was_replaced_with_the_greater_number(
    hosts: Hosts, order: tuple[int, int]
) -> None:
    store = hosts.store()
    for number in order:
        merge(store, 9, retired=[[ID, [plain().url], number]])
    assert rows_of(store)["retired"] == [[ID, [plain().url], 5]]


def test_the_url_of_a_retired_source_is_that_of_who_has_it(hosts: Hosts) -> None:
    store = hosts.store()
    old, new, newest = (plain(version=version) for version in "123")
    merge(store, 9, retired=[[old.id.hex(), [old.url], 3]])
    numbered(store, 4, new)
    (progress,) = store.progress([new.id])
    assert progress is not None
    assert progress.replaces
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
def test_what_was_done_before_a_source_was_replaced_and_came_back_is_done_again(
    hosts: Hosts, registered: int, cutoff: list[int], known: list[int]
) -> None:
    """It was done with number 0, whichever registrations of the source this host has seen."""
    store = hosts.store()
    numbered(store, registered, plain())
    store.commit([leaf_of(plain())])
    merge(store, 9, cutoffs=[[ID, cutoff, [0, 0]]])
    withdrawn = bool(cutoff[0])
    assert store.completed_count() == (not withdrawn)
    names = [output.name for output in leaf_of(plain()).outputs]
    assert [row[1:] for row in rows_of(store).get("superseded", [])] == [[names[0], cutoff[0]]] * withdrawn
    assert rows_of(store)["cutoffs"][0][1] == known
    store.parts()[1].write(lambda txn: record(txn, prepare([leaf_of(plain())]), [], Stamp(8, 10.0)))
    merge(store, 9, cutoffs=[[ID, cutoff, [0, 0]]])
    assert store.completed_count() == 1


def test_what_is_said_of_sources_that_nobody_registered_changes_nothing(hosts: Hosts) -> None:
    store = hosts.store()
    merge(store, 9, replaces=[[ID]], back=[[ID, 5]], cutoffs=[[ID, [3, 0, 5], [0, 0]]], contradicted=[[ID]])
    assert store.source_count() == 0
    assert rows_of(store) == {"cutoffs": [[ID, [3, 0, 5], [0, 0]]]}


def test_that_a_source_replaces_another_and_is_back_is_kept(hosts: Hosts) -> None:
    store = hosts.store()
    store.register([plain()])
    for _ in range(2):
        merge(store, 9, replaces=[[ID]], back=[[ID, 5]])
        assert (rows_of(store)["replaces"], rows_of(store)["back"]) == ([[ID]], [[ID, 5]])
    (progress,) = store.progress([plain().id])
    assert progress is not None
    assert progress.replaces


def test_outputs_of_a_source_that_a_snapshot_says_was_replaced_are_superseded_with_the_number_of_the_snapshot(
    hosts: Hosts,
) -> None:
    """Whoever deletes them has seen the snapshot, not the replacement."""
    store = hosts.store()
    for number in (1, 5):
        store.parts()[1].write(lambda txn, number=number: register_sources(txn, [plain()], number))  # type: ignore[misc]
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
    store = hosts.store()
    store.register([plain()])
    for change in (supersede_state, merge_state):
        with pytest.raises(LedgerDamagedError, match="ValueError"):
            store.parts()[1].write(lambda txn, change=change: change(txn, state, 7))  # type: ignore[misc]
