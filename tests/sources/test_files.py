"""Files and shards of Shar datasets as sources: indexes that are used, built or ignored, spans, streams and packs."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    NotIndexableError,
    RecordError,
    SourceError,
    UsageError,
)
from ledgerbeam.io import ParquetFormat, TarFormat, write_index
from ledgerbeam.io.datasets.megatron import Document
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.index.file import IndexFile, IndexLocation, Offsets
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, require_listed
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.ledger import Source
from ledgerbeam.sources import (
    CompressedFile,
    Cut,
    FileSources,
    IndexedFile,
    PackedFiles,
    SharSources,
    TaskLimits,
    Unreadable,
)
from ledgerbeam.sources import files as source_files
from ledgerbeam.sources.files import _READ_BESIDE, _one_large, _reading_whole
from ledgerbeam.sources.listing import SourceListing, own_version
from tests.io.columns.tables import parquet_bytes
from tests.sources.data import lines, listed, put, put_index, put_known, tar, with_content


def make_older(path: Path, *, than: Path) -> None:
    before = than.stat().st_mtime_ns - 1
    os.utime(path, ns=(before, before))


def test_an_index_that_is_missing_is_built_where_it_belongs_unless_that_is_off(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    with pytest.raises(IndexNotFoundError):
        FileSources(build_index=False).load_index(source)
    assert not (tmp_path / "a.jsonl.idx").exists()
    assert len(FileSources(index=IndexLocation(str(tmp_path / "roots"))).load_index(source)) == 4
    assert not (tmp_path / "a.jsonl.idx").exists()
    (built,) = (tmp_path / "roots").rglob("*.idx")
    assert FileSources().load_index(source).tolist() == [0, 13, 26, 39]
    assert (tmp_path / "a.jsonl.idx").read_bytes() == built.read_bytes()


def test_an_index_is_never_older_than_its_source(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", lines(3))
    late = os.stat(tmp_path / "a.jsonl").st_mtime_ns + 10**12
    os.utime(tmp_path / "a.jsonl", ns=(late, late))
    source = listed(tmp_path / "a.jsonl")
    for _ in range(2):
        assert len(FileSources().load_index(source)) == 4
        assert os.stat(tmp_path / "a.jsonl.idx").st_mtime_ns >= late


def test_an_index_that_cannot_be_built_is_missed(tmp_path: Path) -> None:
    """Only the index of a Megatron dataset has the ends of its documents."""
    with pytest.raises(IndexNotFoundError):
        FileSources().load_index(put(tmp_path / "a.bin", b"12345678"))


def test_an_index_of_former_content_is_refused_where_none_is_built(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    FileSources().load_index(source)
    with pytest.raises(IndexMismatchError, match="may belong to the old content"):
        FileSources(build_index=False).load_index(source, changed=True)


def test_an_index_is_built_of_the_version_that_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", lines(3))
    source = listed(f"{folder.url}/a.jsonl")

    def replacing(*args: Any) -> Any:
        found = require_listed(*args)
        folder.delete(["a.jsonl"])
        folder.create("a.jsonl", lines(3, "b"))
        return found

    monkeypatch.setattr("ledgerbeam.sources.files.require_listed", replacing)
    with pytest.raises(ChangedSourceError):
        FileSources().load_index(source)
    assert folder.names("") == ["a.jsonl"]


def put_in_its_place(path: Path) -> None:
    """Replace a file by another one of the same size and time."""
    was = path.stat()
    aside = path.with_name("aside")
    aside.write_bytes(path.read_bytes())
    os.utime(aside, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.replace(aside, path)


@pytest.mark.parametrize(
    ("name", "has_index", "step"),
    [
        ("a.jsonl", False, "index_file"),
        ("a.jsonl", False, "build_index"),
        ("a.jsonl", True, "check_index"),
        ("a.jsonl.gz", True, "check_index"),
        ("a.jsonl.gz", False, "scan_stream"),
        ("a.parquet", False, "open_columns"),
    ],
)
def test_a_file_that_changes_at_any_step_of_its_planning_has_changed_and_gets_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_index: bool, step: str
) -> None:
    (table,) = format_named("parquet").encode([{"id": 0}])
    data = {"a.jsonl": lines(3), "a.jsonl.gz": gzip.compress(lines(3)), "a.parquet": table.data}[name]
    source = put(tmp_path / name, data)
    if has_index:
        put_index(source)
    before = sorted(os.listdir(tmp_path))
    kind = {"scan_stream": (source_files, step), "open_columns": (ParquetFormat, step)}.get(step, (JsonlFormat, step))
    real = getattr(*kind)

    def replacing(*asked: Any, **named: Any) -> Any:
        found = real(*asked, **named)
        if step != "index_file" or not replaced:
            replaced.append(step)
            put_in_its_place(tmp_path / name)
        return found

    replaced: list[str] = []
    monkeypatch.setattr(*kind, replacing)
    sources = FileSources()
    planned = dataclasses.replace(source, changed_ns=(tmp_path / name).stat().st_ctime_ns)
    with pytest.raises(ChangedSourceError, match=f"{name}: changed since it was listed"):
        sources.kind_of(planned).cut(planned, TaskLimits())
    assert replaced
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_what_is_cut_is_looked_at_before(tmp_path: Path, name: str) -> None:
    (table,) = format_named("parquet").encode([{"id": 0}])
    data = {"a.jsonl": lines(3), "a.jsonl.gz": gzip.compress(lines(3)), "a.parquet": table.data}[name]
    source, sources = put(tmp_path / name, data), FileSources()
    cut = sources.kind_of(source).cut(source, TaskLimits())
    assert cut.source.changed_ns == (tmp_path / name).stat().st_ctime_ns
    edited = with_content(source, data[::-1])
    with pytest.raises(ChangedSourceError, match="it was edited or damaged"):
        sources.kind_of(edited).cut(edited, TaskLimits())


def test_an_object_is_read_in_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", lines(3))
    source = listed(f"{folder.url}/a.jsonl")
    sources = FileSources()
    sources.load_index(source)
    assert sources.open_file(source).read_span(1, 2) == [{"id": "a1"}]
    with pytest.raises(ChangedSourceError):
        sources.open_file(dataclasses.replace(source, version="1")).read_span(1, 2)


def test_an_index_that_came_with_its_source_is_believed_though_the_source_has_changed(tmp_path: Path) -> None:
    """No other program can build it."""
    data, index = format_named("megatron").encode([Document([1, 2, 3], [3])])
    (tmp_path / "a.idx").write_bytes(index.data)
    source = put(tmp_path / "a.bin", data.data)
    os.utime(tmp_path / "a.idx")
    for changed in (False, True):
        assert FileSources().load_index(source, changed=changed).tolist() == [0, len(data.data)]


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_an_index_that_came_with_its_source_is_read_as_it_was_listed(tmp_path: Path, scheme: str) -> None:
    folder, sources = ObjectFolder(f"{scheme}{tmp_path}/data"), FileSources()

    def put_dataset(*lengths: int) -> Source:
        folder.delete(["a.idx"])
        data, index = format_named("megatron").encode([Document([7] * length, [length]) for length in lengths])
        folder.create("a.bin", data.data)
        folder.create("a.idx", index.data)
        (page,) = SourceListing((f"{folder.url}/*.bin",)).pages()
        return Source(page.urls[0], page.sizes[0], page.versions[0])

    def read(source: Source) -> list[int]:
        with SourceWatch(sources.kind_of(source).files(source)):
            return [document.lengths[0] for document in sources.open_file(source).read_span(0, 2)]

    before = put_dataset(1, 2)
    assert read(before) == [1, 2]
    now = put_dataset(2, 1)
    assert own_version(now.version) == own_version(before.version)
    assert now.id != before.id
    assert sources.load_index(now).tolist() == [0, 8, 12]
    assert read(now) == [2, 1]
    with pytest.raises(ChangedSourceError):
        sources.load_index(before)
    with pytest.raises(ChangedSourceError):
        read(before)


def test_a_source_is_read_by_the_index_that_was_planned_by(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    sources = FileSources(index=IndexLocation(str(tmp_path / "roots")))
    sources.load_index(source)
    reader: Any = sources.open_file(source)
    assert reader.read_span(1, 3) == [{"id": "a1"}, {"id": "a2"}]
    reader.close()


def test_an_index_that_does_not_fit_is_an_error_and_stays(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    before = FileSources().load_index(source)
    write_index(f"{source.url}.idx", before[:2], not_before_ns=os.stat(source.url).st_mtime_ns)
    with pytest.raises(IndexMismatchError):
        FileSources().load_index(source)
    assert (tmp_path / "a.jsonl.idx").stat().st_size == 16


def test_an_index_of_former_content_is_built_anew_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    FileSources().load_index(source)
    with caplog.at_level(logging.WARNING):
        FileSources().load_index(source)
        assert not caplog.records
        FileSources().load_index(source, changed=True)
    assert "indexing it again" in caplog.text


@pytest.mark.parametrize("count", [5, 2, 0])
def test_an_index_that_is_older_than_its_source_is_built_anew_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(3))
    FileSources().load_index(listed(path))
    path.write_bytes(lines(count))
    make_older(Path(f"{path}.idx"), than=path)
    with pytest.raises(IndexMismatchError, match="s older"):
        FileSources(build_index=False).load_index(listed(path))
    assert len(FileSources().load_index(listed(path))) == count + 1
    assert f"{path}: its index is older than the file; indexing it again" in caplog.text
    assert len(IndexFile(f"{path}.idx").load()) == count + 1
    caplog.clear()
    FileSources().load_index(listed(path))
    assert caplog.text == ""


@pytest.mark.parametrize(
    "content", [b"v1.2 99\n0 5 20 2", b"0\n8\n16\n24\n32\n40\n48\n56\n"[:16], bytes(16), b"\1" + bytes(15), b"", b"odd"]
)
def test_a_file_that_is_no_index_stays_however_old_it_is(tmp_path: Path, content: bytes) -> None:
    """Other tools keep text under such a name."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(3))
    index = Path(f"{path}.idx")
    index.write_bytes(content)
    make_older(index, than=path)
    with pytest.raises(IndexMismatchError):
        FileSources().load_index(listed(path))
    assert index.read_bytes() == content


