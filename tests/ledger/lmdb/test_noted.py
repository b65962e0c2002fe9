"""Records of runs, sources and tasks are read as they were written."""

from __future__ import annotations

import time

import pytest

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.rows import SetUps, TaskCountsRow
from tests.ledger.builders import counted_leaf, leaf_of, plain


def test_the_set_ups_of_a_run_are_kept_as_they_were_noted_last(store: LmdbStore) -> None:
    first, _ = (store.begin_run({"pid": number}) for number in range(2))
    for found in (SetUps.of([1.5]), SetUps.of([1.5, 0.25])):
        store.note(first, found)
    store.end_run(first, "done")
    assert [run["set_ups"] for run in store.runs()] == [{"times": 2, "seconds": 1.75, "longest": 1.5}, None]
    with pytest.raises(LedgerError, match="is not in this ledger"):
        store.note("999999", SetUps())


def test_the_urls_of_some_sources_are_those_of_the_registered_ones(store: LmdbStore) -> None:
    sources = [plain(name) for name in "abc"]
    store.register(sources)
    asked = [sources[2].id, plain("unknown").id, sources[0].id]
    assert store.source_urls(asked) == {sources[2].id: sources[2].url, sources[0].id: sources[0].url}
    assert store.source_urls([]) == {}


def test_a_commit_says_how_long_it_took(store: LmdbStore) -> None:
    store.register([plain()])
    began = time.monotonic()
    result = store.commit([leaf_of(plain())])
    assert 0 < result.seconds <= time.monotonic() - began


def test_what_became_of_records_is_told_of_each_task_that_did_not_just_write_them(store: LmdbStore) -> None:
    counted, other, simple = sources = [plain(name) for name in "abc"]
    store.register(sources)
    leaves = [counted_leaf(counted, ((0, 2),)), counted_leaf(counted, ((1, 2),), dropped=3), counted_leaf(other)]
    store.commit([*leaves, leaf_of(simple)])
    found = list(store.task_counts())
    urls = {source.id: source.url for source in sources}
    expected = [
        TaskCountsRow(urls[leaf.source_id], leaf.source_id, node_id(leaf.source_id, leaf.lineage), leaf.counts)
        for leaf in leaves
        if leaf.counts is not None
    ]
    assert sorted(found, key=lambda row: (row.source_id, row.node)) == found
    assert found == sorted(expected, key=lambda row: (row.source_id, row.node))
