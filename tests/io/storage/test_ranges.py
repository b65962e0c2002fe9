"""Ranges of sources: their bytes, the requests for them, and errors."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, StorageError, UsageError
from ledgerbeam.io import native
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage import ranges
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_descriptor, stat, stat_object
from tests.cases import each
from tests.conftest import S3Requests
from tests.io.conftest import Place

DATA = bytes(range(200))
LARGE = np.random.default_rng(7).integers(0, 256, 300_000, np.uint8).tobytes()
URL = "sftp://host/data.bin"


class Store:
    """A store that records the requested ranges."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def cat_file(self, url: str, *, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        return DATA[start:end]

    def cat_ranges(self, urls: list[str], starts: list[int], stops: list[int], **_: Any) -> list[bytes]:
        return [self.cat_file(url, start=start, end=stop) for url, start, stop in zip(urls, starts, stops, strict=True)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(ranges, "filesystem", lambda *_: made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A local file of `DATA`."""
    (tmp_path / "data").write_bytes(DATA)
    return str(tmp_path / "data")


@pytest.fixture
def source(place: Place) -> RangeReader:
    """A reader of `LARGE`, of each kind of store in turn."""
    publish_bytes(place / "data.bin", LARGE, place.options)
    return RangeReader(place / "data.bin", place.options)


def test_ranges_are_exact(source: RangeReader) -> None:
    end = len(LARGE)
    assert source.size == end
    for start, stop in ((0, end), (17, 4242), (5, 5), (end, end)):
        assert source.read(start, stop) == LARGE[start:stop]
    for start, stop in ((0, 5), (end - 10, end + 100), (0, 0), (end, end + 100), (7, 7)):
        assert source.read_near(start, stop) == LARGE[start:stop]
    assert [*source.blocks(90_000)] == [LARGE[at : at + 90_000] for at in range(0, end, 90_000)]
    assert [*source.blocks(90, start=50, stop=150)] == [LARGE[50:140], LARGE[140:150]]
    assert [*source.blocks(90, 2, start=end - 5)] == [LARGE[-5:]]


def test_many_ranges_come_in_the_order_asked(source: RangeReader) -> None:
    random = np.random.default_rng(1)
    starts = random.integers(0, len(LARGE) - 900, 500)
    stops = starts + random.integers(0, 900, 500)
    expected = [LARGE[a:b] for a, b in zip(starts, stops, strict=True)]
    assert source.read_many(starts, stops) == expected
    assert source.read_many(starts.tolist(), stops.tolist(), max_request=2000) == expected
    assert source.read_many([], []) == []
    end = len(LARGE)
    assert source.read_many([0, end + 9], [end, end + 9]) == [LARGE, b""]


def test_a_source_that_was_cut_is_a_change_not_a_short_record(place: Place, source: RangeReader) -> None:
    publish_bytes(source.url, LARGE[:1000], place.options)
    fresh = RangeReader(source.url, place.options, size=len(LARGE))
    for start in (990, 1000, 200_000):
        with pytest.raises(ChangedSourceError, match=r"data\.bin.*ends at 1000"):
            fresh.read(start, start + 20)
    for found, start in ((10, 990), (0, 200_000)):
        problem = rf"at \[{start}, {start + 20}\), found {found}; the source now ends at 1000"
        with pytest.raises(ChangedSourceError, match=problem):
            fresh.read_many([0, start], [5, start + 20], gap=0)


def test_a_range_that_means_nothing_is_refused(source: RangeReader) -> None:
    for _ in range(2):
        for start, stop in ((-1, 3), (-1, -1), (4, 3)):
            for read in (
                source.read,
                source.read_near,
                lambda *bounds: source.read_many(*zip((0, 1), bounds, strict=True)),
            ):
                with pytest.raises(UsageError, match=rf"\[{start}, {stop}\) is not a range"):
                    read(start, stop)
        source.read(0, 1)  # a local source is open now


@pytest.mark.slow
def test_a_reader_survives_pickle_close_and_threads(source: RangeReader) -> None:
    assert source.read(0, 4) == LARGE[:4]
    copy: RangeReader = pickle.loads(pickle.dumps(source))
    source.close()
    source.close()
    with copy, source, ThreadPoolExecutor(8) as pool:
        spans = [(i * 997 % 290_000, i * 997 % 290_000 + 100) for i in range(200)]
        for reader in (copy, source):
            assert list(pool.map(lambda span: reader.read(*span), spans)) == [LARGE[a:b] for a, b in spans]  # noqa: B023


def _read_in_child(reader: RangeReader, answers: Any) -> None:
    answers.put(reader.read(100, 200))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_reader_survives_a_fork(source: RangeReader) -> None:
    assert source.read(0, 4) == LARGE[:4]  # the descriptor or the connections are open when the fork comes
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(source, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == LARGE[100:200]
    assert source.read(4, 8) == LARGE[4:8]


@pytest.mark.s3
def test_neighbours_on_s3_share_requests(s3_place: Place, s3_requests: S3Requests) -> None:
    url = s3_place / "data.bin"
    publish_bytes(url, LARGE, s3_place.options)
    starts = list(range(0, 100_000, 100))
    s3_requests.take()
    reader = RangeReader(url, s3_place.options, size=len(LARGE))
    assert reader.read_many(starts, [start + 60 for start in starts]) == [LARGE[s : s + 60] for s in starts]
    assert s3_requests.take() == ["get_object"]
    reader.read_many([0, 200_000], [10, 200_010])
    assert s3_requests.take() == ["get_object"] * 2
    reader.read(0, 200_000)
    assert s3_requests.take() == ["get_object"]
    storage.read_bytes(url, s3_place.options)
    assert s3_requests.take() == ["get_object"]
    found = stat(url, s3_place.options)
    assert s3_requests.take() == ["head_object"]
    assert stat_object(url, s3_place.options) == found
    assert s3_requests.take() == ["head_object"]


@given(
    spans=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=30),
    gap=st.integers(0, 50),
    most=st.integers(1, 200),
)
def test_merging_never_changes_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]], gap: int, most: int
) -> None:
    size = max((start + length for start, length in spans if length), default=0)  # empty ranges may be after the end
    for url in ("memory://merging/x", f"{tmp_path_factory.getbasetemp()}/merging"):
        publish_bytes(url, LARGE[:size])
        with RangeReader(url) as reader:
            for asked in (spans, sorted(spans)):
                starts = [start for start, _ in asked]
                stops = [start + length for start, length in asked]
                expected = [LARGE[a:b] for a, b in zip(starts, stops, strict=True)]
                assert reader.read_many(starts, stops, gap=gap, max_request=most) == expected


def test_what_is_known_of_a_source_is_not_asked(store: Store) -> None:
    assert RangeReader(URL, size=7).size == 7
    assert RangeReader(URL, size=7, listed=FileInfo(URL, 9, "v1")).size == 9
    near = RangeReader(URL, size=len(DATA))
    assert near.read_near(300, 400) == near.read_near(5, 5) == near.read(7, 7) == b""
    near.read_near(190, 400)
    assert store.asked == [(190, 200)]


@each(
    ("options", "expected"),
    [
        ({}, [(0, 60)]),
        ({"gap": 9}, [(0, 20), (30, 40), (50, 60)]),
        ({"gap": 10}, [(0, 60)]),
        ({"gap": -1}, [(0, 10), (10, 20), (30, 40), (50, 60)]),
        ({"max_request": 40}, [(0, 40), (50, 60)]),
        ({"max_request": 39}, [(0, 20), (30, 60)]),
        ({"max_request": 30}, [(0, 20), (30, 60)]),
        ({"max_request": 1}, [(0, 10), (10, 20), (30, 40), (50, 60)]),
    ],
)
def test_ranges_that_are_close_share_requests(
    store: Store, path: str, read_calls: list[tuple[int, int]], options: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    ordered = [(0, 10), (10, 20), (30, 40), (50, 60)]
    with RangeReader(path) as local:
        local.read(0, 1)  # it is open
        for reader, asked, requests in (
            (local, ordered, read_calls),  # only ranges that follow each other
            (RangeReader(URL), [ordered[2], *ordered[:2], ordered[3], (70, 70)], store.asked),
        ):
            starts, stops = zip(*asked, strict=True)
            for read in (reader.read_many, reader.iterate_many):
                requests.clear()
                assert [*read(starts, stops, **options)] == [DATA[start:stop] for start, stop in asked]
                assert requests == expected


def test_ranges_of_a_file_that_overlap_are_read_at_once(path: str, read_calls: list[tuple[int, int]]) -> None:
    with RangeReader(path) as reader:
        reader.read(0, 1)  # it is open
        read_calls.clear()
        assert reader.read_many([5, 5, 3, 9], [8, 9, 7, 9]) == [DATA[5:8], DATA[5:9], DATA[3:7], b""]
        assert read_calls[:2] == [(5, 9), (3, 7)]
        assert reader.read_many([], []) == []


@pytest.mark.usefixtures("store")
def test_a_store_that_returns_less_than_it_has_is_not_taken_for_one_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "stat", lambda *_: FileInfo(URL, 210, "v1"))
    problem = r"expected 20 bytes at \[190, 210\), found 10, although .* has 210 bytes"
    with pytest.raises(StorageError, match=problem) as found:
        RangeReader(URL).read(190, 210)
    assert not isinstance(found.value, ChangedSourceError)


@pytest.fixture
def read_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that were read: start and stop."""
    calls: list[tuple[int, int]] = []
    pread = os.pread

    def noted(descriptor: int, size: int, start: int) -> bytes:
        calls.append((start, start + size))
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", noted)
    return calls


def test_a_file_that_is_read_in_small_pieces_is_whole(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: pread(descriptor, min(size, 1 + start % 4), start))
    with RangeReader(path) as reader:
        assert reader.read(0, 10) == DATA[:10]
        assert reader.read(5, 200) == DATA[5:]
        assert reader.read_near(195, 300) == DATA[195:]
        assert reader.read_many([7, 100], [11, 107]) == [DATA[7:11], DATA[100:107]]


@pytest.mark.timeout(30)
def test_a_file_that_ends_early_while_it_is_read_is_read_to_its_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was truncated after its size was read."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: pread(descriptor, size, start)[: 10 - start])
    with RangeReader(path) as reader:
        assert reader.read_near(4, 100) == DATA[4:10]
        with pytest.raises(StorageError, match=r"expected 100 bytes at \[4, 104\), found 6, although"):
            reader.read(4, 104)


def test_a_file_is_open_from_the_first_read_to_the_end_of_the_reader(path: str) -> None:
    before = open_files()
    readers = [RangeReader(path) for _ in range(10)]
    assert open_files() == before
    for reader in readers:
        reader.read(0, 1)
    assert open_files() == before + 10
    del readers, reader
    assert open_files() == before
    with RangeReader(path) as reader:
        assert reader.read(0, 5) == DATA[:5]
    assert open_files() == before
    assert reader.read(5, 9) == DATA[5:9]  # open again
    os.unlink(path)
    assert reader.read_near(190, 300) == DATA[190:]
    reader.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_of_two_threads_that_open_a_file_at_once_one_closes_it_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RangeReader(path)

    def open_second(*args: Any) -> int:
        monkeypatch.setattr(ranges, "open_descriptor", open_descriptor)
        assert reader.read(0, 1) == DATA[:1]  # as another thread does meanwhile
        return open_descriptor(*args)

    monkeypatch.setattr(ranges, "open_descriptor", open_second)
    before = open_files()
    assert reader.read(1, 2) == DATA[1:2]
    reader.close()
    assert open_files() == before


def test_a_range_that_no_memory_holds_is_a_change(path: str) -> None:
    with RangeReader(path) as reader:
        for stop in (201, 2**40, 2**62):
            for read in (lambda stop=stop: reader.read(0, stop), lambda stop=stop: reader.read_many([0], [stop])):
                with pytest.raises(ChangedSourceError, match="found 200"):
                    read()
            assert reader.read_near(3, stop) == DATA[3:]
        with pytest.raises(ChangedSourceError, match="the source now ends at 200"):
            reader.read(2**63, 2**63 + 1)


def test_what_the_system_refuses_to_read_of_an_open_file_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with RangeReader(path) as reader:
        assert reader.read(0, 1) == DATA[:1]  # it is open
        assert reader.read_near(2**63, 2**63 + 1) == b""
        monkeypatch.setattr(os, "pread", refused)
        for read in (reader.read, reader.read_near):
            with pytest.raises(StorageError, match=r"data: .*Input/output error"):
                read(0, 5)


def test_before_a_source_is_open_no_other_file_of_the_process_is_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * len(DATA))
    script = (
        "import sys; from ledgerbeam.io.storage.ranges import RangeReader\n"
        "sys.stderr.buffer.write(b''.join(RangeReader(sys.argv[1]).read_many([5, 150], [9, 152], gap=0)))"
    )
    command = [sys.executable, "-c", script, path]
    with open(tmp_path / "other", "r+b") as other:
        found = subprocess.run(command, check=True, stdin=other, stdout=other, stderr=subprocess.PIPE, timeout=60)
    assert found.stderr == DATA[5:9] + DATA[150:152]


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    """The lines of a local file."""
    if native.compiled is None:
        pytest.skip("there is no compiled module")
    found = [b"%d" % number * 9000 + b"\n" for number in range(9)]
    (tmp_path / "data").write_bytes(b"".join(found))
    return found


def ends_of(lines: list[bytes]) -> np.ndarray:
    return np.cumsum([len(line) for line in lines]).astype(np.uint64)


def test_lines_that_lie_apart_are_read_by_the_compiled_module_alone(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = ends_of(lines)
    apart, near = (ends[:-1][::3], ends[1:][::3]), (ends[:-1], ends[1:])
    reader = RangeReader(str(tmp_path / "data"))

    def read(of: RangeReader, bounds: tuple[Any, Any]) -> list[bytes]:
        return [line for some, _ in of.iterate_lines(*bounds) for line in some]

    assert read(reader, apart) == [b"\n" + line for line in lines[1::3]]  # each with the newline before it
    assert read(reader, near) == []
    assert read(RangeReader(URL), apart) == []
    for name in ("gone", "no\0name"):
        assert read(RangeReader(str(tmp_path / name)), apart) == []
    (tmp_path / "sftp:/host").mkdir(parents=True)
    (tmp_path / "sftp:/host/data.bin").write_bytes(b"".join(lines))
    monkeypatch.chdir(tmp_path)
    assert read(RangeReader(URL), apart) == [], "a file whose path looks like the URL is another"
    monkeypatch.setattr(native, "compiled", None)
    assert read(reader, apart) == []
    reader.close()


def test_lines_end_before_a_range_that_is_not_one_line(tmp_path: Path, lines: list[bytes]) -> None:
    ends = ends_of(lines)
    starts, stops = ends[:-1][::2].copy(), ends[1:][::2].copy()
    stops[2] += np.uint64(5)
    with RangeReader(str(tmp_path / "data")) as reader:
        found = [some for some, _ in islice(reader.iterate_lines(starts, stops), 9)]
    assert found == [[b"\n" + lines[1], b"\n" + lines[3]]]


def test_a_name_that_no_file_can_have_is_told() -> None:
    reader = RangeReader("/a\0b")
    for ask in (lambda: stat("/a\0b"), lambda: reader.read(0, 1), lambda: reader.read_near(0, 1)):
        with pytest.raises(StorageError, match="no file can have this name"):
            ask()


def test_local_path_is_for_local_sources(tmp_path: Path) -> None:
    assert RangeReader(f"file://{tmp_path}/x").local_path == f"{tmp_path}/x"
    assert RangeReader("memory://b/x").local_path is None
