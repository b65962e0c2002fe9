"""`look_at_files` and `JobListing`: sources that start again, counts, missing sources."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path

import pytest

from ledgerbeam.errors import NotIndexableError
from ledgerbeam.io.listing.pages import Page, list_pages
from ledgerbeam.ledger import LedgerStore, Source, Task
from ledgerbeam.ledger.model.identity import content_checksum, content_version
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.pipelines.jobs import listing
from ledgerbeam.pipelines.jobs.listing import JobListing, listed_pages
from ledgerbeam.pipelines.jobs.one_stage import IndexJob, MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.recorded import look_at_files


def listed(path: Path) -> Source:
    (page,) = list_pages([str(path)])
    return Source(page.urls[0], page.sizes[0], page.versions[0])


def make(folder: Path, *names: str) -> list[Source]:
    for name in names:
        (folder / name).write_text('{"id": 1}\n' * 3)
    return [listed(folder / name) for name in names]


def begin(store: LedgerStore, source: Source) -> None:
    """Records one of three parts."""
    store.commit([Leaf(source.id, ((0, 3),), "published", (), 1, 3)])


def replace(source: Source) -> None:
    """Put another file of the same size and time in its place."""
    was = os.stat(source.url)
    with open(f"{source.url}.new", "w", encoding="utf-8") as file:
        file.write('{"no": 1}\n' * 3)
    os.utime(f"{source.url}.new", ns=(was.st_atime_ns, was.st_mtime_ns))
    os.replace(f"{source.url}.new", source.url)


def done(found: list[PendingSource]) -> list[int]:
    """Of which sources the part counts as done."""
    return [int(row.has_done(Task(row.source, 0, 1, ((0, 3),)))) for row in found]


def test_a_source_that_is_replaced_after_a_part_was_done_is_begun_anew(
    tmp_path: Path, store: LedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    sources = make(tmp_path, "a", "b", "c")
    store.register(sources)
    assert done(look_at_files(sources, store)) == [0, 0, 0]
    for source in sources[:2]:
        begin(store, source)
    assert done(look_at_files(sources, store)) == [1, 1, 0]
    assert not caplog.records
    replace(sources[0])
    replace(sources[2])
    with caplog.at_level(logging.WARNING):
        found = look_at_files(sources, store)
    assert done(found) == [0, 1, 0]
    assert [row.source.id for row in found] == [source.id for source in sources]
    assert [row.getMessage().partition(":")[0] for row in caplog.records] == [sources[0].url]
    assert store.totals().tasks == 1
    begin(store, sources[0])
    assert done(look_at_files(sources, store)) == [1, 1, 0]


def test_tasks_are_told_the_time_of_the_last_change(tmp_path: Path, store: LedgerStore) -> None:
    plain, *members = make(tmp_path, "a", "b", "c")
    pack = Source.pack(members)
    remote = Source("s3://bucket/a", 1, "1")
    gone = Source(str(tmp_path / "gone"), 1, "1")
    sources = [plain, pack, remote, gone]
    store.register(sources)
    found = [row.source for row in look_at_files(sources, store)]
    times = {name: os.stat(tmp_path / name).st_ctime_ns for name in "abc"}
    assert found[0] == dataclasses.replace(plain, changed_ns=times["a"])
    assert [member.changed_ns for member in found[1].members] == [times["b"], times["c"]]
    assert found[2:] == [remote, gone]
    assert store.file_times([source.id for source in sources]) == {
        plain.id: [times["a"]],
        pack.id: [times["b"], times["c"]],
    }


def test_any_member_of_a_pack_counts(tmp_path: Path, store: LedgerStore) -> None:
    pack = Source.pack(make(tmp_path, "a", "b"))
    store.register([pack])
    look_at_files([pack], store)
    begin(store, pack)
    assert done(look_at_files([pack], store)) == [1]
    replace(pack.members[1])
    assert done(look_at_files([pack], store)) == [0]


def test_a_member_that_is_gone_hides_no_other_that_is_replaced(tmp_path: Path, store: LedgerStore) -> None:
    pack = Source.pack(make(tmp_path, "a", "b"))
    store.register([pack])
    (tmp_path / "a").unlink()
    look_at_files([pack], store)
    assert store.file_times([pack.id])[pack.id][0] == 0
    begin(store, pack)
    replace(pack.members[1])
    assert done(look_at_files([pack], store)) == [0]


def test_only_a_local_file_that_is_known_by_its_time_is_looked_at(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain,) = make(tmp_path, "a")
    of_content = dataclasses.replace(plain, version=content_version(content_checksum([b"x"])))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    make(tmp_path, "s3:/bucket/a")
    remote = Source("s3://bucket/a", 1, "1")
    store.register([of_content, remote])
    assert [row.source.changed_ns for row in look_at_files([of_content, remote], store)] == [0, 0]


def test_of_a_source_that_nobody_looked_at_before_the_parts_count(tmp_path: Path, store: LedgerStore) -> None:
    """As of a ledger that an older version has begun, or another host."""
    (source,) = make(tmp_path, "a")
    store.register([source])
    begin(store, source)
    assert done(look_at_files([source], store)) == [1]


def test_a_file_that_cannot_be_looked_at_is_left_to_planning(tmp_path: Path, store: LedgerStore) -> None:
    (source,) = make(tmp_path, "a")
    store.register([source])
    look_at_files([source], store)
    begin(store, source)
    (tmp_path / "a").rename(tmp_path / "aside")
    assert done(look_at_files([source], store)) == [1]
    (tmp_path / "aside").rename(tmp_path / "a")
    assert done(look_at_files([source], store)) == [0], "its inode has changed"


def test_a_source_that_is_complete_meanwhile_is_left_out(tmp_path: Path, store: LedgerStore) -> None:
    sources = make(tmp_path, "a", "b")
    store.register(sources)
    store.commit([Leaf(sources[0].id, (), "published", (), 1, 3)])
    assert [row.source.url for row in look_at_files(sources, store)] == [sources[1].url]


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
