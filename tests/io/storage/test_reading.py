from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage import client, ranges, stat
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo
from tests.cases import each
from tests.conftest import S3Requests
from tests.io.conftest import Place

pytestmark = pytest.mark.usefixtures("implementation")

DATA = np.random.default_rng(7).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def source(place: Place) -> RangeReader:
    publish_bytes(place / "data.bin", DATA, place.options)
    return RangeReader(place / "data.bin", place.options)


def test_stat_tells_size_and_version(place: Place) -> None:
    url = place / "a/b.jsonl"
    publish_bytes(url, b"one", place.options)
    first = stat.stat(url, place.options)
    assert (first.url, first.size) == (url, 3)
    assert first == stat.stat(url, place.options)
    publish_bytes(url, b"two", place.options)
    second = stat.stat(url, place.options)
    assert second.version != first.version
    assert second.modified_ns >= first.modified_ns > 1_700_000_000 * 10**9


@pytest.mark.s3
def test_stat_sees_a_change_by_others_after_a_listing(s3_place: Place) -> None:
    others = {**(s3_place.options or {}), "default_fill_cache": False}  # another client, with a separate cache
    publish_bytes(s3_place / "x", b"1", s3_place.options)
    client.filesystem(s3_place.url, s3_place.options).ls(s3_place.url)
    publish_bytes(s3_place / "x", b"12", others)
    assert stat.stat(s3_place / "x", s3_place.options).size == 2


def test_what_is_missing_is_named(place: Place) -> None:
    url = place / "nothing.jsonl"
    for ask in (
        lambda: stat.stat(url, place.options),
        lambda: RangeReader(url, place.options).read(0, 1),
        lambda: RangeReader(url, place.options).size,
        lambda: storage.read_bytes(url, place.options),
    ):
        with pytest.raises(SourceNotFoundError, match=r"nothing\.jsonl"):
            ask()
    storage.delete(url, place.options)


def test_a_folder_is_no_source(place: Place) -> None:
    publish_bytes(place / "folder/x.jsonl", b"", place.options)
    with pytest.raises(UsageError, match="folder: expected a file, found a folder"):
        stat.stat(place / "folder", place.options)


def test_ranges_are_exact(source: RangeReader) -> None:
    assert source.size == len(DATA)
    assert source.read(0, len(DATA)) == DATA
    assert source.read(17, 4242) == DATA[17:4242]
    assert source.read(5, 5) == b""
    assert source.read(len(DATA), len(DATA)) == b""


def test_many_ranges_come_in_the_order_asked(source: RangeReader) -> None:
    random = np.random.default_rng(1)
    starts = random.integers(0, len(DATA) - 900, 500)
    stops = starts + random.integers(0, 900, 500)
    expected = [DATA[a:b] for a, b in zip(starts, stops, strict=True)]
    assert source.read_many(starts, stops) == expected
    assert source.read_many(starts.tolist(), stops.tolist(), max_request=2000) == expected
    assert source.read_many([], []) == []
    end = len(DATA)
    assert source.read_many([0, end + 9], [end, end + 9]) == [DATA, b""]


def test_a_source_that_was_cut_is_a_change_not_a_short_record(place: Place, source: RangeReader) -> None:
    assert source.size == len(DATA)
    publish_bytes(source.url, DATA[:1000], place.options)
    fresh = RangeReader(source.url, place.options, size=len(DATA))
    for start in (990, 1000, 200_000):
        with pytest.raises(ChangedSourceError, match=r"data\.bin.*ends at 1000"):
            fresh.read(start, start + 20)
    with pytest.raises(ChangedSourceError, match="ends at 1000"):
        fresh.read_many([0, 200_000], [5, 200_010])


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3)])
def test_a_range_that_means_nothing_is_refused(source: RangeReader, start: int, stop: int) -> None:
    with pytest.raises(UsageError, match="not a range"):
        source.read(start, stop)
    with pytest.raises(UsageError, match="not a range"):
        source.read_many([0, start], [1, stop])


@pytest.mark.slow
def test_a_reader_survives_pickle_close_and_threads(source: RangeReader) -> None:
    assert source.read(0, 4) == DATA[:4]
    copy: RangeReader = pickle.loads(pickle.dumps(source))
    source.close()
    source.close()
    with copy, source, ThreadPoolExecutor(8) as pool:
        spans = [(i * 997 % 290_000, i * 997 % 290_000 + 100) for i in range(200)]
        for reader in (copy, source):
            assert list(pool.map(lambda span: reader.read(*span), spans)) == [DATA[a:b] for a, b in spans]  # noqa: B023


