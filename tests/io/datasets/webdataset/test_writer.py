"""Writing shards: names, limits, indexes, and files after a failure."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import ShardWriter, open_shards
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.webdataset.content import plain, samples, write_shards

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
    with ShardWriter(f"{tmp_path}/deep/%d/x.tar", max_bytes=3000, start=8) as writer:
        for number in range(5):
            writer.write({"__key__": str(number), "__url__": "left out", "bin": bytes(1000)})
    assert [(shard.name, shard.records) for shard in writer.shards] == [("8/x.tar", 2), ("9/x.tar", 2), ("10/x.tar", 1)]
    assert writer.root == str(tmp_path / "deep")
    assert [shard.size for shard in writer.shards] == [
        os.path.getsize(f"{tmp_path}/deep/{s.name}") for s in writer.shards
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
        (Sample("first", {"txt": b""}), "sample 1 .'first'. has the key of the one before"),
        (Sample("a.b", {"txt": b""}), "sample 1 .'a.b': txt. would be read back as .'a'"),
        (Sample("a", {"txt": "text"}), "sample 1 .'a'. has str under 'txt'; expected bytes"),  # type: ignore[arg-type]
        (Sample("__m__/x", {"txt": b""}), "sample 1 .'__m__/x': txt. would be read back as None"),
        (Sample("a"), "sample 1 .'a'. has no member"),
        ({"txt": b""}, "a mapping with the key under '__key__'"),
    ],
)
def test_a_sample_that_would_not_be_read_back_is_refused_and_the_writer_goes_on(
    tmp_path: Path, sample: Sample, found: str
) -> None:
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


def test_shards_are_written_to_an_object_store() -> None:
    given_samples = samples(7)
    with ShardWriter("memory://shards/x%20y-%03d.tar", max_samples=3) as writer:
        for sample in given_samples:
            writer.write(sample)
    try:
        assert writer.root == "memory://shards"
        urls = [f"{writer.root}/{shard.name}" for shard in writer.shards]
        assert urls[0].endswith("x%20y-000.tar")
        assert plain(list(open_shards(urls))) == plain(given_samples)
    finally:
        filesystem("memory://").rm("/shards", recursive=True)
