"""Which requests a reader makes of a store for the ranges that it is asked for, and what it makes of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import ChangedSourceError, UsageError
from ledgerbeam.io.storage import ranges
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

DATA = bytes(range(200))
URL = "sftp://host/data.bin"


class Store:
    """A store that notes which ranges it is asked for."""

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
    assert near.read_near(300, 400) == near.read_near(5, 5) == b""
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