def test_a_file_is_cut_by_the_index_that_it_has_unless_that_is_of_former_content(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    put_index(source, np.array([0, 14, 26, 39], np.uint64))
    kind = FileSources().kind_of(source)
    assert kind.cut(source, TaskLimits(14)).spans == [(0, 1), (1, 3)]
    assert kind.cut(source, TaskLimits(14), changed=True).spans == [(0, 2), (2, 3)]


def test_samples_are_grouped_as_asked(tmp_path: Path) -> None:
    data = tar("a.wav", "a.txt", "a.json", "b.wav", "b.txt", "b.json")
    expected: dict[Grouping, int] = {"key": 2, "pairs": 3}
    for group, records in expected.items():
        source = put(tmp_path / group / "a.tar", data)
        sources = FileSources((TarFormat(group),))
        assert len(sources.load_index(source)) == records + 1
        reader: Any = sources.open_file(source)
        assert len(reader) == records
        reader.close()


class TestStreams:
    """For compressed sources."""

    def cut(self, source: Source, *, changed: bool = False) -> Cut:
        kind = FileSources().kind_of(source)
        assert isinstance(kind, CompressedFile)
        return kind.cut(source, TaskLimits(task_records=2), changed=changed)

    def test_without_an_index_they_are_read_from_their_beginning(self, tmp_path: Path) -> None:
        assert self.cut(put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))).stream is not None
        assert self.cut(put(tmp_path / "a.tar.gz", gzip.compress(tar("a.x", "b.x")))).stream is not None

    def test_without_positions_they_are_read_from_their_beginning_whatever_lies_beside(self, tmp_path: Path) -> None:
        source = put(tmp_path / "a.jsonl.bz2", bz2.compress(lines(3)))
        write_index(f"{source.url}.idx", FileSources().scan(source).offsets)
        assert self.cut(source).stream is not None

    def test_with_one_they_are_read_by_position(self, tmp_path: Path) -> None:
        source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
        put_index(source)
        cut = self.cut(source)
        assert (cut.spans, cut.stream) == ([(0, 2), (2, 3)], None)
        assert FileSources().kind_of(source).cut(source, TaskLimits()).stream is None
        opened = FileSources().kind_of(source).open(cut.source)
        assert opened.read_span(2, 3).listed() == [{"id": "a2"}]
        opened.close()

    def test_one_that_does_not_fit_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
        write_index(f"{source.url}.idx", FileSources().scan(source).offsets, not_before_ns=1)
        os.utime(f"{source.url}.idx", ns=(1, 1))
        with caplog.at_level(logging.WARNING):
            assert self.cut(source).stream is not None
        assert "reads this file in one pass, since its index does not fit" in caplog.text

    def test_one_of_former_content_is_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
        put_index(source, np.array([0, 26, 39], np.uint64))
        assert self.cut(source).spans == [(0, 2)]
        monkeypatch.setattr(CompressedFile, "_load_index", lambda *_: pytest.fail("it was looked at"))
        cut = self.cut(source, changed=True)
        assert cut.spans == [(0, 2), (2, 3)]
        assert cut.stream is not None

    def test_what_changed_since_it_was_listed_is_an_error(self, tmp_path: Path) -> None:
        """For an object, which is not checked before."""
        folder = ObjectFolder(f"memory://{tmp_path.name}")
        folder.create("a.jsonl.gz", gzip.compress(lines(3)))
        source = listed(f"{folder.url}/a.jsonl.gz")
        changed = dataclasses.replace(source, version="1")
        with pytest.raises(ChangedSourceError):
            FileSources().scan(changed)
        write_index(f"{source.url}.idx", FileSources().scan(source).offsets)
        for changed_since in (False, True):
            with pytest.raises(ChangedSourceError):
                self.cut(changed, changed=changed_since)

    def test_a_tar_is_grouped_as_asked(self, tmp_path: Path) -> None:
        source = put(tmp_path / "a.tar.gz", gzip.compress(tar("a.wav", "a.txt", "b.wav", "b.txt")))
        found = FileSources((TarFormat("key"),)).scan(source)
        assert (len(found.offsets) - 1, found.format) == (2, TarFormat("key", paired=False))
        assert FileSources((TarFormat("pairs"),)).scan(source).format == TarFormat("pairs", paired=True)


