"""Sources of a listing that have work left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger import Source, Task, selection
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.selection import PendingSource, open_packs, open_sources
from tests.ledger.builders import leaf_of, plain


@pytest.mark.parametrize(("packs_a_page", "members_a_page"), [(3, 1000), (1000, 9), (1000, 12)])
def test_packs_are_taken_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packs_a_page: int, members_a_page: int
) -> None:
    monkeypatch.setattr(selection, "PACKS_A_PAGE", packs_a_page)
    monkeypatch.setattr(selection, "MEMBERS_A_PAGE", members_a_page)
    taken: list[Source] = []

    def packs() -> Iterator[Source]:
        for number in range(8):
            taken.append(Source.pack([plain(f"{number}-{member}") for member in range(4)]))
            yield taken[-1]

    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("map", {}))
    seen = []
    for sources, ids in open_packs(packs(), store):
        seen.append(len(taken))
        assert [source.id for source in sources] == ids
    store.close()
    assert seen == [3, 6, 8]


def test_of_a_page_that_is_done_in_part_only_the_rest_is_open(store: LmdbStore) -> None:
    done, left, late = plain("done"), plain("left"), plain("late")
    store.register([done])
    store.commit([leaf_of(done)])

    def opened(*page: Source) -> list[Source]:
        urls, sizes, versions = ([getattr(source, name) for source in page] for name in ("url", "size", "version"))
        return open_sources([source.id for source in page], urls, sizes, versions, store)

    assert opened(left, done, late) == [left, late]
    assert None not in store.progress([left.id, late.id])
    store.commit([leaf_of(left), leaf_of(late)])
    assert opened(left, done, late) == []


@pytest.mark.parametrize("short", range(3))
def test_of_a_ragged_page_nothing_is_taken_for_the_whole(store: LmdbStore, short: int) -> None:
    page = [plain("a"), plain("b")]
    urls, sizes, versions = columns = [
        [getattr(source, name) for source in page] for name in ("url", "size", "version")
    ]
    del columns[short][-1]
    with pytest.raises(ValueError, match="zip"):
        open_sources([source.id for source in page], urls, sizes, versions, store)
    assert store.source_count() == 0


def test_of_packs_those_are_open_that_are_not_done(store: LmdbStore) -> None:
    packs = [Source.pack([plain(name), plain(f"{name}2")]) for name in "abc"]
    store.register(packs[1:2])
    store.commit([leaf_of(packs[1])])
    ((found, ids),) = open_packs(iter(packs), store)
    assert (found, ids) == ([packs[0], packs[2]], [pack.id for pack in packs])
    store.commit([leaf_of(packs[0]), leaf_of(packs[2])])
    assert list(open_packs(iter(packs), store)) == [([], ids)]
    assert list(open_packs(iter([]), store)) == []


def test_an_open_source_tells_what_of_it_is_done_and_what_is_not_to_be_started(store: LmdbStore) -> None:
    source = plain()
    first, second = Task(source, 0, 10).split([(0, 5), (5, 10)])
    fresh = PendingSource.of(source)
    assert PendingSource.of(fresh) is fresh
    assert not fresh.replaces
    store.register([source])
    store.commit([leaf_of(source, first.lineage)])
    for deaths in range(MAX_ATTEMPTS + 1):
        (found,) = selection.with_progress([source], store)
        assert [found.has_done(task) for task in (first, second)] == [True, False]
        assert [found.has_quarantined(task) for task in (first, second)] == [False, deaths == MAX_ATTEMPTS]
        store.record_deaths([Mark(source.id, second.node, second.name)])
    assert [(fresh.has_done(task), fresh.has_quarantined(task)) for task in (first, second)] == [(False, False)] * 2
