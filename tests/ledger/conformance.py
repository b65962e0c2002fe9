"""Conformance tests of ledger stores. A store's test class inherits them and provides the fixture ``store``."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import JobMismatchError, LedgerError, NonDeterministicTaskError
from ledgerbeam.ledger.lmdb.failures import KEPT_DEATHS
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.counting import is_done
from ledgerbeam.ledger.model.identity import ROOT, Lineage, content_checksum, node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import (
    HISTORY_SECONDS,
    Failure,
    Leaf,
    Output,
    SetUps,
    SourceProgress,
    Totals,
    WorkTime,
)
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS, LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.selection import open_sources, with_progress
from tests.ledger.builders import (
    ONE,
    TWO,
    Tree,
    failure_of,
    filtered_leaf,
    leaf_of,
    leaves_of_split,
    lineages,
    mark_of,
    output_of,
    plain,
)
from tests.ledger.stores import finish, is_complete, numbered, registered, replaces, several

TREES = st.recursive(st.none(), lambda child: st.lists(child, min_size=1, max_size=4).map(tuple), max_leaves=8)


def names(store: LedgerStore) -> list[str]:
    return [row.output.name for row in store.outputs()]


def counts(store: LedgerStore) -> tuple[int, int, int]:
    sources = store.status()["sources"]
    return sources["complete"], sources["open"], sources["failed"]


CHANGES: dict[str, Callable[[LedgerStore], object]] = {
    "register": lambda store: store.register([plain("new")]),
    "commit": lambda store: store.commit([leaf_of(plain())]),
    "record_deaths": lambda store: store.record_deaths([mark_of(plain())]),
    "drop_stale": lambda store: store.drop_stale(["a"]),
    "set_gone": lambda store: store.set_gone([plain().id]),
    "note_listing": lambda store: store.note_listing("000001", listed=1, finished=True),
    "end_run": lambda store: store.end_run("000001", "done"),
    "begin_run": lambda store: store.begin_run({}),
    "forget": lambda store: store.forget("*"),
    "forget_sources": lambda store: store.forget_sources([plain().id]),
    "open_job": lambda store: store.open_job(TWO, "accept"),
}


class LedgerStoreConformance:
    """Inherit it, and give a fixture `store`: an empty store, open for writing."""

    # Identity

    def test_a_ledger_has_an_id_of_its_own(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        assert re.fullmatch("[0-9a-f]{32}", store.ledger_id())
        assert re.fullmatch("[0-9a-f]{32}", store.environment_id())
        other = pickle.loads(pickle.dumps(store))
        assert (other.ledger_id(), other.environment_id()) == (store.ledger_id(), store.environment_id())
        store.open_job(TWO, on_change="restart")
        assert store.ledger_id() == other.ledger_id(), "another job has another ledger"
        other.close()

    # Completion

    def test_a_source_is_complete_when_its_last_leaf_is_committed(self, store: LedgerStore) -> None:
        source = registered(store)
        assert store.pending(source.id) == 1
        one, two, three = leaves_of_split(source, 3)
        assert store.commit([three]).completed == []
        assert store.pending(source.id) == 2
        assert store.commit([one]).completed == []
        assert not is_complete(store, source)
        result = store.commit([two])
        assert (result.completed, result.fresh, result.seconds > 0) == ([source.id], 1, True)
        assert is_complete(store, source)
        assert store.pending(source.id) == 0
        assert store.applied(source.id) == {}

    def test_filtered_leaves_complete_a_source_without_outputs(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([filtered_leaf(source, ((n, 2),)) for n in range(2)])
        assert is_complete(store, source)
        assert names(store) == []
        assert store.totals() == Totals(tasks=2, bytes=60, filtered=2)

    @settings(
        max_examples=40,
        deadline=None,
        # One class tests several stores: each run has its own store.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(tree=TREES, data=st.data())
    def test_any_order_batch_writer_and_repetition(self, store: LedgerStore, tree: Tree, data: st.DataObject) -> None:
        source = plain(f"tree-{data.draw(st.integers(0, 10**12))}")
        store.forget(source.url)
        store.register([source])
        other = pickle.loads(pickle.dumps(store))
        leaves = [leaf_of(source, lineage) for lineage in lineages(tree)]
        extra = data.draw(st.lists(st.sampled_from(leaves), max_size=4))
        order: list[Leaf] = data.draw(st.permutations([*leaves, *extra]))
        seen: set[Lineage] = set()
        while order:
            size = data.draw(st.integers(1, 3))
            batch, order = order[:size], order[size:]
            writer = data.draw(st.sampled_from([store, other]))
            completed = writer.commit(batch).completed
            was_complete = len(seen) == len(leaves)
            seen.update(leaf.lineage for leaf in batch)
            now_complete = len(seen) == len(leaves)
            assert is_complete(store, source) == now_complete
            assert completed == ([source.id] if now_complete and not was_complete else [])
        assert {row.output for row in store.outputs() if row.source_id == source.id} == {
            output for leaf in leaves for output in leaf.outputs
        }
        other.close()

    def test_finished_tasks_of_an_open_source_are_known(self, store: LedgerStore) -> None:
        source = registered(store)
        assert store.applied(source.id) == {ROOT: 1}
        deep: Sequence[Lineage] = [((0, 2), (0, 2)), ((0, 2), (1, 2))]
        store.commit([leaf_of(source, deep[0])])
        assert not is_done(((0, 2),), source.id, store.applied(source.id))
        store.commit([leaf_of(source, deep[1])])
        applied = store.applied(source.id)
        assert is_done(((0, 2),), source.id, applied)
        assert not is_done(((1, 2),), source.id, applied)
        assert not is_done((), source.id, applied)

    def test_progress_of_open_sources(self, store: LedgerStore) -> None:
        fresh, begun, blamed = several(store, "fresh", "begun", "blamed")
        store.commit(leaves_of_split(begun, 2)[:1])
        mark = mark_of(blamed)
        store.record_deaths([mark])
        changed = plain("fresh", version="2")
        store.register([changed])
        assert store.progress([begun.id, blamed.id, changed.id]) == [
            SourceProgress(store.applied(begun.id), {}, False),
            SourceProgress({ROOT: 1}, {mark.node: 1}, False),
            SourceProgress({ROOT: 1}, {}, True),
        ]
        assert len(store.applied(begun.id)) == 3
        store.commit(leaves_of_split(begun, 2)[1:])
        unknown = plain("unknown")
        assert store.progress([begun.id, fresh.id, unknown.id]) == [None, None, None]

    def test_a_source_completed_since_it_was_found_open_owes_nothing(self, store: LedgerStore) -> None:
        done, left = plain("done"), plain("left")
        columns = [done.id, left.id], [done.url, left.url], [done.size, left.size], [done.version, left.version]
        found = open_sources(*columns, store)
        assert found == [done, left]
        store.commit([leaf_of(done)])  # by another process
        assert [element.source for element in with_progress(found, store)] == [left]

    def test_what_was_recorded_when_and_how_long_it_took(self, store: LedgerStore) -> None:
        sources = numbered(store, 4)
        before = time.time()
        times = [0.01, 0.01, 1.0]
        leaves = [replace(leaf_of(s), seconds=took) for s, took in zip(sources, times, strict=False)]
        store.commit(leaves, [failure_of(sources[3])])
        store.commit(leaves, [failure_of(sources[0])])  # done before: neither is counted
        rows = store.history()
        assert sum(row.totals.tasks for row in rows) == 3
        assert sum(row.totals.milliseconds for row in rows) == 1020
        assert (sum(row.completed for row in rows), sum(row.failures for row in rows)) == (3, 1)
        assert all(before - HISTORY_SECONDS <= row.time <= time.time() for row in rows)
        (short, two), (long, one) = store.durations().items()
        assert (two, one) == (2, 1)
        assert [short, long] == pytest.approx([0.01, 1.0], rel=0.05)

    def test_the_history_tells_what_each_run_has_recorded(self, store: LedgerStore) -> None:
        sources = [plain(f"s{n}") for n in range(6)]
        store.open_job(Job("map", {}))
        store.register(sources)
        first = store.begin_run({"host": "one"})
        older = pickle.loads(pickle.dumps(store))  # as workers of the first run have it
        second = store.begin_run({"host": "two"})
        older.commit([leaf_of(sources[0])], [failure_of(sources[5])])
        store.commit([leaf_of(source) for source in sources[1:4]])
        older.commit([leaf_of(sources[0]), leaf_of(sources[4])])
        store.refresh()
        found: dict[str | None, list[int]] = {}
        for row in store.history():
            parts = (row.totals.tasks, row.completed, row.failures)
            found[row.run] = [a + b for a, b in zip(found.get(row.run, [0, 0, 0]), parts, strict=True)]
        assert found == {first: [2, 2, 1], second: [3, 3, 0]}
        sums = {run: [row.totals.tasks, row.completed, row.failures] for run, row in store.recorded().items()}
        assert sums == found
        last = max(row.time for row in store.history())
        assert store.history(last - 1) == [row for row in store.history() if row.time >= last - HISTORY_SECONDS]
        assert (store.history(last + HISTORY_SECONDS), store.recorded(last + HISTORY_SECONDS)) == ([], {})
        assert store.recorded(0.0) == store.recorded()
        places = [(row.time, row.run) for row in store.history()]
        assert places == sorted(places)

    def test_every_source_is_listed_with_its_state(self, store: LedgerStore) -> None:
        done, begun, failed, gone = several(store, "done", "begun", "failed", "gone")
        store.commit([leaf_of(done), leaves_of_split(begun, 2)[0]], [failure_of(failed)])
        store.set_gone([gone.id])
        rows = {row.url: row for row in store.sources()}
        assert {url: row.state for url, row in rows.items()} == {
            done.url: "complete",
            begun.url: "open",
            failed.url: "failed",
            gone.url: "gone",
        }
        assert (rows[done.url].totals.tasks, rows[begun.url].totals.tasks) == (1, 1)
        assert rows[done.url].completed > 0
        assert [rows[source.url].completed for source in (begun, failed, gone)] == [0, 0, 0]

    def test_a_pack_is_listed_with_its_members(self, store: LedgerStore) -> None:
        pack, lone = Source.pack([plain("a"), plain("b", size=7)]), plain("c")
        store.register([pack, lone])
        rows = {row.url: row for row in store.sources()}
        about = [(row.source_id, row.size, row.members, row.member_urls) for row in (rows[pack.url], rows[lone.url])]
        assert about == [(pack.id, 17, 2, pack.urls), (lone.id, 10, 0, ())]

    def test_of_a_source_that_is_not_known_nothing_is_known(self, store: LedgerStore) -> None:
        unknown = plain()
        assert (store.applied(unknown.id), store.pending(unknown.id), store.attempts(unknown.id)) == ({}, 0, {})
        assert store.progress([unknown.id]) == [None]
        assert (store.commit([], [failure_of(unknown)]).fresh, list(store.failures())) == (0, [])
        assert store.record_deaths([mark_of(unknown)]) == []
        assert store.attempts(unknown.id) == {}

    def test_runs_are_kept_in_order(self, store: LedgerStore) -> None:
        first = store.begin_run({"pid": 1})
        store.end_run(first, "done")
        second = store.begin_run({"pid": 2})
        assert [(run["id"], run["outcome"], run["info"]["pid"]) for run in store.runs()] == [
            (first, "done", 1),
            (second, None, 2),
        ]

    def test_measurements_of_a_run_are_kept_as_they_were_noted_last(self, store: LedgerStore) -> None:
        first, _ = (store.begin_run({"pid": number}) for number in range(2))
        for count, seconds in enumerate((1.0, 2.5), start=1):
            store.note(first, WorkTime(2, {"read": seconds, "wait": 0.5}, {"read": 0.25}))
            store.note(first, SetUps.of([seconds] * count))
        store.end_run(first, "done")
        found, none = ((run["time"], run["set_ups"]) for run in store.runs())
        time = {"workers": 2, "seconds": {"read": 2.5, "wait": 0.5}, "cpu": {"read": 0.25}}
        assert found == (time, {"times": 2, "seconds": 5.0, "longest": 2.5})
        assert none == (None, None)
        with pytest.raises(LedgerError, match="is not in this ledger"):
            store.note("999999", WorkTime(1, {"read": 1.0}))

    def test_masks_of_pages(self, store: LedgerStore) -> None:
        sources = numbered(store, 300)
        assert store.completed_mask([]) == []
        done = [n for n in range(300) if n % 3]
        store.commit([leaf_of(sources[n]) for n in done])
        unknown = plain("unknown")
        for _ in range(4):  # repeated, so that a store may change its way of looking them up
            mask = store.completed_mask([source.id for source in (*sources, unknown, sources[1])])
            assert mask == [bool(n % 3) for n in range(300)] + [False, True]
        assert store.completed_count() == len(done)
        store.commit([leaf_of(sources[0])])
        assert is_complete(store, sources[0])

    # Repetition and error

    def test_committing_again_changes_nothing(self, store: LedgerStore) -> None:
        source = registered(store)
        leaves = leaves_of_split(source, 3)
        assert store.commit(leaves[:2] * 2).fresh == 2
        before = (store.applied(source.id), store.totals(), names(store))
        assert store.commit(leaves[:2] * 2).fresh == 0
        assert (store.applied(source.id), store.totals(), names(store)) == before
        store.commit(leaves)
        complete = (store.totals(), names(store), store.status()["sources"])
        assert store.commit(leaves).completed == []
        assert (store.totals(), names(store), store.status()["sources"]) == complete

    @pytest.mark.parametrize("count", [1, 2])
    def test_the_same_content_is_the_same_result_however_it_was_counted(self, store: LedgerStore, count: int) -> None:
        source = registered(store)
        leaf = leaf_of(source, ((0, count),))
        store.commit([leaf])
        counted = replace(leaf.outputs[0], records=77, first=7)
        assert store.commit([replace(leaf, outputs=(counted,))]).fresh == 0
        assert [row.output for row in store.outputs()] == list(leaf.outputs)

    @pytest.mark.parametrize("finished", [False, True])
    def test_other_content_under_the_same_name_is_an_error(self, store: LedgerStore, finished: bool) -> None:
        source = registered(store)
        leaves = leaves_of_split(source, 2)
        store.commit(leaves if finished else leaves[:1])
        (output,) = leaves[0].outputs
        for other in (replace(output, checksum=f"{output.checksum}x"), replace(output, size=output.size + 1)):
            with pytest.raises(NonDeterministicTaskError, match=r"a-0\.jsonl.*depend on its input only"):
                store.commit([replace(leaves[0], outputs=(other,))])
            assert next(row.output for row in store.outputs()) == output

    def test_ending_otherwise_than_before_is_an_error(self, store: LedgerStore) -> None:
        source = registered(store)
        published, filtered = leaf_of(source, ((0, 3),)), filtered_leaf(source, ((1, 3),))
        store.commit([published, filtered])
        renamed = replace(published, outputs=(Output("another", 1, "x", 1),))
        for other in (filtered_leaf(source, ((0, 3),)), renamed, replace(filtered, kind="published")):
            with pytest.raises(NonDeterministicTaskError, match="others or none"):
                store.commit([other])
        assert names(store) == ["data/a-0.jsonl"]

    def test_publishing_fewer_or_other_objects_than_before_is_an_error(self, store: LedgerStore) -> None:
        source = registered(store)
        leaf = leaf_of(source, ((0, 2),))
        one, two = (replace(leaf.outputs[0], name=name, checksum=content_checksum([b"x"])) for name in "ab")
        earlier = replace(one, checksum=content_checksum([b"x"], like="0" * 32))
        store.commit([replace(leaf, outputs=(earlier, two))])
        others = [(two,), (one, replace(two, name="c")), (one, two, replace(two, name="c"))]
        for outputs in others:
            with pytest.raises(NonDeterministicTaskError, match="others or none"):
                store.commit([replace(leaf, outputs=outputs)])
        for outputs in ((one, two), (two, one)):
            assert store.commit([replace(leaf, outputs=outputs)]).fresh == 0
        assert [row.output for row in store.outputs()] == [earlier, two]

    @pytest.mark.parametrize("finished", [False, True])
    @pytest.mark.parametrize("changed", ["a", "b"])
    def test_each_object_is_compared_with_the_former(self, store: LedgerStore, changed: str, finished: bool) -> None:
        source = registered(store)
        first, second = leaves_of_split(source, 2)
        leaf = replace(first, outputs=tuple(replace(first.outputs[0], name=name) for name in "ab"))
        store.commit([leaf, second] if finished else [leaf])
        outputs = [replace(output, size=99) if output.name == changed else output for output in leaf.outputs]
        with pytest.raises(NonDeterministicTaskError, match=f"'{changed}' had 100 bytes"):
            store.commit([replace(leaf, outputs=tuple(outputs))])

    def test_another_fan_out_than_before_is_an_error(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([leaf_of(source, ((0, 2),))])
        with pytest.raises(NonDeterministicTaskError, match=r"/data/a\.jsonl.*into 2 before and fanned out into 3"):
            store.commit([leaf_of(source, ((0, 3),))])

    def test_what_was_written_as_null_is_kept_with_its_output(self, store: LedgerStore) -> None:
        whole, half = several(store, "a", "b")
        outputs = [Output("a", 1, "x", 1, nulled=3), Output("b", 1, "x", 1, 7)]
        store.commit([Leaf(whole.id, ((0, 1),), "published", (outputs[0],))])
        store.commit([Leaf(half.id, ((0, 2),), "published", (outputs[1],))])
        store.refresh()
        assert [row.output for row in store.outputs()] == outputs

    def test_of_many_tasks_with_one_output_name_the_first_has_it(self, store: LedgerStore) -> None:
        source = registered(store)
        same = (Output("same", 1, "x", 1),)
        with pytest.raises(NonDeterministicTaskError, match="and 1 more task in error"):
            store.commit([Leaf(source.id, ((place, 3),), "published", same) for place in range(3)])
        assert names(store) == ["same"]
        assert store.pending(source.id) == 2

    def test_the_good_leaves_of_a_commit_with_a_bad_one_are_recorded(self, store: LedgerStore) -> None:
        good, bad, last = several(store, *"abc")
        store.commit([leaf_of(bad, ((0, 2),))])
        with pytest.raises(NonDeterministicTaskError):
            store.commit([leaf_of(good), leaf_of(bad, ((0, 3),)), leaf_of(bad, ((1, 2),)), leaf_of(last)])
        assert all(store.completed_mask([good.id, bad.id, last.id]))

    def test_leaves_of_several_sources_may_come_in_any_order_in_a_commit(self, store: LedgerStore) -> None:
        sources = numbered(store, 5)
        leaves = [leaves_of_split(source, 3) for source in sources]
        assert store.commit([leaf for ordinal in (2, 0) for leaf in (split[ordinal] for split in leaves)]).fresh == 10
        assert [store.pending(source.id) for source in sources] == [1] * 5
        assert store.commit([split[1] for split in leaves]).completed == sorted(source.id for source in sources)
        assert store.totals().tasks == 15
        store.forget("*")
        assert store.totals() == Totals()

    def test_a_leaf_of_an_unknown_source_is_an_error_beside_which_others_are_recorded(self, store: LedgerStore) -> None:
        known, unknown = plain("a"), plain("b")
        store.register([known])
        with pytest.raises(LedgerError, match="never registered"):
            store.commit([leaf_of(known), leaf_of(unknown)])
        assert is_complete(store, known)
        assert not is_complete(store, unknown)

    # Failures

    def test_a_failure_keeps_its_source_open_until_the_task_succeeds(self, store: LedgerStore) -> None:
        source = registered(store)
        one, two = leaves_of_split(source, 2)
        store.commit([one], [failure_of(source, two.lineage)])
        store.commit([], [failure_of(source, two.lineage, "worse input")])
        (row,) = store.failures()
        assert (row.url, row.node, row.reason, row.error) == (
            source.url,
            node_id(source.id, two.lineage),
            "ValueError",
            "worse input",
        )
        assert (row.attempts, row.quarantined) == (2, False)
        assert row.last > 1.7e9
        assert counts(store) == (0, 0, 1)
        assert store.status()["tasks"] == {"done": 1, "failed": 1}
        store.commit([two])
        assert list(store.failures()) == []
        assert counts(store) == (1, 0, 0)

    def test_a_failure_of_a_finished_task_is_ignored(self, store: LedgerStore) -> None:
        source = registered(store)
        one, two = leaves_of_split(source, 2)
        store.commit([one], [failure_of(source, one.lineage)])
        store.commit([], [failure_of(source, one.lineage)])
        assert list(store.failures()) == []
        store.commit([two])
        store.commit([], [failure_of(source, two.lineage)])
        assert list(store.failures()) == []

    @pytest.mark.parametrize("failed", [(), ((0, 2),)])
    def test_a_task_that_fans_out_after_all_has_not_failed(self, store: LedgerStore, failed: Lineage) -> None:
        source = registered(store)
        store.commit([], [failure_of(source, failed)])
        assert len(list(store.failures())) == 1
        store.commit([leaf_of(source, ((0, 2), (0, 2)))])
        assert list(store.failures()) == []

    def test_a_task_that_fanned_out_may_fail_when_the_rest_of_it_is_planned(self, store: LedgerStore) -> None:
        source = registered(store)
        deep = ((0, 2), (0, 2))
        store.commit([leaf_of(source, deep)])
        store.commit([], [failure_of(source), failure_of(source, deep[:1]), failure_of(source, ((1, 2),))])
        assert {row.node for row in store.failures()} == {
            node_id(source.id, lineage) for lineage in ((), deep[:1], ((1, 2),))
        }
        assert counts(store) == (0, 0, 1)
        assert store.status()["tasks"] == {"done": 1, "failed": 3}
        assert store.failed_mask([source.id, plain("b").id]) == [True, False]
        store.commit([leaf_of(source, deep)], [failure_of(source, deep)])  # finished: no failure of it counts
        store.commit([leaf_of(source, ((0, 2), (1, 2)))])  # a later run got below both
        assert [row.node for row in store.failures()] == [node_id(source.id, ((1, 2),))]
        store.commit([leaf_of(source, ((1, 2),))])
        assert list(store.failures()) == []
        assert counts(store) == (1, 0, 0)

    def test_a_task_that_fanned_out_into_one_may_fail_as_others_may(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([leaf_of(source, ((0, 1), (0, 2)))])
        store.commit([], [failure_of(source), failure_of(source, ((0, 1),))])
        assert len(list(store.failures())) == 2
        store.commit([leaf_of(source, ((0, 1), (1, 2)))])
        assert (is_complete(store, source), list(store.failures())) == (True, [])

    def test_a_refused_leaf_clears_no_failure_above_it_and_one_that_comes_again_does(self, store: LedgerStore) -> None:
        source = registered(store)
        leaf = leaf_of(source, ((0, 2),))
        store.commit([leaf])
        store.commit([], [failure_of(source)])
        for other in (
            leaf_of(source, ((0, 2),), "other"),
            filtered_leaf(source, ((0, 2),)),
            leaf_of(source, ((0, 3),)),
        ):
            with pytest.raises(NonDeterministicTaskError):
                store.commit([other])
            assert [row.node for row in store.failures()] == [node_id(source.id, ())]
        assert store.commit([leaf]).fresh == 0
        assert list(store.failures()) == []

    def test_a_leaf_that_comes_again_with_checksums_of_another_version_is_the_same(self, store: LedgerStore) -> None:
        source = registered(store)
        leaf = leaf_of(source, ((0, 2),))
        (output,) = leaf.outputs
        earlier = replace(leaf, outputs=(replace(output, checksum=content_checksum([b"x"], like="0" * 32)),))
        store.commit([earlier])
        store.commit([], [failure_of(source)])
        assert store.commit([leaf]).fresh == 0
        assert list(store.failures()) == []  # a later run got below the task that had failed
        assert [row.output for row in store.outputs()] == list(earlier.outputs)
        for size, checksum in ((output.size + 1, output.checksum), (output.size, "1" * 32)):
            with pytest.raises(NonDeterministicTaskError):
                store.commit([replace(leaf, outputs=(replace(output, size=size, checksum=checksum),))])

    def test_an_error_says_how_many_tasks_were_in_error(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([leaf_of(source, ((0, 4),))])
        bad = [leaf_of(source, ((0, 4),), "other"), leaf_of(source, ((1, 3),)), filtered_leaf(source, ((0, 4),))]
        for leaf in bad:
            with pytest.raises(NonDeterministicTaskError) as found:
                store.commit([leaf])
            assert "in error" not in str(found.value)
        with pytest.raises(NonDeterministicTaskError, match=r"\(and 2 more tasks in error\)"):
            store.commit(bad)

    def test_a_worker_that_dies_while_the_rest_of_a_source_is_planned_is_counted(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([leaf_of(source, ((0, 3),))])
        mark = mark_of(source)
        store.record_deaths([mark])
        assert store.attempts(source.id) == {mark.node: 1}
        store.commit([leaf_of(source, ((1, 3),))])
        assert store.attempts(source.id) == {}
        assert [store.record_deaths([mark]) for _ in range(MAX_ATTEMPTS)] == [[], [], [mark]]
        assert all(store.failed_mask([source.id]))

    @pytest.mark.parametrize("deaths", range(MAX_ATTEMPTS + 1))
    def test_failures_that_count_as_deaths_quarantine_a_task(self, store: LedgerStore, deaths: int) -> None:
        source = registered(store)
        broken = replace(failure_of(source, ((0, 2),)), reason="CancelledError", broke=True)
        mark = mark_of(source, broken.lineage)
        store.commit([], [failure_of(source, broken.lineage)])  # one that does not count
        for n in range(MAX_ATTEMPTS):
            assert store.attempts(source.id) == ({mark.node: n} if n else {})
            assert not any(row.quarantined for row in store.failures())
            if n < deaths:
                store.record_deaths([mark])
            else:
                store.commit([], [broken])
        (row,) = store.failures()
        assert (row.quarantined, row.attempts, row.error) == (True, MAX_ATTEMPTS + 1, "bad input")
        assert row.reason == ("CancelledError" if deaths == 0 else "its worker died 3 times")
        assert store.attempts(source.id) == {mark.node: MAX_ATTEMPTS}
        store.forget("*", failures_only=True)
        assert (store.attempts(source.id), list(store.failures())) == ({}, [])

    def test_two_failures_in_one_commit_count_as_two_deaths(self, store: LedgerStore) -> None:
        source = registered(store)
        broken = replace(failure_of(source, ((0, 2),)), broke=True)
        store.commit([], [broken, broken])
        assert list(store.attempts(source.id).values()) == [2]

    def test_a_failure_of_a_former_run_is_told_from_one_of_this_run(self, store: LedgerStore) -> None:
        source, other, dead = several(store, "a", "b", "c")
        ids = [source.id, other.id, dead.id]
        first = store.begin_run({})
        store.commit([], [failure_of(source)])
        mark = mark_of(dead)
        for _ in range(MAX_ATTEMPTS):
            store.record_deaths([mark])
        second = store.begin_run({})
        assert store.failed_mask(ids) == [True, False, True]
        assert store.failed_mask(ids, first) == [True, False, True]
        assert store.failed_mask(ids, second) == [False, False, True]  # quarantined: it is not started again
        store.commit([], [failure_of(source), failure_of(other)])
        assert store.failed_mask(ids, second) == [True, True, True]
        assert store.failed_mask([]) == []

    def test_a_failure_is_shown_as_it_was_when_it_failed_last(self, store: LedgerStore) -> None:
        source = registered(store)
        failures = [Failure(source.id, (), "task", reason, reason) for reason in ("B", "C", "A")]
        store.commit([], failures[:2])  # at one time
        (row,) = store.failures()
        assert (row.task, row.reason, row.error, row.attempts) == ("task", "C", "C", 2)
        store.commit([], failures[2:])
        (again,) = store.failures()
        assert (again.task, again.reason, again.error, again.attempts) == ("task", "A", "A", 3)
        assert again.last > row.last

    def test_of_deaths_without_end_enough_are_kept(self, store: LedgerStore) -> None:
        source = registered(store)
        mark = mark_of(source)
        for _ in range(3):
            store.record_deaths([mark] * 30)
            (row,) = store.failures()
            assert (row.quarantined, row.task) == (True, "task")
        assert store.attempts(source.id) == {mark.node: KEPT_DEATHS}
        last = row.last
        store.commit([], [failure_of(source)])
        (row,) = store.failures()
        assert (row.reason, row.error, row.attempts) == ("its worker died 64 times", "bad input", KEPT_DEATHS + 1)
        assert row.last > last

    def test_long_texts_of_failures_are_cut(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([], [Failure(source.id, (), "t" * 10_000, "r" * 10_000, "e" * 10_000)])
        (row,) = store.failures()
        for text in (row.task, row.reason, row.error):
            assert len(text) == 4000
            assert text.endswith("...")

    def test_many_failures_are_ordered_by_url_and_task(self, store: LedgerStore) -> None:
        few = [plain(f"s{n}") for n in range(300)]
        many = plain("many")
        store.register([*few, many])
        lineages_of_many: list[Lineage] = [((n, 700),) for n in range(700)]
        store.commit([], [*(failure_of(s) for s in few), *(failure_of(many, path) for path in lineages_of_many)])
        found = [(row.url, row.task) for row in store.failures()]
        assert found == sorted(found)
        assert len(found) == len(set(found)) == 1000

    def test_a_task_whose_workers_died_too_often_is_quarantined(self, store: LedgerStore) -> None:
        source = registered(store)
        mark = mark_of(source, ((0, 2),))
        for deaths in range(1, MAX_ATTEMPTS):
            assert store.record_deaths([mark]) == []
            assert store.attempts(source.id) == {mark.node: deaths}
            assert list(store.failures()) == []
        assert store.record_deaths([mark]) == [mark]
        (row,) = store.failures()
        assert (row.task, row.reason, row.quarantined) == ("task", "its worker died 3 times", True)
        assert store.attempts(source.id) == {mark.node: MAX_ATTEMPTS}
        assert counts(store) == (0, 0, 1)

    def test_success_clears_worker_deaths(self, store: LedgerStore) -> None:
        source = registered(store)
        leaf = leaf_of(source, ((0, 2),))
        mark = mark_of(source, leaf.lineage)
        store.record_deaths([mark])
        store.commit([leaf])
        assert store.attempts(source.id) == {}
        store.record_deaths([mark])
        assert store.attempts(source.id) == {}

    def test_single_tasks_are_finished_with_all_that_grew_from_them(self, store: LedgerStore) -> None:
        source, other = several(store, "a", "b")
        deep = [leaf_of(source, ((1, 2), (ordinal, 2))) for ordinal in range(2)]
        asked = [
            (source.id, ()),
            (source.id, ((0, 2),)),
            (source.id, ((1, 2),)),
            (source.id, ((1, 2), (0, 2))),
            (other.id, ((0, 2),)),
            (b"?" * 16, ()),
        ]
        assert store.finished(asked) == [False] * 6
        store.commit(deep[:1])
        assert store.finished(asked) == [False, False, False, True, False, False]
        store.commit(deep[1:])
        assert store.finished(asked) == [False, False, True, True, False, False]
        store.commit([leaf_of(source, ((0, 2),))])
        assert store.finished(asked) == [True, True, True, True, False, False]
        store.forget(source.url)
        assert store.finished(asked) == [False] * 6

    def test_forgetting_failures_ends_quarantine_and_keeps_progress(self, store: LedgerStore) -> None:
        source = registered(store)
        leaf = leaf_of(source, ((0, 2),))
        store.commit([leaf])
        mark = mark_of(source, ((1, 2),))
        for _ in range(MAX_ATTEMPTS):
            store.record_deaths([mark])
        assert store.forget("*/a.jsonl", failures_only=True) == [source.url]
        assert store.attempts(source.id) == {}
        assert list(store.failures()) == []
        assert store.commit([leaf]).fresh == 0

    # Sources that change, are forgotten, or go

    def test_registering_again_changes_nothing(self, store: LedgerStore) -> None:
        done, half = plain("a"), plain("b")
        finish(store, done)
        store.register([half])
        store.commit([leaf_of(half, ((0, 2),))])
        before = store.status()
        store.register([half, done])
        assert store.status() == before
        assert is_complete(store, done)
        store.register([plain(f"new{n}") for n in range(20)] + [half, done])
        assert counts(store) == (1, 21, 0)
        assert store.pending(half.id) == 1

    @pytest.mark.parametrize("finished", [False, True])
    def test_a_changed_source_runs_again_and_replaces_its_outputs(self, store: LedgerStore, finished: bool) -> None:
        old, new = plain(version="1"), plain(version="2")
        store.register([old])
        leaves = leaves_of_split(old, 3)
        store.commit(leaves if finished else leaves[:2], [] if finished else [failure_of(old, ((2, 3),))])
        store.register([new])
        assert not is_complete(store, old)
        assert counts(store) == (0, 1, 0)
        assert store.totals() == Totals()
        assert names(store) == []
        assert store.stale_outputs() == []  # nothing is deleted before the new outputs are there
        store.commit([leaf_of(new, ((0, 1),), content="new")])
        assert is_complete(store, new)
        assert names(store) == ["data/a-0.jsonl"]
        stale = [f"data/a-{n}.jsonl" for n in ((1, 2) if finished else (1,))]
        assert store.stale_outputs() == stale
        store.drop_stale(stale)
        assert store.stale_outputs() == []
        assert store.totals().tasks == 1

    def test_late_leaves_of_a_changed_source_are_ignored(self, store: LedgerStore) -> None:
        old, new = plain(version="1"), plain(version="2")
        store.register([old])
        store.register([new])
        result = store.commit([leaf_of(old)], [failure_of(old)])
        assert (result.completed, result.fresh) == ([], 0)
        assert (counts(store), list(store.failures())) == ((0, 1, 0), [])
        assert store.commit([leaf_of(old), leaf_of(new, content="new")]).completed == [new.id]
        assert [row.output for row in store.outputs()] == list(leaf_of(new, content="new").outputs)

    def test_a_source_that_changes_back_runs_again(self, store: LedgerStore) -> None:
        one, two = plain(version="1"), plain(version="2")
        finish(store, one)
        finish(store, two, count=3)
        store.register([one])
        assert counts(store) == (0, 1, 0)
        finish(store, one)
        assert is_complete(store, one)
        assert names(store) == ["data/a-0.jsonl", "data/a-1.jsonl"]
        assert store.stale_outputs() == ["data/a-2.jsonl"]
        store.commit(leaves_of_split(one, 2)[:1])
        assert is_complete(store, one), "what comes again of a source that is back counts as late"

    def test_a_source_listed_in_two_versions_at_once_is_the_last_one(self, store: LedgerStore) -> None:
        old, new = plain(version="1"), plain(version="2")
        store.register([old, new])
        assert counts(store) == (0, 1, 0)
        assert store.commit([leaf_of(old), leaf_of(new)]).completed == [new.id]

    def test_a_changed_pack_is_replaced_when_all_its_members_are_done(self, store: LedgerStore) -> None:
        a, b, c, d = (plain(name) for name in "abcd")
        pack = Source.pack([a, b, c])
        store.register([pack])
        store.commit([Leaf(pack.id, (), "published", (Output("pack-a", 1, "1", 3), Output("more", 1, "1", 3)))])
        first, second = Source.pack([a, b]), Source.pack([c, d])
        store.register([first])
        store.register([second])
        assert counts(store) == (0, 2, 0)
        store.commit([Leaf(first.id, (), "published", (Output("pack-a", 1, "2", 2),))])
        assert store.stale_outputs() == []  # the records of c are still in "more" only
        store.commit([Leaf(second.id, (), "published", (Output("pack-c", 1, "3", 2),))])
        assert store.stale_outputs() == ["more"]

    def test_a_name_that_another_source_uses_now_is_not_stale(self, store: LedgerStore) -> None:
        old, new, other = plain("a", "1"), plain("a", "2"), plain("b")
        finish(store, old)
        store.register([new, other])
        store.commit([Leaf(new.id, (), "filtered")])
        assert store.stale_outputs() == ["data/a-0.jsonl", "data/a-1.jsonl"]
        store.commit([Leaf(other.id, (), "published", (Output("data/a-1.jsonl", 1, "x", 1),))])
        assert store.stale_outputs() == ["data/a-0.jsonl"]

    def test_a_forgotten_source_runs_again_and_may_give_other_outputs(self, store: LedgerStore) -> None:
        source, other = plain("a"), plain("b")
        finish(store, source, 3)
        finish(store, other)
        assert is_complete(store, source)
        assert store.forget("/data/a*") == [source.url]
        assert store.forget("/nothing/*") == []
        assert store.completed_mask([source.id, other.id]) == [False, True]
        assert counts(store) == (1, 1, 0)
        assert store.totals().tasks == 2
        finish(store, source, 1, content="fixed")
        assert store.stale_outputs() == ["data/a-1.jsonl", "data/a-2.jsonl"]
        assert store.totals().tasks == 3

    def test_an_open_source_can_be_forgotten(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([leaf_of(source, ((0, 2),))], [failure_of(source, ((1, 2),))])
        store.forget("*")
        assert (store.pending(source.id), store.applied(source.id)) == (1, {ROOT: 1})
        assert counts(store) == (0, 1, 0)
        assert store.totals() == Totals()

    def test_all_that_is_forgotten_is_named_in_order(self, store: LedgerStore) -> None:
        sources = numbered(store, 9)
        store.commit([leaf_of(source) for source in sources[:4]])
        assert store.forget("*", failures_only=True) == [source.url for source in sources]
        assert counts(store) == (4, 5, 0)
        assert store.forget("*") == [source.url for source in sources]
        assert counts(store) == (0, 9, 0)

    def test_when_files_were_changed_is_kept_beside_what_else_is_known(self, store: LedgerStore) -> None:
        old, new, other, unknown = plain("a", "1"), plain("a", "2"), plain("b"), plain("c")
        for sources in ([old, other], [new]):
            store.register(sources)
        asked = [source.id for source in (unknown, other, old, new)]
        assert store.file_times(asked) == {}
        store.note_file_times({})
        store.note_file_times({new.id: [5], unknown.id: [7]})
        assert store.file_times(asked) == {new.id: [5]}
        store.note_file_times({new.id: [6, 7], other.id: [8]})
        assert store.file_times(asked) == {new.id: [6, 7], other.id: [8]}
        assert replaces(store, unknown, other, old, new) == [None, False, None, True]
        assert {row.url for row in store.sources()} == {new.url, other.url}

    def test_a_pack_is_forgotten_by_any_member(self, store: LedgerStore) -> None:
        pack = Source.pack([plain("a"), plain("b")])
        finish(store, pack, 1)
        assert store.forget("*/b.jsonl") == ["/data/a.jsonl"]
        assert not is_complete(store, pack)

    def test_sources_are_forgotten_by_id(self, store: LedgerStore) -> None:
        done, kept, half = plain("a"), plain("b"), plain("c")
        finish(store, done)
        finish(store, kept)
        store.register([half])
        store.commit([leaf_of(half, ((0, 2),))])
        lost = {row.output.name for row in store.outputs() if row.source_id != kept.id}
        store.forget_sources([half.id, done.id, bytes(16)])
        assert [is_complete(store, source) for source in (done, kept, half)] == [False, True, False]
        assert {row.source_id for row in store.outputs()} == {kept.id}
        assert {name for page in store.superseded_names() for name in page} == lost
        assert store.stale_outputs() == []
        store.forget_sources([])

    def test_outputs_in_columns_are_the_outputs(self, store: LedgerStore) -> None:
        assert (store.output_count(), list(store.output_columns())) == (0, [])
        odd = plain("a\udcff")
        for source in (plain("a"), odd):
            finish(store, source)
        rows = [row for page in store.output_columns() for row in zip(*page, strict=True)]
        assert sorted(rows) == sorted((row.source_id, row.output.name, row.output.size) for row in store.outputs())
        assert store.output_count() == len(rows) == 4

    def test_outputs_whose_names_differ_in_bytes_that_are_no_text_are_told_apart(self, store: LedgerStore) -> None:
        one, other = (plain(os.fsdecode(b"caf" + byte)) for byte in (b"\xe8", b"\xe9"))
        for source in (one, other):
            finish(store, source, count=3)
        shrunk = Source(one.url, 5, "2")
        finish(store, shrunk, count=1)
        assert store.stale_outputs() == [output_of(one, ((place, 3),)).name for place in (1, 2)]
        store.drop_stale(store.stale_outputs())
        assert store.stale_outputs() == []
        assert {row.source_id for row in store.outputs()} == {shrunk.id, other.id}
        assert (store.completed_count(), store.output_count()) == (2, 4)
        assert not any(store.superseded_names())

    def test_sources_that_are_gone_are_counted_apart_and_keep_their_outputs(self, store: LedgerStore) -> None:
        done, open_, failed, listed = (plain(name) for name in "abcd")
        finish(store, done)
        finish(store, listed)
        store.register([open_, failed])
        store.commit([], [failure_of(failed)])
        run = store.begin_run({})
        store.note_listing(run, listed=1, finished=True, gone=iter([done.id, open_.id, failed.id, b"?" * 16]))
        status = store.status()
        assert (status["gone"], counts(store)) == (3, (2, 0, 0))
        assert store.gone_ids() == {done.id, open_.id, failed.id}
        states = {row.source_id: row.state for row in store.sources()}
        assert [states[source.id] for source in (done, open_, failed)] == ["complete", "gone", "gone"]
        assert status["complete"]
        assert len(names(store)) == 4
        store.register([open_])
        assert (store.status()["gone"], counts(store)) == (2, (2, 1, 0))
        store.set_gone([])
        assert (store.status()["gone"], counts(store)) == (0, (2, 1, 1))

    def test_a_source_that_is_gone_and_comes_back_changed_is_not_gone(self, store: LedgerStore) -> None:
        old, new = plain(version="1"), plain(version="2")
        store.register([old])
        store.note_listing(store.begin_run({}), listed=0, finished=True, gone=[old.id])
        assert (store.status()["gone"], counts(store)) == (1, (0, 0, 0))
        for source in (new, old):
            store.begin_run({})
            store.register([source])
            assert (store.status()["gone"], counts(store)) == (0, (0, 1, 0))

    def test_source_ids_are_sorted_and_complete(self, store: LedgerStore) -> None:
        sources = numbered(store, 50)
        found = [source for page in store.source_ids() for source in page]
        assert found == sorted(source.id for source in sources)
        assert store.source_count() == 50

    # Jobs, runs, views

    def test_a_ledger_of_another_job_is_refused_with_the_difference(self, store: LedgerStore) -> None:
        assert store.job() is None
        store.open_job(ONE)
        store.open_job(ONE)
        finish(store, plain())
        with pytest.raises(JobMismatchError, match=r"(?s)to: was 'jsonl', is 'tar'.*restart.*accept"):
            store.open_job(TWO)
        assert store.job() == ONE
        finish(store, plain("b"))
        assert is_complete(store, plain(), plain("b"))

    def test_a_job_of_another_name_or_with_values_of_another_kind_is_another_job(self, store: LedgerStore) -> None:
        store.open_job(Job("map", {"rows": 1}))
        for other, says in (
            (Job("index", {"rows": 1}), "pipeline: was 'map', is 'index'"),
            (Job("map", {"rows": True}), "rows: was 1, is True"),
        ):
            with pytest.raises(JobMismatchError, match=says):
                store.open_job(other)

    def test_an_accepted_job_keeps_progress(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        finish(store, plain())
        store.open_job(TWO, "accept")
        assert (store.job(), is_complete(store, plain())) == (TWO, True)

    def test_a_restarted_job_begins_anew_and_old_outputs_are_stale(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        same, gone = plain("a"), plain("b")
        finish(store, same)
        finish(store, gone)
        assert is_complete(store, same)
        store.open_job(TWO, "restart")
        assert (counts(store), store.totals(), names(store)) == ((0, 0, 0), Totals(), [])
        assert store.completed_mask([same.id, gone.id]) == [False, False]
        finish(store, same, 1, content="new")
        assert store.stale_outputs() == ["data/a-1.jsonl", "data/b-0.jsonl", "data/b-1.jsonl"]

    def test_a_writer_of_a_job_that_lost_the_ledger_records_nothing(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        source = registered(store)
        worker = pickle.loads(pickle.dumps(store))
        store.open_job(TWO, "restart")
        store.register([source])
        with pytest.raises(JobMismatchError, match="another job has opened it"):
            worker.commit([leaf_of(source)])
        assert not is_complete(store, source)
        worker.close()

    def test_an_empty_ledger_is_not_complete(self, store: LedgerStore) -> None:
        status = store.status()
        assert status["complete"] is False
        assert (status["job"], status["last_run"], status["listed"]) == (None, None, None)
        run = store.begin_run({})
        assert store.status()["complete"] is False
        store.note_listing(run, listed=0, finished=False)
        assert store.status()["complete"] is False

    def test_a_job_whose_listing_finds_nothing_is_complete_with_nothing(self, store: LedgerStore) -> None:
        """It reads a folder that another job has kept, and keeps nothing: its earlier outputs are gone."""
        store.open_job(ONE)
        finish(store, source := plain())
        store.note_listing(store.begin_run({}), listed=1, finished=True)
        store.note_listing(store.begin_run({}), listed=0, finished=True, gone=[source.id])
        assert store.status()["complete"] is True
        store.forget_sources([source.id])
        status = store.status()
        assert (status["complete"], status["sources"]["complete"]) == (True, 0)

    def test_a_job_of_which_all_was_forgotten_is_not_complete(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        finish(store, source := plain())
        store.note_listing(store.begin_run({}), listed=1, finished=True)
        store.forget_sources([source.id])
        assert store.status()["complete"] is False

    def test_a_job_is_complete_when_all_is_listed_and_done(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        run = store.begin_run({"host": "here"})
        finish(store, plain())
        assert not store.status()["complete"]
        store.note_listing(run, listed=1, finished=False)
        assert not store.status()["complete"]
        store.note_listing(run, listed=1, finished=True)
        status: dict[str, Any] = store.status()
        assert status["complete"]
        assert status["job"]["pipeline"] == "map"
        assert (status["records"], status["bytes"], status["filtered"]) == (RecordCounts.plain(10).as_dict(), 100, 0)
        assert status["last_run"]["outcome"] is None  # killed, or still running
        store.end_run(run, "done")
        last = store.status()["last_run"]
        assert (last["id"], last["outcome"], last["info"]) == (run, "done", {"host": "here"})
        assert last["tidied"] is False  # nothing was recorded
        assert last["ended"] >= last["began"]
        assert store.begin_run({}) > run
        assert not store.status()["complete"]

    def test_a_run_that_never_began_is_an_error(self, store: LedgerStore) -> None:
        for run in ("000009", "\udcff"):
            with pytest.raises(LedgerError, match="begin_run"):
                store.end_run(run, "done")
            with pytest.raises(LedgerError, match="begin_run"):
                store.note_listing(run, listed=1, finished=True)

    def test_outputs_are_ordered_by_source_and_first_record(self, store: LedgerStore) -> None:
        for name in "bca":
            finish(store, plain(name), 12)
        half = registered(store, "d")
        store.commit([leaf_of(half, ((1, 2),))])
        rows = list(store.outputs())
        assert [row.output.name for row in rows] == [
            *(f"data/{name}-{n}.jsonl" for name in "abc" for n in range(12)),
            "data/d-1.jsonl",
        ]
        assert [row.complete for row in rows] == [True] * 36 + [False]
        assert rows[0].output == output_of(plain("a"), ((0, 12),))
        assert (rows[0].url, rows[0].source_id) == ("/data/a.jsonl", plain("a").id)
        unordered = list(store.outputs(ordered=False))
        assert sorted(unordered, key=lambda row: (row.url, row.output.first)) == rows

    def test_names_that_are_not_utf8_are_kept(self, store: LedgerStore) -> None:
        name = b"\xff\xe9".decode("utf-8", "surrogateescape")
        source = plain(name)
        finish(store, source, 1)
        store.commit([], [failure_of(source)])
        (row,) = store.outputs()
        assert (row.url, row.output.name) == (source.url, f"data/{name}-0.jsonl")
        store.forget(f"*{name}*")
        store.commit([filtered_leaf(source)])
        assert store.stale_outputs() == [f"data/{name}-0.jsonl"]

    def test_a_closed_store_opens_again(self, store: LedgerStore) -> None:
        finish(store, plain())
        store.close()
        store.close()
        assert is_complete(store, plain())
        assert store.totals().tasks == 2
