"""The rows of a snapshot, one by one: what they add to a ledger, and which cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, UnsupportedShapeError
from ledgerbeam.ledger.model.identity import ROOT, node_id
from ledgerbeam.ledger.model.json_rows import decode, encode
from ledgerbeam.ledger.model.rows import Failure, Mark, Totals
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.snapshot import cutoff_pages, merge_state, state_pages, supersede_state
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import leaf_of, leaves_of_split, plain
from tests.ledger.conformance import failure_of
from tests.ledger.conformance_changes import ONE
from tests.ledger.remote.test_store import Hosts
from tests.ledger.views import picture

ID, NODE = plain().id.hex(), node_id(plain().id, ()).hex()
OUTPUT = ["a.jsonl", 1, "sum", 2, 0]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


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
        # What `UNFIT` has, as it comes out of a transaction.
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
        *("cutoffs", "retired", "replaces", "complete", "passed", "failed", "attempts", "superseded"),
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
