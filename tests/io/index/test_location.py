from __future__ import annotations

import gzip
import os
import pickle
import tempfile
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ledgerbeam
from ledgerbeam.errors import ChangedSourceError, StorageError, UsageError
from ledgerbeam.io import publish_bytes, write_index
from ledgerbeam.io.index.file import IndexFile, IndexLocation, index_bytes
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources
from tests.cases import each
from tests.io.conftest import Place, store_place

PARTS = st.lists(st.sampled_from(["a", "b", "", ".", "..", "%", "%2E", "%25", "%2E2E", "s3", "file"]), max_size=5)


@each(
    ("location", "source", "index"),
    [
        (IndexLocation(), "/b/x.jsonl", "/b/x.jsonl.idx"),
        (IndexLocation(), "s3a://b/x.tar", "s3://b/x.tar.idx"),
        (IndexLocation("/r"), "/b/x", "/r/file/b/x.idx"),
        (IndexLocation("/r/"), "s3://b/x", "/r/s3/b/x.idx"),
        (IndexLocation("/"), "s3://b/x", "/s3/b/x.idx"),
        (IndexLocation("s3://r/p/"), "/b/x", "s3://r/p/file/b/x.idx"),
        (IndexLocation("gcs://r"), "s3://b/x", "gs://r/s3/b/x.idx"),
        (IndexLocation("/r", "lhotse"), "/b/x", "/r/b/x.idx"),
        (IndexLocation("/r", "lhotse"), "/b/../c/x", "/r/c/x.idx"),
        (IndexLocation("s3://r", "lhotse"), "s3://b/x", "s3://r/b/x.idx"),
        (IndexLocation(explicit="/i/y.idx"), "s3://b/x", "/i/y.idx"),
    ],
)
def test_where_an_index_lies(location: IndexLocation, source: str, index: str) -> None:
    assert location.url_for(source) == index


def test_an_index_is_below_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="outside"):
        IndexLocation("/r", "lhotse").url_for("s3://b/../../x")
    assert ".." not in IndexLocation("/r").url_for("s3://b/../../x").split("/")
    monkeypatch.chdir("/usr")
    assert IndexLocation("r").url_for("x") == "/usr/r/file/usr/x.idx"


@given(PARTS, PARTS)
def test_no_two_sources_share_an_index(one: list[str], other: list[str]) -> None:
    location = IndexLocation("/r")
    sources = {f"s3://b/{'/'.join(parts)}" for parts in (one, other)}
    found = {location.url_for(source) for source in sources}
    assert len(found) == len(sources)
    for index in found:
        assert not {"", ".", ".."} & set(index.removeprefix("/r/s3/").split("/"))


@pytest.fixture(params=["memory", pytest.param("gcs", marks=pytest.mark.stores)])
def bucket(request: pytest.FixtureRequest) -> Place:
    return Place(f"memory://{uuid.uuid4().hex}") if request.param == "memory" else store_place(request)


@pytest.mark.parametrize("key", ["in/a//b.idx", "/b.idx", "in/a/./b.idx", "b.idx"])
def test_an_index_is_published_by_its_very_key(bucket: Place, key: str) -> None:
    """Without its empty part, the name could be the index of another source."""
    offsets = np.array([0, 5], "<u8")
    IndexLocation().publish(bucket / key, index_bytes(offsets), bucket.options)
    store = client.filesystem(bucket.url, bucket.options)
    names = [name.lstrip("/") for name in store.find(bucket.url)]  # of what is kept in memory all begin with one
    assert names == [f"{bucket.url.partition('://')[2]}/{key}"]
    IndexLocation().publish(bucket / key, index_bytes(2 * offsets), bucket.options)
    assert store.cat_file(bucket / key) == index_bytes(2 * offsets)


def test_contradictions_are_refused() -> None:
    with pytest.raises(UsageError):
        IndexLocation("/r", explicit="/x.idx")
    with pytest.raises(UsageError):
        IndexLocation(rule="flat")  # type: ignore[arg-type]


def test_an_index_is_not_older_than_it_may_be(tmp_path: Path) -> None:
    IndexLocation().publish(f"{tmp_path}/a.jsonl.idx", b"12345678", not_before_ns=2**62)
    assert (tmp_path / "a.jsonl.idx").stat().st_mtime_ns == 2**62


