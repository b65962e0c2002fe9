"""Listings of sources: folders, indexes beside sources, outputs of jobs; and the listed properties of files."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from examples.own_format import TextLines
from ledgerbeam._base.lazy import np
from ledgerbeam.errors import ChangedSourceError, LedgerError, UnsupportedShapeError, UsageError
from ledgerbeam.io import JsonlFormat, Options, register, write_index
from ledgerbeam.io.formats import registry
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.ledger import Job, LedgerStore, Output, Source
from ledgerbeam.ledger.model.identity import checksum_of, content_checksum, content_version
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.sources import FileSources, PackedFiles, kind
from ledgerbeam.sources import listing as source_listing
from ledgerbeam.sources.kind import (
    TaskLimits,
    current_file,
    is_content,
    lacks_store_version,
    listed_file,
    listed_files,
    require_content,
    with_file_marks,
)
from ledgerbeam.sources.listing import (
    RecordedListing,
    RecordedOutputs,
    SourceListing,
    index_of,
    missing_outputs_warning,
    opened,
    outputs_pages,
    own_version,
    stat_source,
    with_index_versions,
)
from tests.conftest import S3Server
from tests.sources.data import lines, listed, put, with_content


def message_for(folder: str) -> str:
    with pytest.raises(UsageError) as raised:
        list(SourceListing((folder,)).pages())
    return str(raised.value)


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def matches(pattern: str) -> list[str]:
    return [url for page in SourceListing((pattern,)).pages() for url in page.urls]


def test_each_suggested_pattern_matches_the_files_that_it_promises(tmp_path: Path) -> None:
    names = ("a.jsonl", "b.jsonl", "a.jsonl.idx", "README.md", ".hidden.jsonl", "a/1.jsonl.gz", "a/b/2.v1.jsonl.gz")
    raw = fill(tmp_path / "raw", *names, "t.tar")
    message = message_for(str(raw))
    suggested = re.findall(r"'([^']+)' \(([\d,]+) files?\)", message)
    found = [(pattern.removeprefix(f"{raw}/"), int(count)) for pattern, count in suggested]
    assert found == [("*.jsonl", 2), ("**/*.jsonl.gz", 2), ("*.tar", 1)]
    assert [len(matches(pattern)) for pattern, _ in suggested] == [2, 2, 1]


@pytest.mark.parametrize("given", ["raw/", "./raw", "raw/../raw"])
def test_a_folder_is_a_folder_however_it_is_written(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "raw", "a.parquet")
    monkeypatch.chdir(tmp_path)
    assert f"such as '{tmp_path}/raw/*.parquet' (1 file)" in message_for(given)


def test_a_folder_without_sources_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "found a folder without files" in message_for(str(tmp_path / "empty"))
    assert "notes.md" in message_for(str(fill(tmp_path / "notes", "notes.md")))


def test_a_folder_with_wildcards_in_its_name_gets_no_pattern_that_means_others(tmp_path: Path) -> None:
    assert "*.jsonl" not in message_for(str(fill(tmp_path / "a[1]", "a.jsonl")))


def test_a_large_folder_is_not_listed_to_its_end(tmp_path: Path) -> None:
    assert "(1,000 files or more)" in message_for(str(fill(tmp_path / "raw", *(f"{n}.jsonl" for n in range(1001)))))


@pytest.mark.s3
def test_a_folder_of_a_bucket(s3: S3Server) -> None:
    fs = client.filesystem("s3://", s3.options)
    fs.mkdir("folder-given")
    for name in ("raw/a.jsonl", "raw/deep/b.jsonl", "raw/c.tar"):
        fs.pipe_file(f"folder-given/{name}", b"")
    with pytest.raises(UsageError, match=re.escape("'s3://folder-given/raw/**/*.jsonl' (2 files) or 's3://folder")):
        list(SourceListing(("s3://folder-given/raw",), storage_options=s3.options).pages())


class CutLines(TextLines):
    """Lines that only their index cuts into records."""

    name = "cut"
    suffixes = (".cut",)
    is_indexable = False


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectFolder:
    monkeypatch.setattr(registry, "_known", None)
    register(CutLines())
    found = ObjectFolder(f"memory://{tmp_path.name}")
    found.create("a.cut", b"to be\nor not\n")
    found.create("b.jsonl", b'{"id": 1}\n')
    return found


def cut_source(folder: ObjectFolder) -> Source:
    pages = SourceListing((f"{folder.url}/*.cut", f"{folder.url}/*.jsonl")).pages()
    rows = chain.from_iterable(zip(page.urls, page.sizes, page.versions, strict=True) for page in pages)
    found = {row[0]: Source(*row) for row in rows}
    plain = found[f"{folder.url}/b.jsonl"]
    assert own_version(plain.version) == plain.version
    assert index_of(plain.url, plain.version) is None
    return found[f"{folder.url}/a.cut"]


def test_another_index_is_another_version_of_its_source(folder: ObjectFolder) -> None:
    url = f"{folder.url}/a.cut"
    without = cut_source(folder)
    write_index(f"{url}.idx", np.array([0, 6, 13], np.uint64))
    before = cut_source(folder)
    write_index(f"{url}.idx", np.array([0, 13], np.uint64))
    now = cut_source(folder)
    assert len({without.id, before.id, now.id}) == 3
    assert own_version(now.version) == own_version(before.version) == without.version
    assert stat_source(url).version == now.version
    assert (index_of(url, before.version) or now) != index_of(url, now.version)
    assert FileSources().load_index(now).tolist() == [0, 13]
    kind = FileSources().kind_of(now)
    assert [info.url for info in kind.files(without)] == [url]
    assert kind.files(now) == [listed_file(now), index_of(url, now.version)]
    with pytest.raises(ChangedSourceError):
        FileSources().load_index(before)


def test_a_source_whose_index_can_be_built_has_a_version_alone(folder: ObjectFolder) -> None:
    """Also a name that no format reads: the reader of the file reports it."""
    urls = [f"{folder.url}/{name}" for name in ("b.jsonl", "c.bin.gz", "d.of-no-format")]
    for url in urls:
        ObjectFolder(folder.url).create(url.rpartition("/")[2], b'{"id": 1}\n')
        write_index(f"{url}.idx", np.array([0, 10], np.uint64))
        assert stat_source(url) == stat(url)
        assert index_of(url, "1 .idx 8 2") is None
    page = Page(urls, [10] * 3, [stat(url).version for url in urls])
    assert with_index_versions(page) is page
    both = Page([*urls, f"{folder.url}/a.cut"], [10] * 3 + [13], [*page.versions, "1"])
    assert with_index_versions(both).versions == [*page.versions, "1"]
    write_index(f"{folder.url}/a.cut.idx", np.array([0, 13], np.uint64))
    found = with_index_versions(both)
    assert (found.urls, found.sizes, found.versions[:3]) == (both.urls, both.sizes, page.versions)
    assert own_version(found.versions[3]) == "1" != found.versions[3]
    assert both.versions[3] == "1"


def test_an_index_that_is_written_over_while_it_is_read_is_told(
    folder: ObjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, index = f"{tmp_path}/a.cut", tmp_path / "a.cut.idx"
    (tmp_path / "a.cut").write_bytes(b"to be\nor not\n")
    write_index(str(index), np.array([0, 6, 13], np.uint64))
    found = stat_source(url)
    source = Source(url, found.size, found.version)

    def write_over(*_: Any) -> None:
        with index.open("r+b") as file:
            file.write(bytes(8))
        os.utime(index, ns=(1, 1))

    assert FileSources().load_index(source).tolist() == [0, 6, 13]
    monkeypatch.setattr(CutLines, "check_index", write_over)
    with pytest.raises(ChangedSourceError, match=str(index)):
        FileSources().load_index(source)


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


def pages_of(tmp_path: Path, store: LedgerStore, route: str = "") -> list[tuple[str, int, str]]:
    run = store.begin_run({})
    store.note_listing(run, listed=1, finished=True, gone=store.gone_ids())
    listing = RecordedListing((RecordedOutputs(store.url, str(tmp_path / "out"), route, "step one"),))
    return [row for page in listing.pages() for row in zip(page.urls, page.sizes, page.versions, strict=True)]


def test_outputs_are_listed_by_name_without_their_indexes(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/b", 1, "1"), "b.jsonl.gz", "b.jsonl.gz.idx", "b.jsonl.gz.gzidx")
    commit(store, Source("/in/a", 1, "1"), "a.jsonl", "a.jsonl.idx")
    expected = [(f"{tmp_path}/out/{name}", len(LINES), content_version(SUM)) for name in ("a.jsonl", "b.jsonl.gz")]
    assert pages_of(tmp_path, store) == expected


def test_only_the_route_that_is_asked_for(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "de/a.jsonl", route="de")
    assert [url for url, _, _ in pages_of(tmp_path, store, "de")] == [f"{tmp_path}/out/de/a.jsonl"]
    assert pages_of(tmp_path, store) == []
    of = of_job(store, tmp_path)
    told = str(missing_outputs_warning(of, {}))
    assert told.startswith("step one: expected outputs without a route, found outputs in route de; check")
    assert missing_outputs_warning(replace(of, route="de"), {}) is None
    assert "outputs in route fr, found outputs in route de" in str(missing_outputs_warning(replace(of, route="fr"), {}))


def test_a_job_that_keeps_nothing_has_nothing_to_list(tmp_path: Path, store: LedgerStore) -> None:
    """It is complete all the same: what reads it is then complete with nothing, too."""
    commit(store, Source("/in/a", 1, "1"))
    assert pages_of(tmp_path, store) == []
    told = missing_outputs_warning(of_job(store, tmp_path), {})
    assert told == "step one: expected outputs without a route, found none; check the name of the route"


def test_what_came_of_a_source_that_is_gone_is_not_listed(tmp_path: Path, store: LedgerStore) -> None:
    gone = Source("/in/a", 1, "1")
    commit(store, gone, "a.jsonl")
    commit(store, Source("/in/b", 1, "1"), "b.jsonl")
    store.set_gone([gone.id])
    assert [url for url, _, _ in pages_of(tmp_path, store)] == [f"{tmp_path}/out/b.jsonl"]


def test_a_job_that_is_not_complete_is_not_read(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "a.jsonl")
    store.register([Source("/in/b", 1, "1")])
    with pytest.raises(LedgerError, match=r"step one: the job is not complete\. Its sources: 1 complete, 1 open, 0 "):
        pages_of(tmp_path, store)
    with pytest.raises(LedgerError, match="step one: the job is not complete"):  # before anything is listed
        next(RecordedListing((of_job(store, tmp_path),)).pages())


def test_a_job_that_has_not_run_is_not_read(tmp_path: Path) -> None:
    listing = RecordedListing((RecordedOutputs(str(tmp_path / "no"), str(tmp_path / "out"), title="step one"),))
    with pytest.raises(LedgerError, match="step one: the job has not run yet"):
        list(listing.pages())


def put_output(path: Path, data: bytes = LINES) -> Source:
    path.write_bytes(data)
    return Source(str(path), len(LINES), content_version(SUM))


def test_a_content_is_the_same_source_whenever_it_was_written(tmp_path: Path) -> None:
    source = put_output(tmp_path / "a.jsonl")
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
    source, path, other = put_output(tmp_path / "a.jsonl"), tmp_path / "a.jsonl", tmp_path / "other"

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
    source = put_output(tmp_path / "a.jsonl", data)
    with pytest.raises(ChangedSourceError):
        FileSources().kind_of(source).cut(source, TaskLimits())


def test_a_file_that_is_edited_after_it_was_compared_is_refused(tmp_path: Path) -> None:
    sources = FileSources()
    source = put_output(tmp_path / "a.jsonl")
    cut = sources.kind_of(source).cut(source, TaskLimits())
    put_output(tmp_path / "a.jsonl", LINES.replace(b"2", b"3"))
    with pytest.raises(ChangedSourceError):
        sources.kind_of(cut.source).open(cut.source).read_span(0, 2)


def test_the_files_of_a_pack_are_compared_as_they_are_read(tmp_path: Path) -> None:
    sources = FileSources()
    pack = Source.pack([put_output(tmp_path / "a.jsonl"), put_output(tmp_path / "b.jsonl")])
    blocks = sources.kind_of(pack).open(pack).read_span(0, 2)
    assert list(chain.from_iterable(blocks)) == [{"id": 1}, {"id": 2}] * 2
    put_output(tmp_path / "b.jsonl", LINES.replace(b"2", b"3"))
    with pytest.raises(ChangedSourceError, match=r"b.jsonl: expected the content recorded"):
        list(sources.kind_of(pack).open(pack).read_span(0, 2))


def test_an_index_that_is_older_than_a_compared_output_is_made_again(tmp_path: Path) -> None:
    sources = FileSources()
    source = put_output(tmp_path / "a.jsonl")
    sources.load_index(source)
    index = (tmp_path / "a.jsonl.idx").read_bytes()
    os.utime(tmp_path / "a.jsonl.idx", ns=(1, 1))
    assert sources.kind_of(source).cut(source, TaskLimits(), changed=True).spans == [(0, 2)]
    assert (tmp_path / "a.jsonl.idx").read_bytes() == index
    assert (tmp_path / "a.jsonl.idx").stat().st_mtime_ns > 1


def test_what_is_only_looked_at_needs_its_size(tmp_path: Path) -> None:
    source = put_output(tmp_path / "a.jsonl")
    assert current_file(source, {}).size == len(LINES)
    with pytest.raises(ChangedSourceError, match="19 bytes"):
        current_file(put_output(tmp_path / "a.jsonl", LINES[:-1]), {})
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


def test_outputs_of_several_jobs_follow_each_other(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "b.jsonl")
    commit(store, Source("/in/b", 1, "1"), "de/a.jsonl", route="de")
    store.note_listing(store.begin_run({}), listed=2, finished=True, gone=[])
    listing = RecordedListing((of_job(store, tmp_path), of_job(store, tmp_path, "de", "")))
    out = f"{tmp_path}/out"
    assert [url for page in listing.pages() for url in page.urls] == [f"{out}/b.jsonl", f"{out}/de/a.jsonl"]
    assert listing.title == f"step one {out}/de"


def test_a_route_that_has_nothing_is_told_with_those_that_have_some(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/b", 1, "1"), "b.jsonl")
    for route in ("en", "it"):
        commit(store, Source(f"/in/{route}", 1, "1"), f"{route}/b.jsonl", route=route)
    assert pages_of(tmp_path, store, "de") == []
    told = missing_outputs_warning(of_job(store, tmp_path, "de"), {})
    assert told is not None
    assert "in route de, found outputs without a route, outputs in route en, outputs in route it; check" in told


def test_a_job_that_is_begun_again_while_it_is_listed_is_not_read(tmp_path: Path, store: LedgerStore) -> None:
    commit(store, Source("/in/a", 1, "1"), "a.jsonl")
    store.note_listing(store.begin_run({}), listed=1, finished=True, gone=[])
    pages = RecordedListing((of_job(store, tmp_path),)).pages()
    assert next(pages).urls == [f"{tmp_path}/out/a.jsonl"]
    store.register([Source("/in/b", 1, "1")])
    with pytest.raises(LedgerError, match="step one: the job is not complete"):
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


def test_all_that_was_listed_of_a_file_goes_to_who_reads_it() -> None:
    one, other = (Source(f"/data/{name}", 3, "7", changed_ns=9) for name in "ab")
    (found,) = listed_files(one)
    assert (found.url, found.size, found.version, found.changed_ns) == ("/data/a", 3, "7", 9)
    assert [file.url for file in listed_files(Source.pack([one, other]))] == ["/data/a", "/data/b"]


def test_a_source_on_a_store_has_no_time_of_the_last_change() -> None:
    remote = Source("s3://bucket/a", 3, "7")
    assert with_file_marks(remote, {}) == remote


def test_a_look_adds_the_times_of_the_files_and_keeps_the_source(tmp_path: Path) -> None:
    one, other = (put(tmp_path / name, lines(1)) for name in ("a.jsonl", "b.jsonl"))
    times = [os.stat(file.url).st_ctime_ns for file in (one, other)]
    found = with_file_marks(one, {})
    assert (found.changed_ns, found.id) == (times[0], one.id)
    pack = Source.pack([one, other])
    found = with_file_marks(pack, {})
    assert ([member.changed_ns for member in found.members], found.id) == (times, pack.id)


def test_what_is_read_by_position_has_no_stream() -> None:
    source = Source("/data/a.jsonl", 3, "7")
    with pytest.raises(UnsupportedShapeError, match=r"/data/a\.jsonl: PackedFiles .* a stream of jsonl"):
        PackedFiles(FileSources()).open_stream(source, JsonlFormat())


def test_what_is_known_by_its_content_is_read_to_learn_what_its_store_calls_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "_BLOCK", 5)
    data = lines(3)
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", data)
    local, remote = put(tmp_path / "a.jsonl", data), listed(f"{folder.url}/a.jsonl")
    for source, changed_ns in ((local, os.stat(local.url).st_ctime_ns), (remote, 0)):
        known = with_content(source, data)
        assert lacks_store_version(known)
        found = with_file_marks(known, {})
        assert (found.stored, found.changed_ns, found.id) == (source.version, changed_ns, known.id)
        assert not lacks_store_version(found)
        assert [file.version for file in listed_files(found)] == [source.version]
        with pytest.raises(ChangedSourceError, match="it was edited or damaged"):
            with_file_marks(with_content(source, lines(3, "b")), {})


def test_content_is_compared_in_the_version_that_its_store_has_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", lines(3))
    known = with_content(listed(f"{folder.url}/a.jsonl"), lines(3))

    def replacing(file: Source, options: Options) -> FileInfo:
        found = current_file(file, options)
        folder.delete(["a.jsonl"])
        folder.create("a.jsonl", lines(3))
        return found

    monkeypatch.setattr(kind, "current_file", replacing)
    with pytest.raises(ChangedSourceError):
        with_file_marks(known, {})


def test_of_a_pack_those_files_may_not_change_that_are_known_by_their_store(tmp_path: Path) -> None:
    plain, known = put(tmp_path / "a.jsonl", lines(1)), put(tmp_path / "b.jsonl", lines(1))
    pack = Source.pack([plain, with_content(known, lines(1))])
    assert [file.url for file in listed_files(pack)] == [plain.url]
    found = with_file_marks(pack, {})
    assert [file.url for file in listed_files(found)] == [plain.url, known.url]
    assert [member.stored for member in found.members] == ["", known.version]


def test_what_was_looked_at_once_is_not_looked_at_again() -> None:
    known = dataclasses.replace(with_content(Source("/none/a.jsonl", 3, "1"), b"abc"), stored="5")
    assert current_file(known, {}).version == "5"
    assert current_file(Source("/none/a.jsonl", 3, "1"), {}).version == "1"


def test_content_is_compared_where_that_is_what_a_file_is_known_by() -> None:
    file = Source("/data/a", 3, "1")
    require_content(file, [b"anything"])
    require_content(with_content(file, b"abc"), [b"a", b"", b"bc"])
    former = content_version(blake2b(b"abc", digest_size=16).hexdigest())  # as earlier versions have recorded it
    require_content(dataclasses.replace(file, version=former), [b"abc"])
    for blocks in ([], [b"abd"], [b"abc", b"d"]):
        with pytest.raises(ChangedSourceError, match=r"^/data/a: expected the content recorded"):
            require_content(with_content(file, b"abc"), blocks)