def _read_in_child(reader: RangeReader, answers: Any) -> None:
    answers.put(reader.read(100, 200))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_reader_survives_a_fork(source: RangeReader) -> None:
    assert source.read(0, 4) == DATA[:4]  # the descriptor or the connections are open when the fork comes
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(source, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == DATA[100:200]
    assert source.read(4, 8) == DATA[4:8]


def test_whole_files_are_read_together(place: Place) -> None:
    contents = [b"", b"a", b"bb" * 1000, b""]
    urls = [place / f"{i}.jsonl" for i in range(len(contents))]
    for url, content in zip(urls, contents, strict=True):
        publish_bytes(url, content, place.options)
    assert storage.read_many_files(urls, place.options) == contents
    assert storage.read_many_files([], place.options) == []
    with pytest.raises(SourceNotFoundError, match="missing"):
        storage.read_many_files([*urls, place / "missing"], place.options)


def test_many_descriptions_come_in_order(place: Place) -> None:
    urls = [place / f"{i}.jsonl" for i in range(40)]
    for i, url in enumerate(urls):
        publish_bytes(url, b"x" * i, place.options)
    infos = stat.stat_many(urls, place.options)
    assert [(info.url, info.size) for info in infos] == [(url, i) for i, url in enumerate(urls)]


def test_delete_deletes(place: Place) -> None:
    publish_bytes(place / "x", b"1", place.options)
    storage.delete(place / "x", place.options)
    with pytest.raises(SourceNotFoundError):
        stat.stat(place / "x", place.options)


def test_an_object_that_may_not_be_there_is_described_as_any(place: Place) -> None:
    publish_bytes(place / "x", b"1", place.options)
    found, other = stat.stat_object(place / "x", place.options), stat.stat(place / "x", place.options)
    assert (found, found.modified_ns) == (other, other.modified_ns)
    for name in ("missing", "folder/missing"):
        with pytest.raises(SourceNotFoundError, match="missing"):
            stat.stat_object(place / name, place.options)


@pytest.mark.s3
def test_what_is_not_there_takes_one_request(s3_place: Place, s3_requests: S3Requests) -> None:
    with pytest.raises(SourceNotFoundError):
        stat.stat_object(s3_place / "missing.idx", s3_place.options)
    assert s3_requests.take() == ["head_object"]


@pytest.mark.s3
def test_neighbours_on_s3_share_requests(s3_place: Place, s3_requests: S3Requests) -> None:
    url = s3_place / "data.bin"
    publish_bytes(url, DATA, s3_place.options)
    starts = list(range(0, 100_000, 100))
    s3_requests.take()
    reader = RangeReader(url, s3_place.options, size=len(DATA))
    assert reader.read_many(starts, [start + 60 for start in starts]) == [DATA[s : s + 60] for s in starts]
    assert s3_requests.take() == ["get_object"]
    reader.read_many([0, 200_000], [10, 200_010])
    assert s3_requests.take() == ["get_object"] * 2
    reader.read(0, 200_000)
    assert s3_requests.take() == ["get_object"]
    storage.read_bytes(url, s3_place.options)
    assert s3_requests.take() == ["get_object"]
    found = stat.stat(url, s3_place.options)
    assert s3_requests.take() == ["head_object"]
    assert stat.stat_object(url, s3_place.options) == found
    assert s3_requests.take() == ["head_object"]


def test_nothing_is_opened_before_the_first_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    before = len(os.listdir("/proc/self/fd"))
    readers = [RangeReader(str(path)) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before
    for reader in readers:
        reader.read(0, 1)
    assert len(os.listdir("/proc/self/fd")) == before + 10
    del readers, reader
    assert len(os.listdir("/proc/self/fd")) == before


def test_local_path_is_for_local_sources(tmp_path: Path) -> None:
    assert RangeReader(f"file://{tmp_path}/x").local_path == f"{tmp_path}/x"
    assert RangeReader("memory://b/x").local_path is None


def test_missing_permission_says_so(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    path.chmod(0)
    with nobody:
        for ask in (lambda: RangeReader(str(path)).read(0, 1), lambda: storage.read_bytes(str(path))):
            with pytest.raises(StorageError, match="permission"):
                ask()


@pytest.mark.s3
@pytest.mark.minio("checks no signatures")
def test_wrong_credentials_say_so(s3_place: Place) -> None:
    wrong = {**(s3_place.options or {}), "secret": "wrong-secret"}
    with pytest.raises(StorageError, match="credentials"):
        stat.stat(s3_place / "x", wrong)


@each(
    ("info", "version"),
    [
        ({"size": 1, "ETag": '"abc"'}, "abc"),
        ({"size": 1, "etag": "CJ=", "generation": "17"}, "17"),
        ({"size": 1, "mtime": 1.5}, "1500000000-1"),
        ({"size": 1, "updated": "2024-01-02T03:04:05.006+00:00"}, "1704164645006000000-1"),
    ],
)
def test_versions_of_other_stores(info: dict[str, Any], version: str) -> None:
    assert stat.info_of("gs://b/k", info) == FileInfo("gs://b/k", 1, version)


def test_a_store_that_tells_no_version_is_refused() -> None:
    with pytest.raises(StorageError, match="could not be detected"):
        stat.info_of("x://b/k", {"size": 1})


@given(
    ranges=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=30),
    gap=st.integers(0, 50),
    most=st.integers(1, 200),
)
def test_merging_never_changes_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    size = max((start + length for start, length in ranges if length), default=0)  # empty ranges may be after the end
    for url in ("memory://merging/x", f"{tmp_path_factory.getbasetemp()}/merging"):
        publish_bytes(url, DATA[:size])
        with RangeReader(url) as reader:
            for asked in (ranges, sorted(ranges)):
                starts = [start for start, _ in asked]
                stops = [start + length for start, length in asked]
                expected = [DATA[a:b] for a, b in zip(starts, stops, strict=True)]
                assert reader.read_many(starts, stops, gap=gap, max_request=most) == expected


def test_of_two_threads_that_open_a_file_one_closes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    reader = RangeReader(str(path))
    before = len(os.listdir("/proc/self/fd"))
    opened = stat.open_descriptor

    def late(*arguments: Any) -> int:
        reader._handle["fd"] = opened(*arguments)  # of the thread that was first
        return opened(*arguments)

    monkeypatch.setattr(ranges, "open_descriptor", late)
    assert reader.read(5, 9) == DATA[5:9]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before
