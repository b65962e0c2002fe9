"""Registered sources when others name their files, and records of sources that are not registered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgerbeam.ledger.lmdb.sources import number_of_retired, register, urls_of_sources
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote.registration import register_sources
from tests.ledger.builders import filtered_leaf, leaf_of, plain

A, B = plain("a"), plain("b")
PACK = Source.pack([plain("a", "2"), B])
UNKNOWN = plain("unknown")


def registered(store: LmdbStore, sources: Sequence[Source], number: int = 0) -> set[bytes]:
    """Register sources, with a number as in a remote ledger, and return the ids of all registered sources."""
    store._write(lambda txn: register_sources(txn, sources, number) if number else register(txn, sources))
    return {source for page in store.source_ids() for source in page}


def retired(store: LmdbStore, *sources: Source) -> list[int]:
    with store._open().read() as txn:
        return [number_of_retired(txn, source.id) for source in sources]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_source_that_changed_while_it_was_listed_is_replaced_though_nobody_keeps_its_file(
    store: LmdbStore, order: tuple[int, int]
) -> None:
    newer = plain("b", "2")
    listings = [([A], 3), ([A, PACK, newer], 5)]
    for place in order:
        found = registered(store, *listings[place])
    assert found == {newer.id}
    assert retired(store, A, PACK, newer, UNKNOWN) == [5, 5, 0, 0]


def test_a_source_that_is_not_listed_stays_registered_though_one_was_that_nobody_keeps(store: LmdbStore) -> None:
    registered(store, [A], 3)
    newer = plain("b", "2")
    assert registered(store, [PACK, newer], 5) == {A.id, newer.id}
    assert retired(store, A, PACK) == [0, 5]


def test_a_source_keeps_its_progress_though_others_of_its_listing_have_changed(store: LmdbStore) -> None:
    done = plain("done")
    registered(store, [done])
    store.commit([leaf_of(done)])
    assert registered(store, [A, done, plain("a", "2")]) == {done.id, plain("a", "2").id}
    assert all(store.completed_mask([done.id]))


def test_what_changed_while_it_was_listed_is_out_of_date_once_what_it_has_become_is_complete(store: LmdbStore) -> None:
    newer = plain("a", "2")
    registered(store, [A])
    store.commit([leaf_of(A)])
    registered(store, [A, newer, B])
    store.commit([leaf_of(B)])
    assert store.stale_outputs() == []
    store.commit([filtered_leaf(newer)])
    assert store.stale_outputs() == [output.name for output in leaf_of(A).outputs]


def test_a_source_that_comes_in_late_replaces_what_was_registered_before_it_and_nothing_after(store: LmdbStore) -> None:
    registered(store, [B], 1)
    newer = plain("a", "3")
    registered(store, [newer], 5)
    assert registered(store, [PACK], 3) == {newer.id}
    assert retired(store, B, PACK, newer) == [3, 5, 0]
    assert registered(store, [PACK], 4) == {newer.id}
    assert retired(store, B, PACK, newer) == [3, 5, 0]
    assert registered(store, [PACK], 6) == {PACK.id}
    assert retired(store, PACK, newer) == [0, 6]


def test_urls_are_told_of_registered_sources_alone(store: LmdbStore) -> None:
    registered(store, [B, A])
    with store._open().read() as txn:
        assert urls_of_sources(txn, [B.id, UNKNOWN.id, A.id]) == [A.url, B.url]
        assert urls_of_sources(txn, [UNKNOWN.id]) == []


def test_a_pack_is_replaced_by_the_last_that_took_over_one_of_its_files(store: LmdbStore) -> None:
    last = plain("b", "3")
    registered(store, [PACK], 1)
    registered(store, [plain("a", "3")], 3)
    registered(store, [last], 5)
    assert registered(store, [PACK], 4) == {last.id}
    assert retired(store, PACK) == [5]
    assert registered(store, [PACK], 6) == {PACK.id}


def test_a_pack_that_was_replaced_stays_so_though_what_replaced_it_was_replaced_too(store: LmdbStore) -> None:
    last = plain("c", "2")
    for number, source in ((1, PACK), (5, Source.pack([plain("a", "4"), plain("c")])), (7, last)):
        registered(store, [source], number)
    assert registered(store, [PACK], 3) == {last.id}
    assert registered(store, [PACK], 6) == {PACK.id, last.id}
