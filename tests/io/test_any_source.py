"""Opening any source: by a fitting index, else as a stream; and building its index."""

from __future__ import annotations

import gzip
import json
import logging
import lzma
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

import ledgerbeam
from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    NotIndexableError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import TarFormat
from ledgerbeam.io.formats import streamed
from ledgerbeam.io.index.file import Rule
from tests.servers.web import web_server

ROWS = [{"id": number, "text": "x" * (number % 7)} for number in range(50)]


def lines(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def shard(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for row in ROWS:
            for extension in ("json", "txt"):
                data = json.dumps(row).encode()
                member = tarfile.TarInfo(f"{row['id']:04}.{extension}")
                member.size = len(data)
                archive.addfile(member, BytesIO(data))
    return path


def test_without_an_index_it_is_a_stream_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ledgerbeam")
    url = str(lines(tmp_path / "a.jsonl"))
    found = ledgerbeam.open(url)
    assert isinstance(found, ledgerbeam.RecordStream)
    assert found.is_indexed is False
    assert f"{url}.idx" in found.why
    assert repr(found) == f"<stream of {url}: {found.why}>"
    assert list(found) == ROWS == list(found)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    with pytest.raises(IndexNotFoundError, match=r"record 3 cannot be read by number.*index_source"):
        found[3]


@pytest.mark.parametrize("rule", ["scheme", "lhotse"])
def test_an_index_below_a_root_is_found(tmp_path: Path, rule: Rule) -> None:
    for url in (lines(tmp_path / "a.jsonl"), shard(tmp_path / "b.tar")):
        ledgerbeam.index_source(url, index_root=tmp_path / "indexes", index_rule=rule)
        found = ledgerbeam.open(url, index_root=tmp_path / "indexes", index_rule=rule)
        assert found.is_indexed
        assert len(list(found)) == 50
        assert not ledgerbeam.open(url).is_indexed
        with pytest.raises(UsageError, match="pass one of them"):
            ledgerbeam.open(url, "other.idx", index_root=tmp_path / "indexes")


@pytest.mark.parametrize("has_ranges", [False, True])
def test_files_of_a_web_server_are_read_with_and_without_ranges(tmp_path: Path, has_ranges: bool) -> None:
    text, packed = lines(tmp_path / "a.jsonl").read_bytes(), shard(tmp_path / "b.tar").read_bytes()
    files = {"a.jsonl": text, "a.jsonl.gz": gzip.compress(text), "a.jsonl.xz": lzma.compress(text), "b.tar": packed}
    with web_server(files=files, has_ranges=has_ranges) as web:
        for name in files:
            url = f"{web.url}/{name}"
            assert len(list(ledgerbeam.open(url))) == 50
            if name.endswith(".xz"):
                continue
            ledgerbeam.index_source(url, index_root=tmp_path / "indexes")
            found = ledgerbeam.open(url, index_root=tmp_path / "indexes")
            assert found.is_indexed is has_ranges
            assert len(list(found)) == 50
            if not has_ranges:
                assert isinstance(found, ledgerbeam.RecordStream)
                assert "does not support byte ranges" in found.why
                with pytest.raises(NotIndexableError, match="does not support byte ranges"):
                    ledgerbeam.open(url, index_root=tmp_path / "indexes", indexed=True)


def test_with_an_index_any_record_is_read_alone(tmp_path: Path) -> None:
    url = str(lines(tmp_path / "a.jsonl"))
    assert ledgerbeam.index_source(url) == f"{url}.idx"
    found = ledgerbeam.open(url)
    assert found.is_indexed is True
    assert found[7] == ROWS[7]
    stream = ledgerbeam.open(url, indexed=False)
    assert (stream.is_indexed, stream.why) == (False, "a stream was asked for")
    assert list(stream) == ROWS


def test_an_index_that_does_not_fit_is_a_warning_or_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = lines(tmp_path / "a.jsonl")
    ledgerbeam.index_source(str(path))
    path.write_text(path.read_text() + '{"id": 50}\n')
    found = ledgerbeam.open(str(path))
    assert list(found) == [*ROWS, {"id": 50}]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(IndexMismatchError):
        ledgerbeam.open(str(path), indexed=True)
    with pytest.raises(IndexMismatchError):
        ledgerbeam.open(str(path), f"{path}.idx")
    ledgerbeam.index_source(str(path))
    assert len(ledgerbeam.open(str(path), indexed=True)) == 51


@pytest.mark.parametrize("size", [1, 100, streamed.SPAN_BYTES])
def test_tars_and_compressed_files_are_streams_too(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "SPAN_BYTES", size)
    samples = list(ledgerbeam.open(str(shard(tmp_path / "a.tar"))))
    assert [json.loads(sample["json"]) for sample in samples] == ROWS
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines(tmp_path / "a.jsonl").read_bytes()))
    assert list(ledgerbeam.open(str(path))) == ROWS
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert len(list(ledgerbeam.open(str(tmp_path / "a.txt")))) == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert list(ledgerbeam.open(str(tmp_path / "empty.jsonl"))) == []


def test_a_gzip_file_gets_its_seek_points_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines(tmp_path / "a.jsonl").read_bytes()))
    index = ledgerbeam.index_source(str(path), index_root=str(tmp_path / "indexes"))
    assert index == f"{tmp_path}/indexes/file{path}.idx"
    assert ledgerbeam.open(str(path), index, indexed=True)[-1] == ROWS[-1]


def test_an_index_that_fits_is_left_unless_it_is_forced(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar")
    configured = [TarFormat("key")]
    index = Path(ledgerbeam.index_source(str(path), configured=configured))
    before = index.stat().st_ino
    ledgerbeam.index_source(str(path), configured=configured)
    assert index.stat().st_ino == before
    ledgerbeam.index_source(str(path), configured=configured, force=True)
    assert index.stat().st_ino != before
    assert len(ledgerbeam.open(str(path), configured=configured, indexed=True)) == 50


def test_a_source_that_changes_while_it_is_streamed_is_an_error(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl")
    found = ledgerbeam.open(str(path))
    path.write_text('{"id": 1}\n')
    with pytest.raises(ChangedSourceError):
        list(found)


def test_what_cannot_be_opened_or_indexed_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nothing\.jsonl"):
        ledgerbeam.open(str(tmp_path / "nothing.jsonl"), indexed=False)
    with pytest.raises(SourceNotFoundError, match=r"nothing\.jsonl"):
        ledgerbeam.index_source(str(tmp_path / "nothing.jsonl"))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    found = ledgerbeam.open(str(tmp_path / "a.parquet"))
    assert (found.is_indexed, found[1]) == (True, {"n": 2})
    with pytest.raises(NotIndexableError, match="footer"):
        ledgerbeam.open(str(tmp_path / "a.parquet"), indexed=False)
    with pytest.raises(NotIndexableError, match="footer"):
        ledgerbeam.index_source(str(tmp_path / "a.parquet"))
