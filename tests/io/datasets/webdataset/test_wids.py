"""wids index files: written files, references, and refused input."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import IndexMismatchError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io.datasets.webdataset import Shard, open_shards, open_wids, read_wids_index, write_wids_index
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar.writer import encode_tar
from tests.cases import each
from tests.io.datasets.webdataset.content import plain, plain_samples, write_shards

SHARDS = [
    Shard("b.tar", 2, 20480, "d41d8cd98f00b204e9800998ecf8427e"),
    Shard("a.tar", 3, 10240),
    Shard("c.tar", 0, 10240),
]


def test_an_index_lists_shards_that_hold_samples_sorted_by_name(tmp_path: Path) -> None:
    write_wids_index(f"{tmp_path}/index.json", SHARDS, name="letters", info="two of them")
    assert (tmp_path / "index.json").read_text() == (Path(__file__).parent / "golden-wids.json").read_text().rstrip()
    found = read_wids_index(f"{tmp_path}/index.json")
    assert (found.name, found.info) == ("letters", "two of them")
    assert [(shard.url, shard.records, shard.size, shard.md5) for shard in found.shards] == [
        (f"{tmp_path}/a.tar", 3, 10240, None),
        (f"{tmp_path}/b.tar", 2, 20480, "d41d8cd98f00b204e9800998ecf8427e"),
    ]


@pytest.mark.parametrize("name", ["", "/a.tar", "../a.tar", "s3://b/a.tar", "x//a.tar"])
def test_names_are_paths_below_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="relative to the root"):
        write_wids_index(f"{tmp_path}/index.json", [Shard(name, 1, 1)])
    with pytest.raises(UsageError, match="again"):
        write_wids_index(f"{tmp_path}/index.json", [Shard("a.tar", 1, 1)] * 2)
    assert list(tmp_path.iterdir()) == []


def index(**content: Any) -> str:
    return json.dumps({"wids_version": 1, **content})


def rows(*urls: str) -> list[dict[str, Any]]:
    return [{"url": url, "nsamples": 1} for url in urls]


@each(
    ("content", "urls"),
    [
        (
            index(shardlist=rows("a.tar", "/x/b.tar", "s3://b/c.tar")),
            ["memory://top/in/a.tar", "memory://top/x/b.tar", "s3://b/c.tar"],
        ),
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
        (index(shardlist=[{}]), "shard 0: expected its URL"),
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
    found = r"index.json: expected .*part-001.tar to have 1 bytes, found 10240; write whichever is stale again"
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
