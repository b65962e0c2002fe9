"""Outputs of a job as sources: the listed ones, their order, and the comparison of their contents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import ChangedSourceError, LedgerError, UsageError
from ledgerbeam.ledger import Job, LedgerStore, Output, Source
from ledgerbeam.ledger.model.identity import checksum_of, content_checksum, content_version
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.sources import FileSources, kind
from ledgerbeam.sources import listing as source_listing
from ledgerbeam.sources.kind import TaskLimits, current_file, is_content, listed_files, with_file_marks
from ledgerbeam.sources.listing import (
    RecordedListing,
    RecordedOutputs,
    is_output,
    missing_outputs_warning,
    opened,
    outputs_pages,
)

LINES = b'{"id": 1}\n{"id": 2}\n'
SUM = content_checksum([LINES])


def commit(store: LedgerStore, source: Source, *names: str, route: str = "") -> None:
    store.register([source])
    outputs = tuple(Output(name, len(LINES), SUM, 2, 0, 0, route) for name in names)
    store.commit([Leaf(source.id, (), "published", outputs, 2, len(LINES))])


@pytest.fixture
def store(tmp_path: Path) -> LedgerStore:
    found = open_store(str(tmp_path / "L"), {}, create=True)
    found.open_job(Job("convert", {"output": str(tmp_path / "out")}))
    return found


def listed(tmp_path: Path, store: LedgerStore, route: str = "") -> list[tuple[str, int, str]]:
    run = store.begin_run({})
    store.note_listing(run, listed=1, finished=True, gone=store.gone_ids())
    listing = RecordedListing((RecordedOutputs(store.url, str(tmp_path / "out"), route, "step one"),))
    return [row for page in listing.pages() for row in zip(page.urls, page.sizes, page.versions, strict=True)]


def test_outputs_are_listed_by_name_without_their_indexes(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/b", 1, "1"), "b.jsonl", "b.jsonl.idx")
    commit(store, Source("/in/a", 1, "1"), "a.jsonl", "a.jsonl.idx")
    version = content_version(SUM)
    out = tmp_path / "out"
    assert listed(tmp_path, store) == [(f"{out}/a.jsonl", len(LINES), version), (f"{out}/b.jsonl", len(LINES), version)]


def test_only_the_route_that_is_asked_for(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "de/a.jsonl", route="de")
    assert [url for url, _, _ in listed(tmp_path, store, "de")] == [f"{tmp_path}/out/de/a.jsonl"]
    assert listed(tmp_path, store) == []
    of = of_job(store, tmp_path)
    assert missing_outputs_warning(of, {}) == "step one has no outputs without a route to read; it has route de"
    assert missing_outputs_warning(replace(of, route="de"), {}) is None
    assert (
        missing_outputs_warning(replace(of, route="fr"), {})
        == "step one has no outputs in route fr to read; it has route de"
    )


def test_a_job_that_keeps_nothing_has_nothing_to_list(tmp_path: Path, store: LedgerStore) -> None:
    """It is complete all the same: what reads it is then complete with nothing, too."""
    commit(store, Source("/in/a", 1, "1"))
    assert listed(tmp_path, store) == []
    told = missing_outputs_warning(of_job(store, tmp_path), {})
    assert told == "step one has no outputs without a route to read; it has nothing at all"


def test_what_came_of_a_source_that_is_gone_is_not_listed(tmp_path: Path, store: LedgerStore) -> None:
    gone = Source("/in/a", 1, "1")
    commit(store, gone, "a.jsonl")
    commit(store, Source("/in/b", 1, "1"), "b.jsonl")
    store.set_gone([gone.id])
    assert [url for url, _, _ in listed(tmp_path, store)] == [f"{tmp_path}/out/b.jsonl"]


def test_a_job_that_is_not_complete_is_not_read(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "a.jsonl")
    store.register([Source("/in/b", 1, "1")])
    with pytest.raises(
        LedgerError, match="step one: it is not complete: 1 of its sources are complete, 1 open, 0 failed"
    ):
        listed(tmp_path, store)
    with pytest.raises(LedgerError, match="step one: it is not complete"):  # before anything is listed
        next(RecordedListing((of_job(store, tmp_path),)).pages())


def test_a_job_that_has_not_run_is_not_read(tmp_path: Path) -> None:
    listing = RecordedListing((RecordedOutputs(str(tmp_path / "no"), str(tmp_path / "out"), title="step one"),))
    with pytest.raises(LedgerError, match="step one: it has not run yet"):
        list(listing.pages())


def put(path: Path, data: bytes = LINES) -> Source:
    path.write_bytes(data)
    return Source(str(path), len(LINES), content_version(SUM))


def test_a_content_is_the_same_source_whenever_it_was_written(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl")
    first = with_file_marks(source, {})
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    second = with_file_marks(source, {})
    assert first.id == second.id == source.id
    assert (first.stored, second.stored) != (first.stored, first.stored)
    assert [file.version for file in listed_files(second)] == [second.stored] == ["1"]
    assert listed_files(source) == []
    assert is_content(source)
    assert not is_content(replace(source, version=SUM))
    assert checksum_of(source.version) == SUM


def test_a_file_that_is_replaced_while_its_content_is_compared_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike an edited file, it need not be deleted: the next run reads the new content."""
    source, path, other = put(tmp_path / "a.jsonl"), tmp_path / "a.jsonl", tmp_path / "other"

    def compared(blocks: Iterable[bytes], **like: Any) -> str:
        other.write_bytes(LINES[::-1])
        os.utime(other, ns=(1, path.stat().st_mtime_ns))
        other.replace(path)
        return content_checksum(blocks, **like)

    monkeypatch.setattr(kind, "content_checksum", compared)
    with pytest.raises(ChangedSourceError, match="written, replaced or renamed while it was read"):
        with_file_marks(source, {})