def test_a_source_has_the_kind_that_its_name_says() -> None:
    sources = FileSources((TarFormat("key"),))
    plain, packed = (Source(f"/data/{name}", 3, "7") for name in ("a.tar", "a.tar.gz"))
    assert sources.kind_of(plain) == IndexedFile(sources, sources.type_of("/data/a.tar"))
    assert sources.kind_of(packed) == CompressedFile(sources, sources.type_of("/data/a.tar.gz"))
    assert sources.kind_of(Source.pack([plain, packed])) == PackedFiles(sources)
    with pytest.raises(UsageError):
        sources.kind_of(Source("/data/a.xyz", 3, "7"))
    with pytest.raises(NotIndexableError, match="megatron is not read compressed"):
        sources.kind_of(Source("/data/a.bin.gz", 3, "7"))


@pytest.mark.parametrize(
    ("name", "counts_blanks", "cut_waits"),
    [("a.jsonl", True, True), ("a.jsonl.gz", True, True), ("a.parquet", False, True), ("a pack", False, False)],
)
def test_blank_lines_are_counted_of_files_of_lines_and_what_waits_for_a_store_is_planned_beside_others(
    name: str, counts_blanks: bool, cut_waits: bool
) -> None:
    source = Source(f"/data/{name}", 3, "7")
    kind = FileSources().kind_of(Source.pack([Source("/data/a.jsonl", 3, "7")]) if name == "a pack" else source)
    assert (kind.counts_blanks, kind.cut_waits) == (counts_blanks, cut_waits)