def test_a_read_only_folder_of_sources_says_where_else(nobody: AbstractContextManager[None]) -> None:
    with tempfile.TemporaryDirectory() as folder:  # that of a test is below one that only its owner may enter
        source = Path(folder, "a.jsonl")
        source.write_text('{"a": 1}\n', encoding="utf-8")
        listed = Source(str(source), 9, str(source.stat().st_mtime_ns))
        Path(folder).chmod(0o555)
        sources = FileSources()
        sources.type_of(listed.url)  # import the formats first; the user `nobody` may not be able to
        said = r"permission denied .* beside their sources: .* as --index-root"
        with nobody, pytest.raises(StorageError, match=said):
            sources.load_index(listed)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    tmp_path.chmod(0o555)
    location = IndexLocation(root=str(tmp_path / "root"))
    problem = rf"indexes are stored below {tmp_path}/root: give a writable folder"
    with nobody, pytest.raises(StorageError, match=problem):
        location.publish(location.url_for("/b/x.jsonl"), b"")
    tmp_path.chmod(0o755)


def test_beside_a_source_on_a_web_server_nothing_can_be_written() -> None:
    with pytest.raises(UsageError, match=r"cannot publish an output in one step.*--index-root"):
        IndexLocation().publish("http://host/a.jsonl.idx", b"")


FOREIGN = {
    "notes": b"notes",
    "numbers as text": b"0\n37\n74\n111\n148\n",
    "labels": np.array([0, 3, 1, 0, 2], "<i8").tobytes(),
    "half precision": np.linspace(0, 1, 64, dtype="<f2").tobytes(),
    "a byte": b"\0",
    "an archive": gzip.compress(b"mine" * 100),
    "zeros": bytes(64),
}


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "disk" else f"memory://index-{tmp_path.name}"


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_others_is_named_and_stays(root: str, name: str) -> None:
    source = f"{root}/a.jsonl"
    publish_bytes(source, b'{"a": 1}\n' * 100)
    publish_bytes(f"{source}.idx", FOREIGN[name])
    with pytest.raises(UsageError, match=rf"{source}\.idx: expected no file, or an index.*ledgerbeam index --force"):
        ledgerbeam.index_source(source)
    assert read_bytes(f"{source}.idx") == FOREIGN[name]
    ledgerbeam.index_source(source, force=True)
    assert len(ledgerbeam.open(source, indexed=True)) == 100


@pytest.mark.parametrize("damage", ["none", "stale", "short", "cut", "empty"])
def test_an_index_of_ours_is_replaced_stale_or_cut_short(root: str, damage: str) -> None:
    source = f"{root}/{damage}.jsonl"
    publish_bytes(source, b'{"a": 1}\n' * 100)
    whole = index_bytes(build_jsonl_index(source))
    publish_bytes(source, b'{"a": 1, "b": 2}\n' * 90)
    found = {"none": None, "stale": whole, "short": whole[:-8], "cut": whole[:-3], "empty": b""}[damage]
    if found is not None:
        publish_bytes(f"{source}.idx", found)
    ledgerbeam.index_source(source)
    assert len(ledgerbeam.open(source, indexed=True)) == 90


def test_seek_points_are_told_from_others(root: str) -> None:
    source = f"{root}/a.jsonl.gz"
    publish_bytes(source, gzip.compress(b'{"a": 1}\n' * 100))
    publish_bytes(f"{source}.gzidx", b"mine")
    with pytest.raises(UsageError, match=rf"{source}\.gzidx: expected no file"):
        ledgerbeam.index_source(source)
    assert read_bytes(f"{source}.gzidx") == b"mine"
    ledgerbeam.index_source(source, force=True)
    publish_bytes(source, gzip.compress(b'{"a": 1}\n' * 101))
    ledgerbeam.index_source(source)
    assert len(ledgerbeam.open(source, indexed=True)) == 101


def test_it_is_read_as_it_was_listed_or_not_at_all(tmp_path: Path) -> None:
    url = f"{tmp_path}/a.idx"
    write_index(url, np.array([0, 6, 13], np.uint64))
    plain = IndexFile(url, source="/in/a.cut")
    found = plain.as_listed(stat(url))
    for index in (found, pickle.loads(pickle.dumps(found))):
        assert (index.url, index.source, index.options) == (url, "/in/a.cut", None)
        assert index.load().tolist() == [0, 6, 13]
        index.close()
    again = pickle.dumps(found)
    write_index(url, np.array([0, 7, 13], np.uint64))
    os.utime(url, (1_000, 1_000))
    assert pickle.loads(pickle.dumps(plain)).load().tolist() == [0, 7, 13]
    for index in (found, pickle.loads(again)):
        with pytest.raises(ChangedSourceError, match=url):
            index.load()