@pytest.mark.parametrize("data", [LINES.replace(b"2", b"3"), LINES[:-1]])
def test_another_content_is_refused(tmp_path: Path, data: bytes) -> None:
    source = put(tmp_path / "a.jsonl", data)
    with pytest.raises(ChangedSourceError):
        FileSources().kind_of(source).cut(source, TaskLimits())


def test_a_file_that_is_edited_after_it_was_compared_is_refused(tmp_path: Path) -> None:
    sources = FileSources()
    source = put(tmp_path / "a.jsonl")
    cut = sources.kind_of(source).cut(source, TaskLimits())
    put(tmp_path / "a.jsonl", LINES.replace(b"2", b"3"))
    with pytest.raises(ChangedSourceError):
        sources.kind_of(cut.source).open(cut.source).read_span(0, 2)


def test_the_files_of_a_pack_are_compared_as_they_are_read(tmp_path: Path) -> None:
    sources = FileSources()
    pack = Source.pack([put(tmp_path / "a.jsonl"), put(tmp_path / "b.jsonl")])
    blocks = sources.kind_of(pack).open(pack).read_span(0, 2)
    assert list(chain.from_iterable(blocks)) == [{"id": 1}, {"id": 2}] * 2
    put(tmp_path / "b.jsonl", LINES.replace(b"2", b"3"))
    with pytest.raises(ChangedSourceError, match=r"b.jsonl: expected the content recorded"):
        list(sources.kind_of(pack).open(pack).read_span(0, 2))


def test_an_index_that_is_older_than_a_compared_output_is_made_again(tmp_path: Path) -> None:
    sources = FileSources()
    source = put(tmp_path / "a.jsonl")
    sources.load_index(source)
    index = (tmp_path / "a.jsonl.idx").read_bytes()
    os.utime(tmp_path / "a.jsonl.idx", ns=(1, 1))
    assert sources.kind_of(source).cut(source, TaskLimits(), changed=True).spans == [(0, 2)]
    assert (tmp_path / "a.jsonl.idx").read_bytes() == index
    assert (tmp_path / "a.jsonl.idx").stat().st_mtime_ns > 1


def test_what_is_only_looked_at_needs_its_size(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl")
    assert current_file(source, {}).size == len(LINES)
    with pytest.raises(ChangedSourceError, match="19 bytes"):
        current_file(put(tmp_path / "a.jsonl", LINES[:-1]), {})
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(ChangedSourceError, match="none"):
        current_file(source, {})


def of_job(store: LedgerStore, tmp_path: Path, route: str = "", title: str = "step one") -> RecordedOutputs:
    return RecordedOutputs(store.url, str(tmp_path / "out"), route, title)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2]), (5, [2, 2, 1])])
