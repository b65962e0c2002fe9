"""What a listing of a job counts, and which ids of its ledger it did not have.

Few ids are looked up in a set, many in a column.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path

import pytest

from ledgerbeam.errors import NotIndexableError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.pipelines.jobs import listing
from ledgerbeam.pipelines.jobs.listing import JobListing, listed_pages
from ledgerbeam.pipelines.jobs.one_stage import IndexJob, MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles

IDS = [blake2b(bytes([number]), digest_size=16).digest() for number in range(200)]


@pytest.mark.parametrize("few", [0, 1000])
def test_ids_that_were_not_listed_are_found_in_a_set_and_in_a_column(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(listing, "_FEW", few)
    known = listing._Known(listing._prefixes([*IDS[::2], *IDS[::4]]))  # some were listed twice
    assert known.count() == 100
    assert list(known.missing(IDS)) == IDS[1::2]
    assert list(known.missing(IDS[::2])) == []


ONE, OTHER = (Source(f"/in/{name}", 1, "1") for name in "ab")


def listing_of(folder: Path, store: LedgerStore, *pages: Page, only: Collection[bytes] | None = None) -> JobListing:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    job = MapJob(files=files, function="m:f", made_of={}, output=str(folder / "out"), to="jsonl").resolve_ledger("L")
    return JobListing(job, store, iter(pages), store.begin_run({"token": "t"}), only=only)


def test_a_source_that_was_listed_twice_hides_none_that_is_gone(tmp_path: Path, store: LedgerStore) -> None:
    store.register([ONE, OTHER])
    listed = listing_of(tmp_path, store)
    listed.count_listed([ONE.id, ONE.id])
    assert list(listed.gone()) == [OTHER.id]


def test_what_is_open_and_not_to_be_done_is_not_counted_as_skipped(tmp_path: Path, store: LedgerStore) -> None:
    page = Page([ONE.url, OTHER.url], [1, 1], ["1", "1"])
    listed = listing_of(tmp_path, store, page, only={ONE.id})
    assert list(listed.open_sources()) == [[ONE]]
    assert (listed.found, listed.skipped) == (2, 0)


def test_a_source_that_a_job_cannot_do_is_refused_before_there_is_a_listing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.xz").touch()
    job = IndexJob(files=ListedFiles(patterns=(f"{tmp_path}/*",))).resolve_ledger(str(tmp_path / "L"))
    with pytest.raises(NotIndexableError):
        listed_pages(job, lambda _: None)
