"""Requests of a reader for ranges, and its results."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import ChangedSourceError, StorageError, UsageError
from ledgerbeam.io import native
from ledgerbeam.io.storage import ranges
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_descriptor, stat

DATA = bytes(range(200))
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


@pytest.fixture(params=["local", "store"])
def reader(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> RangeReader:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return RangeReader(str(path)) if request.param == "local" else RangeReader(URL, size=len(DATA))


def test_a_range_may_end_behind_the_source(reader: RangeReader) -> None:
    assert reader.read_near(0, 5) == DATA[:5]
    assert reader.read_near(190, 300) == DATA[190:]
    assert reader.read_near(0, 0) == reader.read_near(200, 300) == reader.read_near(7, 7) == b""
    for start, stop in ((5, 4), (-1, 4), (-2, -1)):
        with pytest.raises(UsageError, match="is not a range"):
            reader.read_near(start, stop)


def test_what_is_known_of_a_source_is_not_asked(store: Store) -> None:
    assert RangeReader(URL, size=7).size == 7
    assert RangeReader(URL, size=7, listed=FileInfo(URL, 9, "v1")).size == 9
    near = RangeReader(URL, size=len(DATA))
    assert near.read_near(300, 400) == near.read_near(5, 5) == near.read(7, 7) == b""
    near.read_near(190, 400)
    assert store.asked == [(190, 200)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(0, 60)]),
        ({"gap": 9}, [(0, 20), (30, 40), (50, 60)]),
        ({"gap": 10}, [(0, 60)]),
        ({"max_request": 40}, [(0, 40), (50, 60)]),
        ({"max_request": 39}, [(0, 20), (30, 60)]),
        ({"max_request": 1}, [(0, 10), (10, 20), (30, 40), (50, 60)]),
    ],
)
def test_ranges_that_are_close_share_requests(
    store: Store, options: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    asked = [(30, 40), (0, 10), (10, 20), (50, 60), (70, 70)]
    starts, stops = zip(*asked, strict=True)
    for read in (RangeReader(URL).read_many, RangeReader(URL).iterate_many):
        store.asked = []
        assert [*read(starts, stops, **options)] == [DATA[start:stop] for start, stop in asked]
        assert store.asked == expected


def test_a_store_that_has_less_than_it_had_has_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "stat", lambda *_: FileInfo(URL, 200, "v1"))
    reader = RangeReader(URL)
    for read in (lambda: reader.read(190, 210), lambda: reader.read_many([0, 190], [5, 210], gap=0)):
        with pytest.raises(ChangedSourceError, match="the source now ends at 200"):
            read()
    assert reader.read(0, 0) == b""
    assert [*reader.blocks(90)] == [DATA[:90], DATA[90:180], DATA[180:]]
    assert [*reader.blocks(90, start=50, stop=150)] == [DATA[50:140], DATA[140:150]]
    assert [*reader.blocks(90, 2, start=195)] == [DATA[195:]]


def test_a_store_that_returns_less_than_it_has_is_not_taken_for_one_that_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "stat", lambda *_: FileInfo(URL, 210, "v1"))
    with pytest.raises(
        StorageError, match=r"expected 20 bytes at \[190, 210\), found 10, although .* has 210 bytes"
    ) as found:
        RangeReader(URL).read(190, 210)
    assert not isinstance(found.value, ChangedSourceError)


class Refused(Exception):  # noqa: N818 - of a client
    """A response to a range after the end."""

    response = SimpleNamespace(status_code=416, headers={})


def test_of_several_ranges_the_one_behind_the_end_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def cat_ranges(urls: list[str], starts: list[int], stops: list[int], **_: Any) -> list[bytes | Exception]:
        return [DATA[a:b] if a < len(DATA) else Refused() for a, b in zip(starts, stops, strict=True)]

    monkeypatch.setattr(store, "cat_ranges", cat_ranges)
    monkeypatch.setattr(ranges, "stat", lambda *_: FileInfo(URL, len(DATA), "v1"))
    with pytest.raises(ChangedSourceError, match=r"at \[300, 310\), found 0; the source now ends at 200"):
        RangeReader(URL).read_many([0, 300, 190], [5, 310, 200], gap=0)


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(0, 60)]),
        ({"gap": 9}, [(0, 20), (30, 40), (50, 60)]),
        ({"gap": 10}, [(0, 60)]),
        ({"gap": -1}, [(0, 10), (10, 20), (30, 40), (50, 60)]),
        ({"max_request": 40}, [(0, 40), (50, 60)]),
        ({"max_request": 30}, [(0, 20), (30, 60)]),
        ({"max_request": 1}, [(0, 10), (10, 20), (30, 40), (50, 60)]),
    ],
)
def test_ranges_of_a_file_that_follow_each_other_are_read_at_once(
    tmp_path: Path, read_calls: list[tuple[int, int]], options: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    (tmp_path / "data").write_bytes(DATA)
    asked = [(0, 10), (10, 20), (30, 40), (50, 60)]
    starts, stops = zip(*asked, strict=True)
    with RangeReader(str(tmp_path / "data")) as reader:
        reader.read(0, 1)  # it is open
        for _ in range(2):
            read_calls.clear()
            assert reader.read_many(starts, stops, **options) == [DATA[start:stop] for start, stop in asked]
            assert read_calls == expected
        read_calls.clear()
        assert reader.read_many([5, 5, 3, 9], [8, 9, 7, 9]) == [DATA[5:8], DATA[5:9], DATA[3:7], b""]
        assert read_calls[:2] == [(5, 9), (3, 7)]
        assert reader.read_many([], []) == []


@pytest.mark.parametrize("gap", [0, 2])
def test_any_three_ranges_are_read_together_as_each_by_itself(reader: RangeReader, gap: int) -> None:
    every = [(start, stop) for start in range(0, 9, 2) for stop in range(start, 9, 2)]
    for asked in product(every, repeat=3):
        starts, stops = zip(*asked, strict=True)
        found = reader.read_many(starts, stops, gap=gap, max_request=5)
        assert found == [DATA[start:stop] for start, stop in asked], asked
    reader.close()


def test_a_file_that_is_read_in_small_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(DATA)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: pread(descriptor, min(size, 1 + start % 4), start))
    with RangeReader(str(tmp_path / "data")) as reader:
        assert reader.read(0, 10) == DATA[:10]
        assert reader.read(5, 200) == DATA[5:]
        assert reader.read_near(195, 300) == DATA[195:]
        assert reader.read_many([7, 100], [11, 107]) == [DATA[7:11], DATA[100:107]]


@pytest.mark.timeout(30)
def test_a_file_that_ends_early_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was truncated after its size was read."""
    (tmp_path / "data").write_bytes(DATA)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: pread(descriptor, size, start)[: 10 - start])
    with RangeReader(str(tmp_path / "data")) as reader:
        assert reader.read_near(4, 100) == DATA[4:10]
        with pytest.raises(StorageError, match=r"expected 100 bytes at \[4, 104\), found 6, although"):
            reader.read(4, 104)


