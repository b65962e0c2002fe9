"""Conformance tests of ledger stores: changes of plans, sources, jobs and listings.

A store's test class inherits this beside `conformance.LedgerStoreConformance`, with the same fixture ``store``.
"""

from __future__ import annotations

import pytest

from ledgerbeam.errors import LedgerError, NonDeterministicTaskError
from ledgerbeam.ledger.lmdb.tables import PAGE_ROWS
from ledgerbeam.ledger.model.identity import ROOT, Lineage
from ledgerbeam.ledger.model.rows import Leaf, Output, Totals
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS, LedgerStore
from ledgerbeam.ledger.model.task import Source
from tests.ledger.builders import ONE, TWO, failure_of, filtered_leaf, leaf_of, leaves_of_split, mark_of, plain
from tests.ledger.stores import is_complete, registered, replaces, several


class ChangesConformance:
    """Inherit it, and give a fixture `store`: an empty store, open for writing."""

    # Plans

    @pytest.mark.parametrize("whole", [(), ((0, 1),), ((0, 1), (0, 1))])
    @pytest.mark.parametrize("at_once", [False, True])
    def test_a_whole_source_beside_parts_of_it_is_an_error(
        self, store: LedgerStore, whole: Lineage, at_once: bool
    ) -> None:
        source = registered(store)
        part = leaf_of(source, ((1, 3),))
        if not at_once:
            store.commit([part])
        with pytest.raises(NonDeterministicTaskError):
            store.commit([part, filtered_leaf(source, whole)] if at_once else [filtered_leaf(source, whole)])
        assert not is_complete(store, source)
        assert store.pending(source.id) == 2

    @pytest.mark.parametrize(("taken", "free"), [("one", "two"), ("two", "one")])
    def test_what_was_refused_keeps_no_name_from_another_task(self, store: LedgerStore, taken: str, free: str) -> None:
        source = registered(store)
        store.commit([Leaf(source.id, ((0, 3),), "published", (Output(taken, 1, "x", 1),))])
        both = (Output(free, 1, "y", 1), Output(taken, 1, "x", 1))
        good = Leaf(source.id, ((2, 3),), "published", both[:1])
        with pytest.raises(NonDeterministicTaskError, match=f"'{taken}', and so did another task"):
            store.commit([Leaf(source.id, ((1, 3),), "published", both), good])
        assert {row.output.name for row in store.outputs()} == {"one", "two"}
        assert store.pending(source.id) == 1

    def test_a_source_that_was_done_in_steps_can_be_done_in_steps_again(self, store: LedgerStore) -> None:
        source = plain()
        for _ in range(2):
            store.register([source])
            for place, leaf in enumerate(leaves_of_split(source, 3)):
                assert store.commit([leaf]).completed == ([source.id] if place == 2 else [])
                assert store.totals().tasks == place + 1
            store.forget("*")
            assert store.totals() == Totals()

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_source_that_is_taken_back_half_done_owes_all_again(self, store: LedgerStore, replaced: bool) -> None:
        source = registered(store)
        leaves = leaves_of_split(source, 4)
        store.commit(leaves[:2])
        if replaced:
            store.begin_run({})
            store.register([plain(version="2")])
            store.begin_run({})
            store.register([source])
        else:
            store.forget("*")
        for place, leaf in enumerate((leaves[2], leaves[0], leaves[3], leaves[1])):
            assert store.commit([leaf]).fresh == 1
            assert store.pending(source.id) == 3 - place
        assert is_complete(store, source)
        assert len(list(store.outputs())) == 4

    # Failures and deaths

    def test_completion_leaves_no_failure_and_no_death_of_any_task(self, store: LedgerStore) -> None:
        source, other = several(store, "a", "other")
        store.commit([], [failure_of(source), failure_of(source, ((0, 3),)), failure_of(other)])
        store.record_deaths([mark_of(source, ((1, 3),))])
        store.commit([leaf_of(source)])
        assert [row.url for row in store.failures()] == [other.url]
        store.forget(source.url)
        assert store.attempts(source.id) == {}
        assert [row.url for row in store.failures()] == [other.url]

    def test_a_task_in_quarantine_stays_there_though_it_fails(self, store: LedgerStore) -> None:
        source = registered(store)
        for _ in range(MAX_ATTEMPTS):
            store.record_deaths([mark_of(source)])
        store.commit([], [failure_of(source)])
        (row,) = store.failures()
        assert (row.quarantined, row.attempts) == (True, MAX_ATTEMPTS + 1)

    # Sources

    def test_registering_again_does_not_forget_that_a_source_replaced_another(self, store: LedgerStore) -> None:
        old, new, beside = plain(version="1"), plain(version="2"), plain("b")
        store.register([old])
        store.register([new])
        assert replaces(store, new) == [True]
        store.register([beside, new])
        assert replaces(store, new, beside) == [True, False]

    def test_a_source_that_is_back_is_not_taken_for_one_that_was_replaced(self, store: LedgerStore) -> None:
        old, new = plain(version="1"), plain(version="2")
        for source in (old, new, old):
            store.register([source])
        store.commit([Leaf(old.id, (), "published", (Output("out", 1, "x", 1),))])
        assert is_complete(store, old)
        store.forget("*")
        store.register([old])
        store.commit([filtered_leaf(old)])
        assert store.stale_outputs() == ["out"]

    def test_a_withdrawn_completion_is_seen_by_who_has_looked_often(self, store: LedgerStore) -> None:
        sources = [plain(f"s{n}") for n in range(8)]
        ids = [source.id for source in sources]
        store.open_job(ONE)
        for withdraw in (
            lambda: store.forget("*"),
            lambda: store.register([plain(f"s{n}", "2") for n in range(8)]),
            lambda: store.open_job(TWO, "restart"),
        ):
            store.register(sources)
            store.commit([leaf_of(source) for source in sources])
            for _ in range(3):
                assert all(store.completed_mask(ids))
            withdraw()
            assert not any(store.completed_mask(ids))

    def test_a_pack_that_loses_a_member_in_its_own_listing_is_none(self, store: LedgerStore) -> None:
        pack, a, b = Source.pack([plain("a"), plain("b")]), plain("a", "2"), plain("b")
        store.register([pack, a])
        assert [row.url for row in store.sources()] == [a.url]
        assert store.commit([leaf_of(pack), leaf_of(a)]).completed == [a.id]
        store.register([b])
        assert replaces(store, b) == [False]
        store.commit([leaf_of(b)])
        assert store.stale_outputs() == []

    def test_outputs_of_a_pack_wait_for_every_source_that_took_its_place(self, store: LedgerStore) -> None:
        pack = Source.pack([plain("a"), plain("b")])
        store.register([pack])
        store.commit([Leaf(pack.id, (), "published", (Output("pack", 1, "x", 2),))])
        a, b = plain("a", "2"), plain("b", "2")
        store.register([a])
        assert store.stale_outputs() == []  # no source has b now
        store.register([b])
        for source, stale in ((a, []), (b, ["pack"])):
            store.commit([filtered_leaf(source)])
            assert store.stale_outputs() == stale

    def test_outputs_of_a_source_whose_url_is_nobodys_now_are_not_stale(self, store: LedgerStore) -> None:
        old, b = plain("a"), plain("b", "2")
        store.register([old])
        store.commit([leaf_of(old)])
        store.register([Source.pack([plain("a"), plain("b")])])
        store.register([b])  # the pack is replaced; its outputs stay superseded
        store.commit([filtered_leaf(b)])
        assert store.stale_outputs() == []

    def test_outputs_of_a_forgotten_source_are_not_stale_until_it_is_complete(self, store: LedgerStore) -> None:
        source = registered(store)
        store.commit(leaves_of_split(source, 2))
        store.forget("*")
        assert store.stale_outputs() == []
        store.commit([filtered_leaf(source, ((0, 2),))])
        assert store.stale_outputs() == []
        store.commit([filtered_leaf(source, ((1, 2),))])
        assert store.stale_outputs() == ["data/a-0.jsonl", "data/a-1.jsonl"]

    # Jobs

    def test_a_restarted_job_has_nothing_of_the_former_but_what_it_published(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        begun, blamed, failed, gone = (plain(name) for name in ("begun", "blamed", "failed", "gone"))
        old, new = plain("changed", "1"), plain("changed", "2")
        store.register([begun, blamed, failed, gone, old])
        store.commit([leaf_of(old)])
        store.commit([leaf_of(begun, ((0, 3),))], [failure_of(failed)])
        for _ in range(MAX_ATTEMPTS - 1):
            store.record_deaths([mark_of(blamed)])
        store.register([new])  # it has not taken the place of the old one, and it never will
        store.set_gone([gone.id])
        store.open_job(TWO, "restart")
        status = store.status()
        assert (status["gone"], status["sources"]) == (0, {"complete": 0, "open": 0, "failed": 0})
        assert (store.totals(), list(store.failures()), list(store.outputs())) == (Totals(), [], [])
        assert store.stale_outputs() == ["data/begun-0.jsonl", "data/changed-.jsonl"]
        newest = plain("changed", "3")
        store.register([begun, blamed, failed, newest])
        assert (store.pending(begun.id), store.applied(begun.id)) == (1, {ROOT: 1})
        assert store.attempts(blamed.id) == {}
        assert store.record_deaths([mark_of(blamed)]) == []
        assert list(store.failures()) == []
        with pytest.raises(LedgerError, match="never registered"):
            store.commit([leaf_of(old)])
        for ordinal, left in ((1, 2), (0, 1)):
            store.commit([leaf_of(begun, ((ordinal, 3),))])
            assert store.pending(begun.id) == left

    def test_a_restarted_job_supersedes_more_outputs_than_a_page(self, store: LedgerStore) -> None:
        store.open_job(ONE)
        source = registered(store)
        outputs = tuple(Output(f"{n}", 1, "x", 1) for n in range(PAGE_ROWS + 3))
        store.commit([Leaf(source.id, (), "published", outputs)])
        store.open_job(TWO, "restart")
        assert len(store.stale_outputs()) == len(outputs)

    # Listings

    def test_a_listing_says_anew_what_is_gone(self, store: LedgerStore) -> None:
        one, two = several(store, "a", "b")
        store.set_gone([one.id])
        store.set_gone([two.id])
        assert {row.url: row.state for row in store.sources()} == {one.url: "open", two.url: "gone"}