def test_pages_are_full_but_for_the_last(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch, count: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(source_listing, "PAGE", 2)
    rows = [(f"{number}.jsonl", number, f"v{number}") for number in range(count)]
    pages = list(outputs_pages(of_job(store, tmp_path), rows[::-1]))
    assert [len(page.urls) for page in pages] == sizes
    found = [row for page in pages for row in zip(page.urls, page.sizes, page.versions, strict=True)]
    assert found == [(f"{tmp_path}/out/{name}", size, version) for name, size, version in rows]
    assert list(outputs_pages(of_job(store, tmp_path), [])) == []


def test_indexes_and_other_routes_are_no_sources(tmp_path: Path, store: LedgerStore) -> None:
    main, german = of_job(store, tmp_path), of_job(store, tmp_path, "de")
    assert is_output(main, "a.jsonl", "")
    assert is_output(german, "de/a.jsonl", "de")
    assert not is_output(main, "de/a.jsonl", "de")
    assert not is_output(german, "a.jsonl", "")
    for name in ("a.jsonl.idx", "a.jsonl.gz.gzidx"):
        assert not is_output(main, name, "")


def test_a_job_is_named_by_its_title_or_by_its_folder(tmp_path: Path, store: LedgerStore) -> None:
    several = RecordedListing(
        (of_job(store, tmp_path), of_job(store, tmp_path, "de", ""), of_job(store, tmp_path, "", ""))
    )
    assert several.title == f"step one {tmp_path}/out/de {tmp_path}/out"


def test_outputs_of_several_jobs_follow_each_other(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "b.jsonl")
    commit(store, Source("/in/b", 1, "1"), "de/a.jsonl", route="de")
    store.note_listing(store.begin_run({}), listed=2, finished=True, gone=[])
    listing = RecordedListing((of_job(store, tmp_path), of_job(store, tmp_path, "de")))
    assert [url for page in listing.pages() for url in page.urls] == [
        f"{tmp_path}/out/{n}" for n in ("b.jsonl", "de/a.jsonl")
    ]


def test_a_route_that_has_nothing_is_told_with_those_that_have_some(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/b", 1, "1"), "b.jsonl")
    for route in ("en", "it"):
        commit(store, Source(f"/in/{route}", 1, "1"), f"{route}/b.jsonl", route=route)
    assert listed(tmp_path, store, "de") == []
    told = missing_outputs_warning(of_job(store, tmp_path, "de"), {})
    assert told == "step one has no outputs in route de to read; it has without a route, route en, route it"


def test_a_job_that_is_begun_again_while_it_is_listed_is_not_read(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "a.jsonl")
    store.note_listing(store.begin_run({}), listed=1, finished=True, gone=[])
    pages = RecordedListing((of_job(store, tmp_path),)).pages()
    assert next(pages).urls == [f"{tmp_path}/out/a.jsonl"]
    store.register([Source("/in/b", 1, "1")])
    with pytest.raises(LedgerError, match="step one: it is not complete"):
        next(pages)


def test_what_is_read_of_a_ledger_is_what_it_holds_now(tmp_path: Path, store: LedgerStore) -> None:
    before = opened(of_job(store, tmp_path), {})
    commit(store, Source("/in/a", 1, "1"), "a.jsonl")
    assert [row.output.name for row in opened(of_job(store, tmp_path), {}).outputs()] == ["a.jsonl"]
    with pytest.raises(UsageError, match="read only"):
        before.register([Source("/in/b", 1, "1")])
    before.close()


def test_what_another_host_records_in_a_remote_ledger_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = RecordedOutputs(f"memory://{tmp_path.name}/L", str(tmp_path / "out"))
    monkeypatch.setenv("LEDGERBEAM_CACHE", str(tmp_path / "other"))
    other = open_store(outputs.ledger, {}, create=True)
    other.open_job(Job("convert", {"output": outputs.output}))
    monkeypatch.setenv("LEDGERBEAM_CACHE", str(tmp_path / "here"))
    assert list(opened(outputs, {}).outputs()) == []
    commit(other, Source("/in/a", 1, "1"), "a.jsonl")
    assert [row.output.name for row in opened(outputs, {}).outputs()] == ["a.jsonl"]