def test_rows_and_packs_are_decoded_in_their_turn(tmp_path: Path) -> None:
    """Another thread only fetches bytes: if it decoded them, the decoded records of two tasks would be in memory."""
    (data,) = format_named("parquet").encode([{"id": 0}])
    table = put(tmp_path / "a.parquet", data.data)
    for source in (table, Source.pack([table])):
        opened = FileSources().kind_of(source).open(source)
        assert not opened.fetches
        opened.close()


def test_names_are_checked_for_what_is_done_with_them() -> None:
    sources = FileSources()
    sources.check_names(["/data/a.jsonl", "/data/a.jsonl.bz2", "/data/a.tar.gz"])
    with pytest.raises(NotIndexableError, match="decompress it"):
        sources.check_names(["/data/a.jsonl", "/data/a.jsonl.bz2"], by_position=True)
    for by_position in (False, True):
        with pytest.raises(UsageError):
            sources.check_names(["/data/a.xyz"], by_position=by_position)


def test_names_are_checked_for_all_that_their_endings_say() -> None:
    """Two formats that are compressed alike are two, whichever comes first."""
    tables = FileSources(form="arrow")
    for names in (["/data/a.tar.gz", "/data/b.jsonl.gz"], ["/data/b.jsonl.gz", "/data/a.tar.gz"]):
        with pytest.raises(UsageError, match=r"a\.tar\.gz: tar cannot be read as Arrow batches"):
            tables.check_names(names)


