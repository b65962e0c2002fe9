"""Shards of WebDataset, and their list for wids: written files, limits, readers, and refused input."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import IndexMismatchError, RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import Sample, publish_bytes
from ledgerbeam.io.datasets.webdataset import (
    DaliReader,
    Shard,
    ShardReader,
    ShardWriter,
    open_shards,
    open_wids,
    read_wids_index,
    write_dali_index,
    write_wids_index,
)
from ledgerbeam.io.datasets.webdataset.dali import dali_index_url
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.io.tar.writer import encode_tar
from tests.cases import each
from tests.conftest import S3Requests, S3Server
from tests.io.conformance import COUNT, SequenceConformance, fresh, open_files
from tests.io.datasets.webdataset.content import plain, plain_samples, samples, write_shards

KEYS = st.text("abé/_-", min_size=1, max_size=130).filter(
    lambda key: not key.startswith(("/", "__")) and not key.endswith("/") and "//" not in key
)
MEMBERS = st.dictionaries(st.sampled_from(["jpg", "seg.png", "json", "a..b"]), st.binary(max_size=1100), min_size=1)


def test_a_shard_and_its_index_are_the_bytes_that_encode_tar_gives(tmp_path: Path) -> None:
    given_samples = samples(40)
    (shard,) = write_shards(tmp_path, given_samples, 100, md5=True)
    data, offsets = encode_tar(given_samples, group="key")
    assert (tmp_path / shard.name).read_bytes() == data
    assert (tmp_path / f"{shard.name}.idx").read_bytes() == index_bytes(offsets)
    np.testing.assert_array_equal(build_tar_index(str(tmp_path / shard.name), group="key"), offsets)
    assert (shard.records, shard.size) == (40, len(data))
    assert shard.md5 == hashlib.md5(data).hexdigest()


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(KEYS, MEMBERS, max_size=12), st.integers(1, 5))
def test_what_is_written_is_read(members: dict[str, dict[str, bytes]], size: int) -> None:
    given_samples = [Sample(key, value) for key, value in members.items()]
    with TemporaryDirectory() as folder:
        shards = write_shards(Path(folder), given_samples, size)
        assert [shard.records for shard in shards] == [
            min(size, len(given_samples) - start) for start in range(0, len(given_samples), size)
        ]
        if shards:
            with open_shards([f"{folder}/{shard.name}" for shard in shards]) as reader:
                assert plain(reader[:]) == plain(given_samples)


def test_a_shard_takes_no_sample_once_it_has_its_bytes(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/deep%20y/%d/x.tar", max_bytes=3000, start=8) as writer:
        for number in range(5):
            writer.write({"__key__": str(number), "__url__": "left out", "bin": bytes(1000)})
    assert [(shard.name, shard.records) for shard in writer.shards] == [("8/x.tar", 2), ("9/x.tar", 2), ("10/x.tar", 1)]
    assert writer.root == f"{tmp_path}/deep%20y"
    assert [shard.size for shard in writer.shards] == [
        os.path.getsize(f"{writer.root}/{s.name}") for s in writer.shards
    ]


def test_without_samples_there_are_no_shards(tmp_path: Path) -> None:
    assert write_shards(tmp_path, []) == []
    assert os.listdir(tmp_path) == []


def test_a_body_that_raises_leaves_full_shards_and_nothing_of_the_one_in_work(tmp_path: Path) -> None:
    writer = ShardWriter(f"{tmp_path}/%02d.tar", max_samples=2)

    def write() -> None:
        with writer:
            for sample in samples(3):
                writer.write(sample)
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert sorted(os.listdir(tmp_path)) == ["00.tar", "00.tar.idx"]
    assert [shard.name for shard in writer.shards] == ["00.tar"]


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        (Sample("a", {"jpg": b"", "JPG": b""}), "sample 1 .'a'. has the extensions jpg, JPG; expected lower case"),
        (Sample("first", {"txt": b""}), "sample 1 .'first'. has the key of the sample before"),
        (Sample("a.b", {"txt": b""}), "sample 1 .'a.b': txt. would be read back as .'a'"),
        (Sample("a", {"txt": "text"}), "sample 1 .'a'. has str under 'txt'; expected bytes"),  # type: ignore[arg-type]
        (Sample("__m__/x", {"txt": b""}), "sample 1 .'__m__/x': txt. would be read back as None"),
        (Sample("a"), "sample 1 .'a'. has no member"),
        ({"txt": b""}, "a mapping with the key under '__key__'"),
    ],
)
def test_a_sample_that_would_read_otherwise_is_refused(tmp_path: Path, sample: Sample, found: str) -> None:
    with ShardWriter(f"{tmp_path}/%d.tar") as writer:
        writer.write(Sample("first", {"txt": b"1"}))
        with pytest.raises(RecordError, match=f"{tmp_path}/.*{found}"):
            writer.write(sample)
        writer.write(Sample("last", {"txt": b"2"}))
    with open_shards([f"{tmp_path}/0.tar"]) as reader:
        assert plain(reader[:]) == [("first", {"txt": b"1"}), ("last", {"txt": b"2"})]


def test_a_shard_is_not_made_for_samples_that_are_refused(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/%d.tar", max_samples=1) as writer:
        for key in ("a", "b.c"):
            with contextlib.suppress(RecordError):
                writer.write(Sample(key, {"txt": b""}))
    assert [shard.name for shard in writer.shards] == ["0.tar"]
    assert sorted(os.listdir(tmp_path)) == ["0.tar", "0.tar.idx"]


@pytest.mark.parametrize("pattern", ["x.tar", "%d-%d.tar", "%s.tar", "%5d.tar"])
def test_a_pattern_needs_one_place_for_the_number(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="expected one place"):
        ShardWriter(f"{tmp_path}/{pattern}")


@pytest.mark.parametrize("limits", [{"max_samples": 0}, {"max_bytes": 0}, {"start": -1}])
def test_limits_are_positive(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"found .*{next(iter(limits))}="):
        ShardWriter("/x/%d.tar", **limits)  # type: ignore[arg-type]


class TestShards(SequenceConformance):
    def records(self, count: int) -> list[Any]:
        return samples(count)

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        root = fresh(folder)
        with ShardWriter(f"{root}/x/%04d.tar", options, max_samples=30) as writer:
            for record in records:
                writer.write(record)
        write_wids_index(f"{root}/x/index.json", writer.shards, options)
        return f"{root}/x/index.json", records

    def open(self, url: str, options: dict[str, Any] | None = None) -> ShardReader:
        return open_wids(url, options)

    def files(self, url: str) -> list[str]:
        return [url]

    def opened(self, url: str) -> set[str]:
        return set(self.open(url).shards)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        joined = b"".join(reader.raw(number) for number in range(30))
        assert Path(reader.shards[0]).read_bytes().startswith(joined)
        assert Path(reader.shards[-1]).read_bytes().startswith(reader.raw(180))

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="expected shards"):
            self.open(self.store(str(tmp_path), 0)[0])

    def test_few_of_many_shards_are_open_at_a_time(self, tmp_path: Path) -> None:
        with ShardWriter(f"{tmp_path}/%d.tar", max_samples=1) as writer:
            for record in self.records(150):
                writer.write(record)
        urls = [f"{tmp_path}/{shard.name}" for shard in writer.shards]
        reader = open_shards(urls)
        assert self.same(reader.read_many(range(150)), self.records(150))
        assert 0 < len(open_files().intersection(urls)) <= 64


class TestDali(SequenceConformance):
    def records(self, count: int) -> list[Any]:
        return plain_samples(count)

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        url = f"{fresh(folder)}.tar"
        publish_bytes(url, encode_tar(records, group="key")[0], options)
        if records:
            assert write_dali_index(url, options=options) == count
        else:
            publish_bytes(dali_index_url(url), b"v1.2 0\n", options)
        return url, records

    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        return DaliReader(url, options=options)

    def files(self, url: str) -> list[str]:
        return [url, dali_index_url(url)]

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        with pytest.raises(IndexMismatchError, match=f"{COUNT + 1} records"):
            self.open(source[0]).read_span(0, COUNT + 1)  # the index knows payloads, not the bytes of a sample

    @pytest.mark.s3
    def test_a_sample_of_an_object_is_one_request(self, s3: S3Server, s3_requests: S3Requests) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        reader = self.open(url, s3.options)
        s3_requests.take()
        assert self.same([reader[20]], [records[20]])
        assert s3_requests.take() == ["get_object"]


def test_an_index_lists_shards_that_hold_samples_sorted_by_name(tmp_path: Path) -> None:
    md5 = "d41d8cd98f00b204e9800998ecf8427e"
    shards = [Shard("b.tar", 2, 20480, md5), Shard("a.tar", 3, 10240), Shard("c.tar", 0, 10240)]
    write_wids_index(f"{tmp_path}/index.json", shards, name="letters", info="two of them")
    assert (tmp_path / "index.json").read_text() == (Path(__file__).parent / "golden-wids.json").read_text().rstrip()
    found = read_wids_index(f"{tmp_path}/index.json")
    assert (found.name, found.info) == ("letters", "two of them")
    assert [(shard.url, shard.records, shard.size, shard.md5) for shard in found.shards] == [
        (f"{tmp_path}/a.tar", 3, 10240, None),
        (f"{tmp_path}/b.tar", 2, 20480, md5),
    ]


@pytest.mark.parametrize("name", ["", "/a.tar", "../a.tar", "s3://b/a.tar", "x//a.tar"])
def test_names_are_paths_below_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="relative to the root"):
        write_wids_index(f"{tmp_path}/index.json", [Shard(name, 1, 1)])
    with pytest.raises(UsageError, match="a second time"):
        write_wids_index(f"{tmp_path}/index.json", [Shard("a.tar", 1, 1)] * 2)
    assert list(tmp_path.iterdir()) == []


def index(**content: Any) -> str:
    return json.dumps({"wids_version": 1, **content})


def rows(*urls: str) -> list[dict[str, Any]]:
    return [{"url": url, "nsamples": 1} for url in urls]


@each(
    ("content", "urls"),
    [
        (index(shardlist=rows("a.tar", "/x/b.tar")), ["memory://top/in/a.tar", "memory://top/x/b.tar"]),
        (index(shardlist=rows("s3://b/c.tar")), ["s3://b/c.tar"]),
        (index(shardlist=rows("a.tar"), base="s3://b/data"), ["s3://b/data/a.tar"]),
        (index(shardlist=rows("a.tar"), base="sub"), ["memory://top/in/sub/a.tar"]),
        (index(datasets=[{"shardlist": rows("a.tar"), "base": "gs://g/"}]), ["gs://g/a.tar"]),
        (index(datasets=[{"source_url": "other/index.json"}]), ["memory://top/in/other/z.tar"]),
        (index(shardlist=rows("../a.tar")), ["memory://top/a.tar"]),
    ],
)
def test_references_resolve(content: str, urls: list[str]) -> None:
    store = filesystem("memory://")
    store.pipe_file("/top/in/index.json", content.encode())
    store.pipe_file("/top/in/other/index.json", index(shardlist=rows("z.tar")).encode())
    try:
        assert [shard.url for shard in read_wids_index("memory://top/in/index.json").shards] == urls
    finally:
        store.rm("/top", recursive=True)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("{", "bad JSON"),
        ("[" * 100_000, "bad JSON"),
        ("[]", "an object, found list"),
        ("{}", "expected 1 as wids_version, found None"),
        (index(), "expected shards"),
        (index(shardlist={}), "list of objects under 'shardlist'"),
        (index(shardlist=[1]), "list of objects under 'shardlist'"),
        (index(shardlist=[{}]), "shard 0: expected the URL of the shard"),
        (index(shardlist=[{"url": "a.tar"}]), r"shard 0 \(a.tar\): expected a number of samples under 'nsamples'"),
        (index(shardlist=[{"url": "a.tar", "nsamples": -1}]), "found -1"),
        (index(shardlist=[{"url": "a.tar", "nsamples": True}]), "found True"),
        (index(shardlist=rows("a.tar"), base=3), "URL under 'base', found 3"),
        (index(datasets=[{"source_url": 1}]), "dataset 0: expected a URL under 'source_url'"),
        (index(datasets=[{"source_url": "index.json"}]), "dataset 0: .*index.json refers to further indexes"),
    ],
)
def test_what_is_no_index_is_an_error_that_names_it(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(SourceError, match=f"{tmp_path}/index.json: .*{found}"):
        read_wids_index(f"{tmp_path}/index.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(index(datasets=[{"source_url": "absent.json"}]))
    with pytest.raises(SourceNotFoundError, match=r"absent\.json"):
        read_wids_index(f"{tmp_path}/index.json")


def test_its_files_are_the_shards_as_they_are_now(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, plain_samples(6), 3)
    reader = open_shards([f"{tmp_path}/{shard.name}" for shard in shards])
    assert [(info.url, info.size) for info in reader.files] == [
        (f"{tmp_path}/{shard.name}", shard.size) for shard in shards
    ]
    (tmp_path / shards[1].name).write_bytes(b"abc")
    assert [info.size for info in reader.files] == [shards[0].size, 3]


def test_a_shard_with_another_number_of_samples_is_an_error(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, plain_samples(6), 3)
    write_wids_index(f"{tmp_path}/index.json", [shards[0], Shard(shards[1].name, 4, shards[1].size)])
    reader = open_wids(f"{tmp_path}/index.json")
    assert plain(reader[:3]) == plain(plain_samples(3))
    with pytest.raises(IndexMismatchError, match=r"expected 4 samples in .*part-001.tar, found 3"):
        reader[3]


def restated(folder: Path, number: int, **changes: Any) -> str:
    """Change the properties of a shard in an index, and return the URL of the shard."""
    path = folder / "index.json"
    content = json.loads(path.read_text())
    content["shardlist"][number] |= changes
    path.write_text(json.dumps(content))
    return str(path)


def test_a_shard_of_another_size_is_an_error(tmp_path: Path) -> None:
    write_wids_index(f"{tmp_path}/index.json", write_shards(tmp_path, plain_samples(6), 3))
    reader = open_wids(restated(tmp_path, 1, filesize=1))
    assert plain(reader[:3]) == plain(plain_samples(3))
    found = r"index.json: expected .*part-001.tar to have 1 bytes, found 10240; write the file that is out of date"
    for again in (reader, pickle.loads(pickle.dumps(reader))):
        with pytest.raises(IndexMismatchError, match=found):
            again[3]


@pytest.mark.parametrize("size", [None, "10240", True])
def test_a_size_that_is_none_is_not_compared(tmp_path: Path, size: Any) -> None:
    write_wids_index(f"{tmp_path}/index.json", write_shards(tmp_path, plain_samples(6), 3))
    assert plain(open_wids(restated(tmp_path, 1, filesize=size))[:]) == plain(plain_samples(6))


def test_a_shard_that_is_said_to_hold_nothing_is_looked_at_on_open(tmp_path: Path) -> None:
    write_wids_index(f"{tmp_path}/index.json", write_shards(tmp_path, plain_samples(6), 3))
    url = restated(tmp_path, 0, nsamples=0)
    with pytest.raises(IndexMismatchError, match=r"expected 0 samples in .*part-000.tar, found 3"):
        open_wids(url)
    Path(f"{tmp_path}/part-000.tar.idx").write_bytes(bytes(8))
    with pytest.raises(IndexMismatchError, match=r"expected no samples, found the member 's00000.bin'"):
        open_wids(url)
    with pytest.raises(IndexMismatchError, match=r"expected no samples, found the member 's00000.bin'"):
        open_shards([f"{tmp_path}/part-000.tar", f"{tmp_path}/part-001.tar"])


def test_a_shard_that_holds_nothing_is_read_past(tmp_path: Path) -> None:
    write_wids_index(f"{tmp_path}/index.json", write_shards(tmp_path, plain_samples(6), 3))
    (tmp_path / "part-000.tar").write_bytes(encode_tar([])[0])
    Path(f"{tmp_path}/part-000.tar.idx").write_bytes(bytes(8))
    reader = open_wids(restated(tmp_path, 0, nsamples=0))
    assert plain(list(reader)) == plain(reader.read_many(range(3))) == plain(plain_samples(6)[3:])
