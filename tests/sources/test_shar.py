"""Shards of Shar datasets: cut by the bytes of all their files, read as samples of all of them."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path

import pytest

from ledgerbeam.errors import ChangedSourceError, NotIndexableError, SourceError
from ledgerbeam.io import write_index
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import Source
from ledgerbeam.sources import Cut, FileSources, SharSources, TaskLimits
from tests.sources.data import lines, listed, put, tar

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
def test_indexes_of_its_files_may_be_made_before(tmp_path: Path, compressed: bool) -> None:
    shard = make(tmp_path, lines(3), compressed=compressed)
    SharSources().kind_of(shard).make_index(shard)
    before = {path.name: path.stat().st_ino for path in tmp_path.glob("*.idx")}
    assert len(before) == 2 - compressed
    cut(shard)
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("*.idx")} == before


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