def test_a_source_is_opened_without_a_look_at_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning has looked: of an object it would cost every task two requests."""
    source = put(tmp_path / "a.jsonl", lines(3))
    sources = FileSources()
    sources.load_index(source)
    os.utime(f"{source.url}.idx", ns=(1, 1))
    with pytest.raises(IndexMismatchError):
        FileSources(build_index=False).load_index(source)
    reader: Any = sources.open_file(source)
    assert reader.read_span(1, 2) == [{"id": "a1"}]
    reader.close()


def test_of_large_files_that_are_planned_at_once_one_is_read_whole_at_a_time(tmp_path: Path) -> None:
    at_once: list[int] = []
    reading: set[str] = set()

    @dataclasses.dataclass(frozen=True)
    class Noted(JsonlFormat):
        """Notes how many indexes are being built."""

        def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
            reading.add(url)
            at_once.append(len(reading))
            time.sleep(0.02)
            found = super().build_index(url, options, listed=listed)
            reading.discard(url)
            return found

    def planned(size: int) -> int:
        at_once.clear()
        kind = FileSources((Noted(),))
        files = [put(tmp_path / f"{size}-{number}.jsonl", b"{}\n" * (size // 3)) for number in range(4)]
        with ThreadPoolExecutor(4) as threads:
            assert {len(offsets) for offsets in threads.map(kind.load_index, files)} == {size // 3 + 1}
        return max(at_once)

    assert planned(9 * 2**20) == 1
    assert planned(300) > 1


def test_names_are_checked_for_the_form_in_which_records_are_read() -> None:
    tables = FileSources(form="arrow")
    tables.check_names(["/data/x.y/a.parquet", "/data/b.jsonl", "/data/c.jsonl.gz"])
    with pytest.raises(UsageError, match=r"/data/b\.tar: tar cannot be read as Arrow batches"):
        tables.check_names(["/data/a.parquet", "/data/b.tar", "/data/c.parquet"])
    with pytest.raises(UsageError, match=r"/data/b\.xyz"):
        tables.check_names(["/data/a.jsonl/c.jsonl", "/data/b.xyz"])


def test_an_output_is_read_by_the_index_that_was_written_with_it_though_its_content_was_doubted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = put_known(tmp_path / "a.jsonl", lines(3))
    put_index(source, np.array([0, 26, 39], np.uint64))
    before = (tmp_path / "a.jsonl.idx").read_bytes()
    with caplog.at_level(logging.WARNING):
        assert FileSources().load_index(source, changed=True).tolist() == [0, 26, 39]
    assert not caplog.records
    assert (tmp_path / "a.jsonl.idx").read_bytes() == before
    roots = FileSources(index=IndexLocation(str(tmp_path / "roots")))  # written by another program
    roots.load_index(source)
    with caplog.at_level(logging.WARNING):
        assert roots.load_index(source, changed=True).tolist() == [0, 13, 26, 39]
    assert "indexing it again" in caplog.text
    os.utime(tmp_path / "a.jsonl.idx", ns=(1, 1))
    with pytest.raises(IndexMismatchError):
        FileSources(build_index=False).load_index(source)
    assert FileSources().load_index(source).tolist() == [0, 13, 26, 39]


def test_an_index_that_does_not_fit_an_output_of_which_the_content_was_compared_is_made_again(tmp_path: Path) -> None:
    source = put_known(tmp_path / "a.jsonl", lines(3))
    put_index(source, np.array([0, 13], np.uint64))
    with pytest.raises(IndexMismatchError):
        FileSources(build_index=False).load_index(source)
    assert FileSources().load_index(source).tolist() == [0, 13, 26, 39]
    assert IndexFile(f"{source.url}.idx").load().tolist() == [0, 13, 26, 39]


def test_an_output_whose_index_nobody_can_build_needs_its_own(tmp_path: Path) -> None:
    data, _ = format_named("megatron").encode([Document([1, 2, 3], [3])])
    _, other = format_named("megatron").encode([Document([1, 2, 3], [3]), Document([4], [1])])
    (tmp_path / "a.idx").write_bytes(other.data)
    source = put(tmp_path / "a.bin", data.data)
    os.utime(tmp_path / "a.idx")
    known = with_content(source, data.data)
    for one in (source, known):
        with pytest.raises(IndexMismatchError):
            FileSources().load_index(one)


def test_so_large_a_file_is_read_alone() -> None:
    assert _reading_whole(FileInfo("/data/a", _READ_BESIDE, "1")) is not _one_large
    assert _reading_whole(FileInfo("/data/a", _READ_BESIDE + 1, "1")) is _one_large


def test_an_archive_that_only_one_worker_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 5\r\n\r\nhello\r\n\r\n"
    whole, apart = gzip.compress(record * 2), gzip.compress(record) * 2
    with caplog.at_level(logging.WARNING):
        for name, data, limit in (("whole", whole, 9), ("apart", apart, 1), ("whole", whole, 1)):
            source = put(tmp_path / f"{name}.warc.gz", data)
            cut = FileSources().kind_of(source).cut(source, TaskLimits(task_records=limit))
            assert len(cut.spans) == (1 if limit == 9 else 2)
            assert len(caplog.records) == (name == "whole" and limit == 1), "one task is for one worker anyway"
    assert "one worker reads it from its beginning" in caplog.text


def test_a_span_of_a_stream_is_what_its_task_has(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(5)))
    kind = FileSources().kind_of(source)
    cut = kind.cut(source, TaskLimits(task_records=2))
    assert cut.stream is not None
    assert cut.spans == [(0, 2), (2, 4), (4, 5)]
    assert [(span.record, span.records, span.start, span.stop) for span in cut.stream.places] == [
        (0, 2, 0, 26),
        (2, 2, 26, 52),
        (4, 1, 52, 65),
    ]
    with kind.open_stream(cut.source, cut.stream.format) as reader:
        expected = [{"id": "a2"}, {"id": "a3"}]
        assert reader.read(cut.stream.places[1]).listed() == reader.read_each(cut.stream.places[1]) == expected
        put(tmp_path / "a.jsonl.gz", gzip.compress(lines(6)))
        for read_span in (reader.read, reader.read_each, reader.read_raw):
            with pytest.raises(ChangedSourceError):
                read_span(cut.stream.places[2])


def test_an_object_is_read_in_one_pass_in_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl.gz", gzip.compress(lines(3)))
    source = listed(f"{folder.url}/a.jsonl.gz")
    kind = FileSources().kind_of(source)
    stream = kind.cut(source, TaskLimits()).stream
    assert stream is not None
    with kind.open_stream(source, stream.format) as reader:
        assert len(reader.read(stream.places[0]).listed()) == 3
    with (
        pytest.raises(ChangedSourceError),
        kind.open_stream(dataclasses.replace(source, version="1"), stream.format) as reader,
    ):
        reader.read(stream.places[0])


def test_a_file_that_is_known_by_its_content_is_read_in_one_pass(tmp_path: Path) -> None:
    source = put_known(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
    kind = FileSources().kind_of(source)
    cut = kind.cut(source, TaskLimits(task_records=2))
    assert cut.stream is not None
    with kind.open_stream(source, cut.stream.format) as reader:
        assert [len(reader.read(place).listed()) for place in cut.stream.places] == [2, 1]


def test_the_index_of_a_compressed_output_is_believed_though_its_content_was_doubted(tmp_path: Path) -> None:
    source = put_known(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
    put_index(source)
    for changed in (False, True):
        cut = FileSources().kind_of(source).cut(source, TaskLimits(task_records=2), changed=changed)
        assert (cut.spans, cut.stream) == ([(0, 2), (2, 3)], None)


def test_records_of_a_file_that_cannot_be_decoded_are_marked(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", b'{"id":0}\n{"id"\n{"id":2}\n')
    kind = FileSources().kind_of(source)
    opened = kind.open(kind.cut(source, TaskLimits()).source)
    first, broken, last = opened.read_each(0, 3)
    assert (first, last) == ({"id": 0}, {"id": 2})
    assert isinstance(broken, Unreadable)
    opened.close()


def test_rows_of_a_pack_that_cannot_be_decoded_are_marked(tmp_path: Path) -> None:
    sources = FileSources((JsonlFormat(schema='{"columns":{"id":"int64"}}'),), form="arrow")
    bad, good = b'{"id":0}\n{"id"\n', b'{"id":2}\n{"id":3}\n'
    pack = Source.pack(
        [put(tmp_path / name, data) for name, data in (("a.jsonl", good), ("b.jsonl", bad), ("c.jsonl", good))]
    )
    opened = sources.kind_of(pack).open(pack)
    with pytest.raises(RecordError, match=r"b\.jsonl"):
        opened.read_span(0, 3)
    found = opened.read_each(0, 3)
    assert found.table.to_pylist() == [{"id": number} for number in (2, 3, 0, 2, 3)]
    assert list(found.unreadable) == [3]
    assert opened.read_each(0, 1).to_pylist() == opened.read_span(2, 3).to_pylist() == [{"id": 2}, {"id": 3}]
    opened.close()


def test_records_of_columns_in_a_pack_that_cannot_be_decoded_are_marked(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    bad = put(tmp_path / "a.parquet", parquet_bytes(pa.table({"n": [1, 2, 3], "text": texts})))
    pack = Source.pack([bad, put(tmp_path / "b.jsonl", lines(1))])
    opened = FileSources().kind_of(pack).open(pack)
    with pytest.raises(RecordError, match=r"a\.parquet: record 1"):
        opened.read_span(0, 2)
    found = opened.read_each(0, 2).listed()
    assert [type(record) for record in found] == [dict, Unreadable, dict, dict]
    opened.close()


def test_files_of_columns_in_a_pack_are_read_whole(tmp_path: Path) -> None:
    (data,) = format_named("parquet").encode([{"id": 0}, {"id": 1}])
    pack = Source.pack([put(tmp_path / name, data.data) for name in ("a.parquet", "b.parquet")])
    opened = FileSources().kind_of(pack).open(pack)
    for read in (opened.read_span, opened.read_each):
        assert list(read(0, 2)) == [{"id": 0}, {"id": 1}] * 2


def test_files_of_a_pack_are_read_in_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", lines(2))
    pack = Source.pack([listed(f"{folder.url}/a.jsonl")])
    opened = FileSources().kind_of(pack).open(pack)
    assert opened.read_span(0, 1).listed() == [{"id": "a0"}, {"id": "a1"}]
    folder.delete(["a.jsonl"])
    folder.create("a.jsonl", lines(2, "b"))
    with pytest.raises(ChangedSourceError):
        opened.read_span(0, 1)


def test_files_of_a_pack_may_be_known_by_their_content_or_by_their_store(tmp_path: Path) -> None:
    plain, known = put(tmp_path / "a.jsonl", lines(1)), put_known(tmp_path / "b.jsonl", lines(1, "b"))
    for members in ([plain, known], [known, plain]):
        pack = Source.pack(members)
        assert len(FileSources().kind_of(pack).open(pack).read_span(0, 2).listed()) == 2
    put(tmp_path / "a.jsonl", lines(2))
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: .* found 26 bytes"):
        FileSources().kind_of(pack).open(pack).read_span(0, 2)


def test_a_file_of_a_pack_that_is_known_by_its_content_must_have_it(tmp_path: Path) -> None:
    known = put_known(tmp_path / "a.jsonl", lines(2))
    pack = Source.pack([known, put(tmp_path / "b.jsonl", lines(1))])
    assert len(FileSources().kind_of(pack).open(pack).read_span(0, 2).listed()) == 3
    (tmp_path / "a.jsonl").write_bytes(lines(2)[::-1])
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: expected the content recorded"):
        FileSources().kind_of(pack).open(pack).read_span(0, 2)


def test_an_empty_source_has_no_spans(tmp_path: Path) -> None:
    for name, data in (("a.jsonl", b""), ("a.jsonl.gz", gzip.compress(b"")), ("a.tar", tar())):
        source = put(tmp_path / name, data)
        cut = FileSources().kind_of(source).cut(source, TaskLimits(16))
        assert cut.spans == []
        assert cut.stream is None or cut.stream.places == ()


def test_an_output_of_another_size_than_was_recorded_has_changed(tmp_path: Path) -> None:
    source = put_known(tmp_path / "a.jsonl", lines(3))
    assert FileSources().found(source).size == len(lines(3))
    put(tmp_path / "a.jsonl", lines(2))
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: .* found 26 bytes"):
        FileSources().found(source)


PAYLOAD = tar(*(f"a{number}.{suffix}" for number in range(3) for suffix in ("wav", "json")))  # 2048 bytes each


def make(folder: Path, cuts: bytes, *, compressed: bool = False) -> Source:
    name = "cuts.000000.jsonl.gz" if compressed else "cuts.000000.jsonl"
    data = gzip.compress(cuts) if compressed else cuts
    return Source.pack([put(folder / name, data), put(folder / "recording.000000.tar", PAYLOAD)])


def cut(shard: Source, task_bytes: int | None = None) -> Cut:
    return SharSources().kind_of(shard).cut(shard, TaskLimits(task_bytes))


@pytest.mark.parametrize("compressed", [False, True])
def test_spans_are_of_the_bytes_of_all_files(tmp_path: Path, compressed: bool) -> None:
    shard = make(tmp_path, lines(3), compressed=compressed)
    records = 13 + 2048  # bytes of a cut and its payload
    assert cut(shard).spans == [(0, 3)]
    assert cut(shard, records).spans == [(0, 1), (1, 2), (2, 3)]
    assert cut(shard, records + 1).spans == [(0, 2), (2, 3)]
    assert cut(shard, 2 * records).spans == [(0, 2), (2, 3)]
    found = cut(shard, 2 * records + 1)
    assert (found.spans, found.stream) == ([(0, 3)], None)
    assert all(member.changed_ns for member in found.source.members)
    assert (tmp_path / "recording.000000.tar.idx").exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_its_samples_are_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    """Read without checking the indexes again; only compressed files are read whole."""
    shard = make(tmp_path, lines(3), compressed=compressed)
    cut(shard)
    for index in tmp_path.glob("*.idx"):
        os.utime(index, ns=(1, 1))
    if not compressed:
        monkeypatch.setattr("ledgerbeam.sources.shar.read_bytes", lambda *_: pytest.fail("it was read whole"))
    samples = SharSources().kind_of(shard).open(shard)
    (found,) = samples.read_span(1, 2)
    assert "a1" in str(found)
    assert "recording" in str(found)
    samples.close()


def test_files_of_other_numbers_of_records_are_no_shard(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"expected 4 records, as many as cuts in .*cuts.*, found 3"):
        cut(make(tmp_path, lines(4)))


def test_payloads_that_are_compressed_are_refused(tmp_path: Path) -> None:
    payload = put(tmp_path / "recording.000000.tar.gz", gzip.compress(tar("0.wav", "0.json")))
    shard = Source.pack([put(tmp_path / "cuts.000000.jsonl", lines(1)), payload])
    with pytest.raises(NotIndexableError, match=r"recording.*decompress it"):
        cut(shard)


def test_an_index_of_former_content_is_built_anew(tmp_path: Path) -> None:
    shard = make(tmp_path, lines(3))
    size = 13 + 2048 + 1
    kind = SharSources().kind_of(shard)
    spans = kind.cut(shard, TaskLimits(size)).spans
    stale = FileSources().load_index(shard.members[0]).copy()
    stale[1] += 1
    write_index(f"{shard.members[0].url}.idx", stale, not_before_ns=os.stat(shard.members[0].url).st_mtime_ns)
    assert kind.cut(shard, TaskLimits(size)).spans != spans
    assert kind.cut(shard, TaskLimits(size), changed=True).spans == spans


def test_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    """Also a compressed one on a store, where nothing but its reading tells."""
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("cuts.000000.jsonl.gz", gzip.compress(lines(3)))
    folder.create("recording.000000.tar", PAYLOAD)
    remote = Source.pack([listed(f"{folder.url}/{name}") for name in ("cuts.000000.jsonl.gz", "recording.000000.tar")])
    for shard in (make(tmp_path, lines(3), compressed=True), remote):
        cuts, payload = shard.members
        for members in (
            (dataclasses.replace(cuts, version="1"), payload),
            (cuts, dataclasses.replace(payload, version="1")),
        ):
            with pytest.raises(ChangedSourceError):
                cut(dataclasses.replace(shard, members=members))


def test_a_compressed_file_is_read_in_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("cuts.000000.jsonl.gz", gzip.compress(lines(3)))
    files = [listed(f"{folder.url}/cuts.000000.jsonl.gz"), put(tmp_path / "recording.000000.tar", PAYLOAD)]
    shard = Source.pack(files)
    cut(shard)
    cuts = dataclasses.replace(files[0], version="1")
    with pytest.raises(ChangedSourceError):
        SharSources().kind_of(shard).open(dataclasses.replace(shard, members=(cuts, files[1])))
