"""What of a listing goes on as open: pages, and packs that may begin on one page and end on the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Job, LedgerStore, Source, selection
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.transforms import MatchSources, SkipCompleted
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.plan import _SkipPacks, _SkipPages
from tests.cases import each
from tests.transforms.metrics import reported


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    made = open_local_store(str(tmp_path / "L"), create=True)
    made.open_job(Job("map", {}))
    yield made
    made.close()


def page(*names: str) -> Page:
    return Page([f"/data/{name}" for name in names], [10] * len(names), ["1"] * len(names))


EMPTY = Page([], [], [])


class Listed:
    """A listing of pages of files with names of one letter; it notes how many were taken of it."""

    title = "those of the test"

    def __init__(self, *names: str) -> None:
        self._names = names
        self.taken = 0

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        for names in self._names:
            self.taken += 1
            yield page(*names)
        if left_out is not None:
            left_out.own += 3


def source(name: str) -> Source:
    return Source(f"/data/{name}", 10, "1")


def pairs(sources: Iterable[Source]) -> Iterator[Source]:
    listed = iter(sources)
    while pair := list(islice(listed, 2)):
        yield Source.pack(pair)


def test_what_is_open_goes_on_registered_with_what_is_done_of_it(tmp_path: Path, store: LedgerStore) -> None:
    store.register([source("a"), source("b")])
    store.commit([Leaf(source("a").id, ()), Leaf(source("b").id, ((1, 3),))])
    skip = _SkipPages(LedgerHandle(str(tmp_path / "L")))
    skip.setup()
    with reported() as metrics:
        found = list(skip.process(page("a", "b", "c")))
    assert [row.source for row in found] == [source("b"), source("c")]
    assert [len(row.applied) > 1 for row in found] == [True, False]
    assert (metrics.total("sources_open"), metrics.total("sources_skipped")) == (2, 1)
    assert store.source_count() == 3


def test_packs_are_made_across_pages(tmp_path: Path, store: LedgerStore) -> None:
    done = Source.pack([source("a"), source("b")])
    store.register([done])
    store.commit([Leaf(done.id, ())])
    skip = _SkipPacks(LedgerHandle(str(tmp_path / "L")), pairs, Listed("abc", "d", "e"))
    skip.setup()
    next(skip.process(EMPTY))  # a bundle that is tried again begins anew
    with reported() as metrics:
        found = list(skip.process(EMPTY))
    assert all(isinstance(row, PendingSource) for row in found)
    assert [[member.url[-1] for member in row.source.members] for row in found] == [["c", "d"], ["e"]]
    assert (metrics.total("sources_open"), metrics.total("sources_skipped")) == (2, 1)
    assert store.source_count() == 3


def test_packs_go_on_before_all_is_listed(tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PACKS_A_PAGE", 1)
    listed = Listed(*"abcdefgh")
    skip = _SkipPacks(LedgerHandle(str(tmp_path / "L")), pairs, listed)
    skip.setup()
    taken = [listed.taken for _ in skip.process(EMPTY)]
    assert taken == [2, 4, 6, 8]  # what is held does not grow with the listing


@pytest.mark.parametrize("packs", [False, True])
def test_a_ledger_that_is_open_since_a_former_pipeline_is_asked_anew(
    tmp_path: Path, store: LedgerStore, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed: list[bool] = []
    handle = LedgerHandle(str(tmp_path / "L"))
    monkeypatch.setattr(type(handle.store()), "refresh", lambda _: refreshed.append(True))
    (_SkipPacks(handle, pairs, Listed()) if packs else _SkipPages(handle)).setup()
    assert refreshed == [True]


def given(transform: MatchSources | SkipCompleted, element: Any, **values: Any) -> list[Any]:
    doing: Any = transform.dofn(ChainValues(**values))
    doing.setup()
    return list(doing.process(element))


def test_pages_are_listed_where_nobody_else_lists(caplog: pytest.LogCaptureFixture) -> None:
    """Where the launcher has listed, or packs are made, the pipeline begins with one empty page."""
    with caplog.at_level("INFO"):
        assert given(MatchSources(), b"", listing=Listed("ab", "c")) == [page("a", "b"), page("c")]
    assert ["left out of the sources" in message for message in caplog.messages] == [True]
    listed = Listed("ab")
    for values in ({}, {"open_sources": list, "listing": listed}, {"packer": pairs, "listing": listed}):
        assert given(MatchSources(), b"", **values) == [EMPTY]
    assert listed.taken == 0


def test_what_the_launcher_has_found_open_is_taken_as_it_is() -> None:
    found = [PendingSource(source("a")), PendingSource(source("b"))]
    assert given(SkipCompleted(), EMPTY, open_sources=lambda: found) == found


def test_sources_are_looked_up_as_pages_or_as_packs(tmp_path: Path, store: LedgerStore) -> None:
    handle = LedgerHandle(str(tmp_path / "L"))
    for values in ({}, {"packer": pairs}):  # what lists for itself needs a listing
        assert [row.source for row in given(SkipCompleted(), page("a"), ledger=handle, **values)] == [source("a")]
    (row,) = given(SkipCompleted(), EMPTY, ledger=handle, packer=pairs, listing=Listed("bc"))
    assert row.source == Source.pack([source("b"), source("c")])
    with pytest.raises(UsageError, match="this pipeline has no ledger"):
        given(SkipCompleted(), page("a"))


def test_what_is_said_of_sources_is_kept_in_one_form() -> None:
    one = MatchSources("file:///data/*.jsonl")
    assert one.patterns == ("/data/*.jsonl",)
    assert (one.sources_from, one.graph, one.epochs, one.base) == (None, None, 1, None)
    assert (one.group, one.index_root, one.build_index, one.columns) == ("auto", None, True, ())
    assert (one.pack, one.shar) == (None, False)
    assert MatchSources(["/a/*", "/b/*"]).patterns == ("/a/*", "/b/*")
    listed = MatchSources(sources_from="file:///list", base="file:///data", index_root="file:///idx/", pack="2K")
    assert (listed.patterns, listed.sources_from) == ((), "/list")
    assert (listed.base, listed.index_root, listed.pack) == ("/data/", "/idx", 2048)
    assert MatchSources("/a", base="/data/").base == "/data/"
    assert MatchSources("/a", columns=["x", "y"], group="key", build_index=False, epochs=3).columns == ("x", "y")


def test_a_console_shows_what_the_sources_are() -> None:
    for transform, shown in (
        (MatchSources(["/a/*", "/b/*"]), "/a/*, /b/*"),
        (MatchSources(sources_from="/list"), "/list"),
        (MatchSources(graph="module:graph"), "module:graph"),
        (MatchSources(), "those of the job"),
    ):
        assert transform.display_data() == {"sources": shown}


@each(
    ("arguments", "said"),
    [
        ({"patterns": "/a", "sources_from": "/list"}, "pass one of them"),
        ({"patterns": "/a", "graph": "m:g"}, "pass one of them"),
        ({"sources_from": "/list", "graph": "m:g"}, "pass one of them"),
        ({"patterns": "/a", "group": "other"}, "expected auto, pairs or key, found 'other'"),
        ({"patterns": "/a", "pack": 0}, "MatchSources: pack: expected"),
        ({"shar": True}, "shar reads whole shards"),
        ({"shar": True, "patterns": "/a", "pack": 5}, "shar reads whole shards"),
        ({"shar": True, "patterns": "/a", "columns": ["x"]}, "shar reads whole shards"),
        ({"shar": True, "patterns": "/a", "group": "key"}, "shar reads whole shards"),
    ],
)
def test_what_means_nothing_together_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        MatchSources(**arguments)


def test_what_means_something_is_taken() -> None:
    for group in ("auto", "pairs", "key"):
        assert MatchSources("/a", group=group).group == group
    assert MatchSources("/a", shar=True).shar
