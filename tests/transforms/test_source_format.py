"""How sources are opened: which index is believed, built or passed over, and the shards of Shar."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import logging
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ledgerbeam.transforms.source_format import SourceFormat, listed_files, looked_at

from ledgerbeam.errors import ChangedSourceError, IndexMismatchError, IndexNotFoundError, NotIndexableError, SourceError
from ledgerbeam.io import IndexLocation, ObjectFolder, write_index
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage.stat import require_listed
from ledgerbeam.ledger import Source


def put(path: Path, data: bytes) -> Source:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    (page,) = list_pages([str(path)])
    return Source(page.urls[0], page.sizes[0], page.versions[0])


def lines(count: int, word: str = "a") -> bytes:
    return b"".join(json.dumps({"id": f"{word}{number}"}).encode() + b"\n" for number in range(count))


def tar(*names: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            file.addfile(member, io.BytesIO(b"{} "))
    return data.getvalue()


def test_all_that_was_listed_of_a_file_goes_to_who_reads_it() -> None:
    one, other = (Source(f"/data/{name}", 3, "7", changed_ns=9) for name in "ab")
    assert [(file.url, file.size, file.version, file.changed_ns) for file in listed_files(one)] == [
        ("/data/a", 3, "7", 9)
    ]
    assert [file.url for file in listed_files(Source.pack([one, other]))] == ["/data/a", "/data/b"]


def test_a_source_on_a_store_has_no_time_of_the_last_change() -> None:
    remote = Source("s3://bucket/a", 3, "7")
    assert looked_at(remote) == remote


def test_an_index_that_is_missing_is_built_where_it_belongs_unless_that_is_off(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    with pytest.raises(IndexNotFoundError):
        SourceFormat(build_index=False).load_index(source)
    assert not (tmp_path / "a.jsonl.idx").exists()
    assert len(SourceFormat(index=IndexLocation(str(tmp_path / "roots"))).load_index(source)) == 4
    assert not (tmp_path / "a.jsonl.idx").exists()
    (built,) = (tmp_path / "roots").rglob("*.idx")
    assert SourceFormat().load_index(source).tolist() == [0, 13, 26, 39]
    assert (tmp_path / "a.jsonl.idx").read_bytes() == built.read_bytes()


def test_an_index_is_never_older_than_its_source(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", lines(3))
    late = os.stat(tmp_path / "a.jsonl").st_mtime_ns + 10**12
    os.utime(tmp_path / "a.jsonl", ns=(late, late))
    (page,) = list_pages([str(tmp_path / "a.jsonl")])
    source = Source(page.urls[0], page.sizes[0], page.versions[0])
    for _ in range(2):
        assert len(SourceFormat().load_index(source)) == 4
        assert os.stat(tmp_path / "a.jsonl.idx").st_mtime_ns >= late


def test_an_index_that_cannot_be_built_is_missed(tmp_path: Path) -> None:
    """That of a Megatron dataset tells where its documents end; nothing else does."""
    with pytest.raises(IndexNotFoundError):
        SourceFormat().load_index(put(tmp_path / "a.bin", b"12345678"))


def test_an_index_of_former_content_is_refused_where_none_is_built(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    SourceFormat().load_index(source)
    with pytest.raises(IndexMismatchError, match="may be of the former content"):
        SourceFormat(build_index=False).load_index(source, changed=True)


def test_an_index_is_built_of_the_version_that_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", lines(3))
    (page,) = list_pages([f"{folder.url}/a.jsonl"])
    source = Source(page.urls[0], page.sizes[0], page.versions[0])

    def replacing(*args: Any) -> Any:
        found = require_listed(*args)
        folder.delete(["a.jsonl"])
        folder.create("a.jsonl", lines(3, "b"))
        return found

    monkeypatch.setattr("ledgerbeam.transforms.source_format.require_listed", replacing)
    with pytest.raises(ChangedSourceError):
        SourceFormat().load_index(source)
    assert folder.names("") == ["a.jsonl"]


def test_a_source_is_read_by_the_index_that_was_planned_by(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    kind = SourceFormat(index=IndexLocation(str(tmp_path / "roots")))
    kind.load_index(source)
    reader: Any = kind.open_source(source)
    assert reader.read_span(1, 3) == [{"id": "a1"}, {"id": "a2"}]
    reader.close()


def test_an_index_that_does_not_fit_is_an_error_and_stays(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    before = SourceFormat().load_index(source)
    write_index(f"{source.url}.idx", before[:2], not_before_ns=os.stat(source.url).st_mtime_ns)
    with pytest.raises(IndexMismatchError):
        SourceFormat().load_index(source)
    assert (tmp_path / "a.jsonl.idx").stat().st_size == 16


def test_an_index_of_former_content_is_built_anew_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = put(tmp_path / "a.jsonl", lines(3))
    SourceFormat().load_index(source)
    with caplog.at_level(logging.WARNING):
        SourceFormat().load_index(source)
        assert not caplog.records
        SourceFormat().load_index(source, changed=True)
    assert "indexed again" in caplog.text


def test_samples_are_grouped_as_asked(tmp_path: Path) -> None:
    data = tar("a.wav", "a.txt", "a.json", "b.wav", "b.txt", "b.json")
    for group, records in (("key", 2), ("pairs", 3)):
        source = put(tmp_path / group / "a.tar", data)
        kind = SourceFormat(group=group)  # type: ignore[arg-type]
        assert len(kind.load_index(source)) == records + 1
        reader: Any = kind.open_source(source)
        assert len(reader) == records
        reader.close()


class TestStreams:
    """Of compressed sources."""

    def test_without_an_index_they_are_read_from_their_begin(self, tmp_path: Path) -> None:
        assert SourceFormat().find_index(put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))) is None
        assert SourceFormat().find_index(put(tmp_path / "a.tar.gz", gzip.compress(tar("a.x", "b.x")))) is None

    def test_one_that_does_not_fit_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
        kind = SourceFormat()
        write_index(f"{source.url}.idx", kind.scan(source).offsets, not_before_ns=1)
        os.utime(f"{source.url}.idx", ns=(1, 1))
        with caplog.at_level(logging.WARNING):
            assert kind.find_index(source) is None
        assert "read from its begin, for its index does not fit" in caplog.text

    def test_one_of_former_content_is_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
        monkeypatch.setattr(SourceFormat, "index_of", lambda *_: pytest.fail("it was looked at"))
        assert SourceFormat().find_index(source, changed=True) is None

    def test_what_changed_since_it_was_listed_is_an_error(self, tmp_path: Path) -> None:
        source = put(tmp_path / "a.jsonl.gz", gzip.compress(lines(3)))
        changed = dataclasses.replace(source, version="1")
        with pytest.raises(ChangedSourceError):
            SourceFormat().scan(changed)
        write_index(f"{source.url}.idx", SourceFormat().scan(source).offsets)
        with pytest.raises(ChangedSourceError):
            SourceFormat().find_index(changed)

    def test_a_tar_is_grouped_as_asked(self, tmp_path: Path) -> None:
        source = put(tmp_path / "a.tar.gz", gzip.compress(tar("a.wav", "a.txt", "b.wav", "b.txt")))
        found = SourceFormat(group="key").scan(source)
        assert (len(found.offsets) - 1, found.paired) == (2, False)
        assert SourceFormat(group="pairs").scan(source).paired


class TestShards:
    """Of Shar datasets."""

    def shard(self, folder: Path, cuts: bytes, *, name: str = "cuts.000000.jsonl", fields: int = 3) -> Source:
        names = [member for number in range(fields) for member in (f"a{number}.wav", f"a{number}.json")]
        files = [put(folder / name, cuts), put(folder / "recording.000000.tar", tar(*names))]
        return Source.pack(files)

    @pytest.mark.parametrize("compressed", [False, True])
    def test_spans_are_of_the_bytes_of_all_files(self, tmp_path: Path, compressed: bool) -> None:
        cuts = gzip.compress(lines(3)) if compressed else lines(3)
        shard = self.shard(tmp_path, cuts, name=f"cuts.000000.jsonl{'.gz' if compressed else ''}")
        kind = SourceFormat(shar=True)
        assert kind.load_shard_index(shard).tolist() == [0, 13 + 2048, 26 + 4096, 39 + 10240]
        assert (tmp_path / "recording.000000.tar.idx").exists()

    @pytest.mark.parametrize("compressed", [False, True])
    def test_its_samples_are_of_all_files(self, tmp_path: Path, compressed: bool) -> None:
        """Read without another look at the indexes."""
        cuts = gzip.compress(lines(3)) if compressed else lines(3)
        shard = self.shard(tmp_path, cuts, name=f"cuts.000000.jsonl{'.gz' if compressed else ''}")
        kind = SourceFormat(shar=True)
        kind.load_shard_index(shard)
        for index in tmp_path.glob("*.idx"):
            os.utime(index, ns=(1, 1))
        samples = kind.open_shard(shard)
        (found,) = samples.read_span(1, 2)
        assert "a1" in str(found)
        assert "recording" in str(found)
        samples.close()

    def test_files_of_other_numbers_of_records_are_no_shard(self, tmp_path: Path) -> None:
        shard = self.shard(tmp_path, lines(4))
        with pytest.raises(SourceError, match=r"expected 4 records, as many as cuts in .*cuts.*, found 3"):
            SourceFormat(shar=True).load_shard_index(shard)

    def test_payloads_that_are_compressed_are_refused(self, tmp_path: Path) -> None:
        payload = put(tmp_path / "recording.000000.tar.gz", gzip.compress(tar("0.wav", "0.json")))
        shard = Source.pack([put(tmp_path / "cuts.000000.jsonl", lines(1)), payload])
        with pytest.raises(NotIndexableError, match=r"recording.*decompress it"):
            SourceFormat(shar=True).load_shard_index(shard)

    def test_an_index_of_former_content_is_built_anew(self, tmp_path: Path) -> None:
        shard = self.shard(tmp_path, lines(3))
        kind = SourceFormat(shar=True)
        offsets = kind.load_shard_index(shard)
        url = f"{shard.members[0].url}.idx"
        stale = kind.load_index(shard.members[0])
        stale = stale.copy()
        stale[1] += 1
        write_index(url, stale, not_before_ns=os.stat(shard.members[0].url).st_mtime_ns)
        assert kind.load_shard_index(shard).tolist() != offsets.tolist()
        assert kind.load_shard_index(shard, changed=True).tolist() == offsets.tolist()

    def test_a_compressed_file_that_changed_is_an_error(self, tmp_path: Path) -> None:
        shard = self.shard(tmp_path, gzip.compress(lines(3)), name="cuts.000000.jsonl.gz")
        members = (dataclasses.replace(shard.members[0], version="1"), *shard.members[1:])
        with pytest.raises(ChangedSourceError):
            SourceFormat(shar=True).load_shard_index(dataclasses.replace(shard, members=members))


def test_a_source_is_opened_without_a_look_at_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning has looked: of an object it would cost every task two requests."""
    source = put(tmp_path / "a.jsonl", lines(3))
    kind = SourceFormat()
    kind.load_index(source)
    os.utime(f"{source.url}.idx", ns=(1, 1))
    with pytest.raises(IndexMismatchError):
        kind.load_index(source)
    reader: Any = kind.open_source(source)
    assert reader.read_span(1, 2) == [{"id": "a1"}]
    reader.close()