def test_what_is_open_is_read_though_its_name_is_gone(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    with RangeReader(str(tmp_path / "data")) as reader:
        reader.read(0, 1)
        (tmp_path / "data").unlink()
        assert reader.read_near(190, 300) == DATA[190:]
        assert reader.read(3, 9) == DATA[3:9]


def test_of_two_threads_that_open_a_file_at_once_one_closes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_bytes(DATA)
    reader = RangeReader(str(tmp_path / "data"))

    def open_second(*args: Any) -> int:
        monkeypatch.setattr(ranges, "open_descriptor", open_descriptor)
        assert reader.read(0, 1) == DATA[:1]  # as another thread does meanwhile
        return open_descriptor(*args)

    monkeypatch.setattr(ranges, "open_descriptor", open_second)
    before = len(os.listdir("/proc/self/fd"))
    assert reader.read(1, 2) == DATA[1:2]
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_range_that_no_memory_holds_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    with RangeReader(str(tmp_path / "data")) as reader:
        for stop in (201, 2**40, 2**62):
            for read in (lambda stop=stop: reader.read(0, stop), lambda stop=stop: reader.read_many([0], [stop])):
                with pytest.raises(ChangedSourceError, match="found 200"):
                    read()
            assert reader.read_near(3, stop) == DATA[3:]


def test_what_the_system_refuses_to_read_of_an_open_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_bytes(DATA)

    def refused(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with RangeReader(str(tmp_path / "data")) as reader:
        assert reader.read(0, 1) == DATA[:1]  # it is open
        assert reader.read_near(2**63, 2**63 + 1) == b""
        monkeypatch.setattr(os, "pread", refused)
        for read in (reader.read, reader.read_near):
            with pytest.raises(StorageError, match=r"data: .*Input/output error"):
                read(0, 5)


def test_what_means_nothing_in_an_open_file_is_told_as_in_any(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    reader = RangeReader(str(tmp_path / "data"))
    for _ in range(2):
        for start, stop in ((-1, 3), (-1, -1), (4, 3)):
            with pytest.raises(UsageError, match=rf"\[{start}, {stop}\) is not a range"):
                reader.read(start, stop)
        with pytest.raises(ChangedSourceError, match="the source now ends at 200"):
            reader.read(2**63, 2**63 + 1)
        reader.read(0, 1)  # it is open
    reader.close()


def test_before_a_source_is_open_no_other_file_of_the_process_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    (tmp_path / "other").write_bytes(b"x" * len(DATA))
    script = (
        "import sys; from ledgerbeam.io.storage.ranges import RangeReader\n"
        "sys.stderr.buffer.write(b''.join(RangeReader(sys.argv[1]).read_many([5, 150], [9, 152], gap=0)))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    with open(tmp_path / "other", "r+b") as other:
        found = subprocess.run(command, check=True, stdin=other, stdout=other, stderr=subprocess.PIPE, timeout=60)
    assert found.stderr == DATA[5:9] + DATA[150:152]


def test_a_reader_is_closed_behind_its_block_and_reads_on(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    before = len(os.listdir("/proc/self/fd"))
    with RangeReader(str(tmp_path / "data")) as reader:
        assert reader.read(0, 5) == DATA[:5]
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert reader.read(5, 9) == DATA[5:9]
    reader.close()


def test_lines_that_lie_apart_are_read_by_the_compiled_module_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.compiled is None:
        pytest.skip("there is no compiled module")
    lines = [b"%d" % number * 3000 + b"\n" for number in range(9)]
    (tmp_path / "data").write_bytes(b"".join(lines))
    ends = np.cumsum([len(line) for line in lines]).astype(np.uint64)
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


def test_lines_end_before_a_range_that_is_not_one_line(tmp_path: Path) -> None:
    if native.compiled is None:
        pytest.skip("there is no compiled module")
    lines = [b"%d" % number * 9000 + b"\n" for number in range(9)]
    (tmp_path / "data").write_bytes(b"".join(lines))
    ends = np.cumsum([len(line) for line in lines]).astype(np.uint64)
    starts, stops = ends[:-1][::2].copy(), ends[1:][::2].copy()
    stops[2] += np.uint64(5)
    with RangeReader(str(tmp_path / "data")) as reader:
        found = [some for some, _ in islice(reader.iterate_lines(starts, stops), 9)]
    assert found == [[b"\n" + lines[1], b"\n" + lines[3]]]


def test_a_name_that_no_file_can_have_is_told() -> None:
    with pytest.raises(StorageError, match="no file can have this name"):
        stat("/a\0b")
    for read in (RangeReader("/a\0b").read, RangeReader("/a\0b").read_near):
        with pytest.raises(StorageError, match="no file can have this name"):
            read(0, 1)
