"""Which sources of a listing still owe work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger import Source, open_packs, open_store, selection
from ledgerbeam.ledger.model.job import Job
from tests.ledger.builders import plain


@pytest.mark.parametrize(("packs_a_page", "members_a_page"), [(3, 1000), (1000, 11)])
def test_packs_are_taken_from_the_listing_a_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packs_a_page: int, members_a_page: int
) -> None:
    monkeypatch.setattr(selection, "PACKS_A_PAGE", packs_a_page)
    monkeypatch.setattr(selection, "MEMBERS_A_PAGE", members_a_page)
    taken: list[Source] = []

    def packs() -> Iterator[Source]:
        for number in range(8):
            taken.append(Source.pack([plain(f"{number}-{member}") for member in range(4)]))
            yield taken[-1]

    store = open_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("map", {}))
    seen = []
    for sources, ids in open_packs(packs(), store):
        seen.append(len(taken))
        assert [source.id for source in sources] == ids
    store.close()
    assert seen == [3, 6, 8]
