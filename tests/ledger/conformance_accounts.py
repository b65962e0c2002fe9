"""Conformance tests of ledger stores: record counts and statistics are exact in all cases.

A store's test class inherits this beside `conformance.LedgerStoreConformance`, with the same fixture ``store``.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam._base.names import REJECTS
from ledgerbeam.errors import NonDeterministicTaskError
from ledgerbeam.ledger.lmdb import withdrawal
from ledgerbeam.ledger.model.accounts import STATISTIC_BYTES, RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import Lineage, node_id
from ledgerbeam.ledger.model.rows import Failure, Leaf, Output, Totals, Withdrawn
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from tests.ledger.builders import ONE, TWO, counted_leaf, dropping_leaf, filtered_leaf, leaf_of, plain, sum_of
from tests.ledger.stores import numbered, registered, several

NOTHING = RecordCounts()


def expect(store: LedgerStore, *leaves: Leaf) -> None:
    """Check that a ledger has exactly the record counts of some leaves, in total and by source."""
    assert store.status()["records"] == sum_of(leaves).as_dict()
    assert store.totals().records == sum_of(leaves).records
    rows = {row.source_id: row.counts for row in store.sources()}
    for source, counts in rows.items():
        assert counts == sum_of(leaf for leaf in leaves if leaf.source_id == source)
    assert Counter(store.statistics()) == Counter(item for leaf in leaves for item in leaf.statistics.items())


def task_of(leaf: Leaf) -> tuple[bytes, list[bytes]]:
    return leaf.source_id, [node_id(leaf.source_id, leaf.lineage)]


def split(source: Source, count: int = 4) -> list[Leaf]:
    """Return the leaves of a source of each kind: counted, plain, with nothing left, and without rejected records."""
    at = [((ordinal, count),) for ordinal in range(count)]
    made = [counted_leaf(source, at[0]), leaf_of(source, at[1]), dropping_leaf(source, at[2])]
    return [*made, *(counted_leaf(source, lineage, rejected=0) for lineage in at[3:])]


class AccountsConformance:
    """Inherit it, and give a fixture `store`: an empty store, open for writing."""

    # Counting

    def test_a_new_ledger_has_counted_nothing(self, store: LedgerStore) -> None:
        assert store.status()["records"] == {"read": 0, "kept": 0, "dropped": {}, "rejected": {}, "written": {}}
        assert list(store.statistics()) == []
        assert list(store.rejected_tasks()) == []

    def test_plain_and_counted_tasks_add_up(self, store: LedgerStore) -> None:
        source = registered(store)
        leaves = split(source)
        for done, leaf in enumerate(leaves, 1):
            store.commit([leaf])
            expect(store, *leaves[:done])
        assert store.status()["records"] == {
            "read": 6 + 5 + 2 + 5,
            "kept": 4 + 5 + 4,
            "dropped": {"returned nothing": 2, "why 0": 1, "why 1": 1},
            "rejected": {"bad": 1},
            "written": {"": 3 + 5 + 3, "de": 4},
        }

    def test_leaves_that_come_again_beside_new_ones_are_counted_once(self, store: LedgerStore) -> None:
        source = registered(store)
        leaves = split(source)
        store.commit(leaves[:2])
        assert store.commit(leaves).fresh == 2
        expect(store, *leaves)
        assert sum(store.durations().values()) == sum(row.totals.tasks for row in store.history()) == len(leaves)

    def test_a_filtered_task_that_nobody_counted_has_read_nothing(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit([filtered_leaf(source)])
        expect(store)

    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(data=st.data())
    def test_any_order_any_batches_any_repetition(self, store: LedgerStore, data: st.DataObject) -> None:
        others = [row.source_id for row in store.sources()]
        store.forget_sources(others)
        source = plain(f"s-{data.draw(st.integers(0, 10**12))}")
        store.register([source])
        leaves = split(source, data.draw(st.integers(1, 6)) + 3)
        order = data.draw(st.permutations([*leaves, *data.draw(st.lists(st.sampled_from(leaves), max_size=5))]))
        other = pickle.loads(pickle.dumps(store))
        done: dict[Lineage, Leaf] = {}
        while order:
            size = data.draw(st.integers(1, 4))
            batch, order = order[:size], order[size:]
            data.draw(st.sampled_from([store, other])).commit(batch)
            done |= {leaf.lineage: leaf for leaf in batch}
            store.refresh()
            expect(store, *done.values())
        other.close()

    def test_the_first_counts_of_a_task_hold(self, store: LedgerStore) -> None:
        source = registered(store)
        first, rest = counted_leaf(source, ((0, 2),)), leaf_of(source, ((1, 2),))
        other = replace(
            first, counts=RecordCounts(5, 5, {}, {}, {"": 5}), statistics={"length": Statistic("count", b"other")}
        )
        store.commit([first])
        store.commit([other])
        expect(store, first)
        store.commit([other, rest, other])
        expect(store, first, rest)
        store.commit([other])
        expect(store, first, rest)

    def test_a_refused_task_counts_nothing(self, store: LedgerStore) -> None:
        source = registered(store)
        first, second = counted_leaf(source, ((0, 3),)), counted_leaf(source, ((1, 3),))
        store.commit([first])
        with pytest.raises(NonDeterministicTaskError):
            store.commit([replace(second, outputs=first.outputs), counted_leaf(source, ((2, 3),))])
        expect(store, first, counted_leaf(source, ((2, 3),)))
        store.forget(source.url)

    def test_statistics_of_a_task_that_wrote_all_that_it_read_go_with_its_source(self, store: LedgerStore) -> None:
        source = registered(store)
        leaf = replace(leaf_of(source), statistics={"length": Statistic("count", b"1")})
        store.commit([leaf])
        store.forget(source.url)
        expect(store)
        store.commit([leaf])
        expect(store, leaf)

    def test_names_are_kept_as_they_are(self, store: LedgerStore) -> None:
        source = registered(store)
        names = ["", " ", "a/b", "\0", "\udcff", "ä" * NAME_CHARACTERS, "\U0001f600", "x" * NAME_CHARACTERS]
        counts = RecordCounts(
            3 * len(names), len(names), dict.fromkeys(names, 1), dict.fromkeys(names, 1), dict.fromkeys(names, 1)
        )
        sketches = {name: Statistic(name, bytes(range(256))) for name in names}
        leaf = replace(leaf_of(source, ((0, 2),)), records=len(names), counts=counts, statistics=sketches)
        store.commit([leaf])
        expect(store, leaf)
        store.commit([leaf_of(source, ((1, 2),))])
        expect(store, leaf, leaf_of(source, ((1, 2),)))
        assert [reason for reason in names if list(store.rejected_tasks(reason))] == names

    def test_many_names_and_large_sketches(self, store: LedgerStore) -> None:
        sources = numbered(store, 3)
        leaves = []
        for number, source in enumerate(sources):
            dropped = {f"{number} {name}": 1 for name in range(MOST_NAMES)}
            counts = RecordCounts(MOST_NAMES + 5, 5, dropped, {}, {"": 5})
            sketch = {f"s{n}": Statistic("count", bytes([n]) * STATISTIC_BYTES) for n in range(4)}
            leaves.append(replace(leaf_of(source), counts=counts, statistics=sketch))
        store.commit(leaves)
        expect(store, *leaves)

    def test_outputs_with_their_contents_in_columns_are_the_outputs(self, store: LedgerStore) -> None:
        assert list(store.content_columns()) == []
        source, other = plain("a"), plain("b\udcff")
        outputs = [
            Output(f"{n}", n, f"sum {n}", 3 * n, nulled=n % 2, route=route)
            for n, route in enumerate(("", "de", "", REJECTS))
        ]
        store.register([source, other])
        store.commit([Leaf(source.id, (), "published", tuple(outputs), 18), leaf_of(other)])
        assert {row.output for row in store.outputs() if row.source_id == source.id} == set(outputs)
        rows = [row for page in store.content_columns() for row in zip(*page, strict=True)]
        assert sorted(rows) == sorted(
            (row.source_id, row.output.name, row.output.size, row.output.checksum, row.output.route)
            for row in store.outputs()
        )
        assert len(rows) == 5

    # Removed counts

    @pytest.mark.parametrize("done", [2, 4])
    def test_a_forgotten_source_takes_its_share_away(self, store: LedgerStore, done: int) -> None:
        one, two = several(store, "one", "two")
        store.commit([*split(one)[:done], *split(two)])
        store.forget("*one*")
        expect(store, *split(two))
        store.commit(split(one))
        expect(store, *split(one), *split(two))
        store.forget("*")
        expect(store)

    def test_forgetting_failures_takes_nothing_away(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit(split(source)[:2])
        store.forget("*", failures_only=True)
        expect(store, *split(source)[:2])

    @pytest.mark.parametrize("done", [2, 4])
    def test_a_replaced_source_takes_its_share_away(self, store: LedgerStore, done: int) -> None:
        old, new, other = plain(), plain(version="2"), plain("other")
        store.register([old, other])
        store.commit([*split(old)[:done], *split(other)])
        store.register([new])
        expect(store, *split(other))
        store.commit([counted_leaf(old, ((3, 4),))])  # late
        expect(store, *split(other))
        store.commit(split(new))
        expect(store, *split(other), *split(new))

    def test_another_job_begins_at_nothing(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        source = registered(store)
        store.commit(split(source))
        store.open_job(TWO, "accept")
        expect(store, *split(source))
        store.open_job(ONE, "restart")
        expect(store)
        store.register([source])
        store.commit(split(source)[:1])
        expect(store, *split(source)[:1])

    # Withdrawing

    def test_rejected_tasks_are_found_by_reason(self, store: LedgerStore) -> None:
        one, two = sorted((plain("one"), plain("two")), key=lambda source: source.id)
        store.register([one, two])
        worse = replace(
            counted_leaf(two, ((1, 4),)), counts=RecordCounts(7, 4, {}, {"worse": 2, "bad": 1}, {"": 3, "de": 2})
        )
        clean = [leaf for leaf in split(two) if leaf.lineage != worse.lineage]
        store.commit([*split(one), *clean, worse])
        nodes = sorted(node_id(two.id, ((ordinal, 4),)) for ordinal in range(2))
        assert list(store.rejected_tasks("bad")) == [task_of(split(one)[0]), (two.id, nodes)]
        assert list(store.rejected_tasks()) == list(store.rejected_tasks("bad"))
        assert list(store.rejected_tasks("worse")) == [task_of(worse)]
        assert list(store.rejected_tasks("why 0")) == []
        store.forget("*")
        assert list(store.rejected_tasks()) == []

    @pytest.mark.parametrize("open_tasks", [0, 1])
    def test_a_withdrawn_task_runs_again_and_the_others_stay(self, store: LedgerStore, open_tasks: int) -> None:
        source, other = several(store, "a", "other")
        leaves = [*split(source, 5)[:3], counted_leaf(source, ((3, 5),)), counted_leaf(source, ((4, 5),))]
        leaves = leaves[: 5 - open_tasks] if not open_tasks else [leaves[0], *leaves[2:]]
        store.commit([*leaves, *split(other)])
        before, history, durations = store.totals(), store.history(), store.durations()
        gone, *stay = leaves
        assert store.withdraw([task_of(gone)]) == 1
        expect(store, *stay, *split(other))
        assert store.totals() == before.minus(gone.share())
        assert (store.history(), store.durations()) == (history, durations)
        assert store.completed_mask([source.id, other.id]) == [False, True]
        assert store.pending(source.id) == 1 + open_tasks
        entries = store.applied(source.id)
        assert {node for node, delta in entries.items() if delta < 0} == {
            node_id(source.id, leaf.lineage) for leaf in stay
        }
        assert store.stale_outputs() == []
        healed = replace(
            leaf_of(source, gone.lineage, "healed"), counts=RecordCounts(6, 5, {"why 0": 1}, {}, {"": 5}), seconds=0.25
        )
        rest = [leaf_of(source, ((1, 5),))] * open_tasks
        assert store.commit([*stay, *rest, healed]).completed == [source.id]
        expect(store, *stay, *rest, healed, *split(other))
        assert store.stale_outputs() == []

    def test_a_source_of_which_nothing_is_done_keeps_no_other_from_being_withdrawn(self, store: LedgerStore) -> None:
        sources = several(store, "one", "open", "two")
        store.commit([*split(sources[0]), *split(sources[2])])
        assert store.withdraw([task_of(split(source)[0]) for source in sources]) == 2
        assert [store.pending(source.id) for source in sources] == [1, 1, 1]
        expect(store, *split(sources[0])[1:], *split(sources[2])[1:])

    def test_of_the_tasks_to_withdraw_those_are_counted_that_were_finished(self, store: LedgerStore) -> None:
        source = registered(store)
        leaves = [counted_leaf(source, ((place, 4),)) for place in range(3)]
        store.commit(leaves)
        nodes = [node_id(source.id, ((place, 4),)) for place in (0, 3)]
        assert store.withdraw([(source.id, nodes)]) == 1
        expect(store, *leaves[1:])

    def test_what_a_withdrawn_task_published_is_stale_once_it_has_run(self, store: LedgerStore) -> None:
        source = registered(store)
        rejects = Output("_rejects/a.jsonl", 1, "x", 1, 0, 0, REJECTS)
        leaves = split(source)
        leaves[0] = replace(leaves[0], outputs=(*leaves[0].outputs, rejects))
        store.commit(leaves)
        store.withdraw(list(store.rejected_tasks("bad")))
        assert store.stale_outputs() == []
        assert "_rejects/a.jsonl" not in {row.output.name for row in store.outputs()}
        assert "_rejects/a.jsonl" in {name for page in store.superseded_names() for name in page}
        store.commit([replace(leaf_of(source, ((0, 4),), "healed"))])
        assert store.stale_outputs() == ["_rejects/a.jsonl"]

    def test_why_tasks_were_withdrawn_is_known_until_their_source_is_complete(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        one, two, other = sorted((plain(name) for name in ("one", "two", "other")), key=lambda source: source.id)
        store.register([one, two, other])
        worse = replace(counted_leaf(two, ((1, 4),)), counts=RecordCounts(7, 4, {}, {"worse": 3}, {"": 3, "de": 2}))
        clean = [leaf for leaf in split(two) if leaf.lineage != worse.lineage]
        store.commit([*split(one), *clean, worse, *split(other)])
        assert list(store.withdrawn()) == []
        store.withdraw([task_of(split(one)[0]), task_of(worse)])
        assert list(store.withdrawn()) == [(one.id, Withdrawn(("bad",))), (two.id, Withdrawn(("worse",)))]
        store.withdraw([task_of(split(two)[0])])
        assert dict(store.withdrawn())[two.id] == Withdrawn(("bad", "worse"))
        store.forget_sources([two.id])
        store.commit(split(two)[:2])
        assert dict(store.withdrawn())[two.id] == Withdrawn(("bad", "worse")), "some of it is to be done again"
        store.commit(split(two)[2:])
        assert list(store.withdrawn()) == [(one.id, Withdrawn(("bad",)))]
        store.forget_sources([two.id])
        assert list(store.withdrawn()) == [(one.id, Withdrawn(("bad",)))]
        store.open_job(TWO, on_change="restart")
        assert list(store.withdrawn()) == []

    def test_why_tasks_were_withdrawn_goes_with_a_source_that_changed(self, store: LedgerStore) -> None:
        before, now = plain("one"), Source(plain("one").url, 99, "changed")
        store.register([before])
        store.commit(split(before))
        store.withdraw([task_of(split(before)[0])])
        store.register([now])
        assert list(store.withdrawn()) == []

    def test_failed_tasks_to_run_again_are_known_until_their_source_is_complete(self, store: LedgerStore) -> None:
        one, two = sorted((plain("one"), plain("two")), key=lambda source: source.id)
        store.register([one, two])
        store.commit([], [Failure(source.id, ((0, 2),), "task", "KeyError", "bad") for source in (one, two)])
        store.withdraw_failures({one.id: ["KeyError"], two.id: ["KeyError", "IndexError"]}, [two.id])
        assert [row.source_id for row in store.failures()] == [one.id], "that of the other one is dropped"
        assert list(store.withdrawn()) == [
            (one.id, Withdrawn(failed=("KeyError",))),
            (two.id, Withdrawn(failed=("IndexError", "KeyError"))),
        ]
        store.withdraw_failures({one.id: ["ValueError"]}, [])
        assert dict(store.withdrawn())[one.id] == Withdrawn(failed=("KeyError", "ValueError"))
        store.commit([leaf_of(source, ((0, 2),)) for source in (one, two)])
        assert [source for source, _ in store.withdrawn()] == [one.id, two.id]
        store.commit([leaf_of(source, ((1, 2),)) for source in (one, two)])
        assert list(store.withdrawn()) == []

    def test_what_is_not_finished_cannot_be_withdrawn(self, store: LedgerStore) -> None:
        source, other = several(store, "a", "other")
        store.commit(split(source)[:3])
        before = store.status()
        open_task = (source.id, [node_id(source.id, ((3, 4),))])
        unknown = [(other.id, [node_id(other.id, ())]), (b"u" * 16, [b"n" * 16]), (source.id, [])]
        assert store.withdraw([open_task, *unknown]) == 0
        assert store.status() == before
        expect(store, *split(source)[:3])

    @pytest.mark.parametrize(
        "lineages", [[()], [((0, 1),)], [((0, 2), (0, 1)), ((1, 2),)], [((0, 2), (0, 2)), ((0, 2), (1, 2)), ((1, 2),)]]
    )
    @pytest.mark.parametrize("open_tasks", [0, 1])
    def test_fan_outs_are_withdrawn_whole(self, store: LedgerStore, lineages: list[Lineage], open_tasks: int) -> None:
        source = registered(store)
        leaves = [counted_leaf(source, lineage) for lineage in lineages]
        done = leaves[: len(leaves) - open_tasks]
        store.commit(done)
        assert store.withdraw([task_of(leaves[0])]) == len(done)
        expect(store)
        store.commit(leaves)
        expect(store, *leaves)

    def test_a_task_of_which_nothing_was_counted_takes_its_source_along(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit(split(source))
        assert store.withdraw([task_of(split(source)[1])]) == 4
        expect(store)
        store.commit([counted_leaf(source, ((0, 2),)), replace(filtered_leaf(source, ((1, 2),)), bytes=0)])
        assert store.withdraw([task_of(counted_leaf(source, ((0, 2),)))]) == 2, "the second may have been a deeper one"
        expect(store)

    def test_all_counted_tasks_of_a_source_are_withdrawn_and_its_plain_ones_stay(self, store: LedgerStore) -> None:
        source = registered(store)
        counted, *stay = counted_leaf(source, ((0, 3),)), leaf_of(source, ((1, 3),)), leaf_of(source, ((2, 3),))
        store.commit([counted, *stay])
        assert store.withdraw([task_of(counted)]) == 1
        expect(store, *stay)
        assert store.pending(source.id) == 1

    def test_what_the_plain_tasks_of_an_open_source_have_done_stays_whole(self, store: LedgerStore) -> None:
        source = registered(store)
        published = [
            replace(leaf_of(source, ((n, 6),)), records=7 + n * n, bytes=100 + n * n, seconds=(3 + n * n) / 1000)
            for n in range(1, 4)
        ]
        gone, *stay = counted_leaf(source, ((0, 6),)), *published, filtered_leaf(source, ((4, 6),))
        store.commit([gone, *stay])
        before = store.totals()
        assert store.withdraw([task_of(gone)]) == 1
        assert store.totals() == before.minus(gone.share())
        assert store.pending(source.id) == 2

    def test_bytes_that_no_task_that_stays_can_have_written_take_the_source_along(self, store: LedgerStore) -> None:
        source = registered(store)
        gone, filtered = counted_leaf(source, ((0, 3),)), filtered_leaf(source, ((1, 3),))
        store.commit([gone, filtered])
        assert filtered.bytes > 0
        assert store.withdraw([task_of(gone)]) == 2
        assert store.totals() == Totals()

    @pytest.mark.parametrize("open_tasks", [0, 1])
    def test_of_a_source_with_fan_outs_no_other_task_is_withdrawn(self, store: LedgerStore, open_tasks: int) -> None:
        source = registered(store)
        dropping = dropping_leaf(source, ((0, 2), (0, 2)))
        leaves = [dropping, leaf_of(source, ((0, 2), (1, 2))), leaf_of(source, ((1, 2),))]
        done = leaves[: len(leaves) - open_tasks]
        store.commit(done)
        assert store.withdraw([(source.id, [b"n" * 16]), (source.id, [])]) == 0
        expect(store, *done)
        assert store.withdraw([task_of(dropping)]) == len(done)
        expect(store)

    def test_a_source_of_many_tasks_is_withdrawn(self, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
        few, many = several(store, "few", "many")
        monkeypatch.setattr(withdrawal, "MOST_TASKS", 3)
        leaves = {
            source: [counted_leaf(source, ((n, count),)) for n in range(count)]
            for source, count in ((few, 3), (many, 4))
        }
        for source, withdrawn in ((few, 1), (many, 4)):
            store.commit(leaves[source])
            assert store.withdraw([task_of(leaves[source][0])]) == withdrawn
        expect(store, *leaves[few][1:])

    def test_withdrawing_again_and_again_keeps_the_sums(self, store: LedgerStore) -> None:
        source = registered(store)
        leaves = [
            replace(counted_leaf(source, ((n, 7),), rejected=n % 3), bytes=10 + n, seconds=n / 8) for n in range(5)
        ]
        plain_ones = [replace(leaf_of(source, ((n, 7),)), bytes=100 + n, seconds=n / 8) for n in (5, 6)]
        every = [*leaves, *plain_ones]
        store.commit(every)
        totals = store.totals()
        for gone in (leaves[0], leaves[3], leaves[4]):
            assert store.withdraw([task_of(gone)]) == 1
            expect(store, *(leaf for leaf in every if leaf is not gone))
            assert store.totals() == totals.minus(gone.share())
            store.commit([gone])
            assert store.totals() == totals
            expect(store, *every)
