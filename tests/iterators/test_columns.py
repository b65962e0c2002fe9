"""The leaf over columnar files: requests to a store, memory, and the data of its states."""

from __future__ import annotations

import json
import pickle
import random
import tracemalloc
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ledgerbeam.errors import CheckpointMismatchError, SourceError, UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.columns.files import ColumnFiles
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.iterators import Batches, GlobalShuffle, IndexedParquet, Map, merge_states
from tests.io.columns.tables import arrow_bytes, parquet_bytes
from tests.iterators import data
from tests.iterators.data import rows_table, write_rows
from tests.servers.s3_proxy import S3Proxy
from tests.servers.web import WebServer, web_server

FILES, ROWS, GROUP = 3, 4_000, 250
GROUPS = FILES * ROWS // GROUP


@cache
def tables() -> list[pa.Table]:
    chance = np.random.default_rng(1)
    found = []
    for file in range(FILES):
        others, texts = chance.integers(0, 2**62, ROWS), [chance.bytes(30).hex() for _ in range(ROWS)]
        found.append(pa.table({"n": np.arange(file * ROWS, (file + 1) * ROWS), "other": others, "text": texts}))
    return found


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as found:
        yield found


@pytest.fixture
def urls(web: WebServer) -> list[str]:
    """Two Parquet files and an Arrow file."""
    first, second, third = tables()
    web.files = {
        "a.parquet": parquet_bytes(first, row_group_size=GROUP),
        "b.arrow": arrow_bytes(second, GROUP),
        "c.parquet": parquet_bytes(third, row_group_size=GROUP),
    }
    return [f"{web.url}/{name}" for name in web.files]


def gets(web: WebServer) -> list[tuple[int, int]]:
    """Return the requested ranges, and clear the list."""
    spans = [span.removeprefix("bytes=").split("-") for method, span in web.asked if method == "GET" and span]
    web.asked.clear()
    return [(int(start), int(stop) + 1) for start, stop in spans]


def size(spans: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in spans)


def test_rows_of_several_files_have_one_number_each(urls: list[str]) -> None:
    leaf = IndexedParquet(urls)
    expected = [row for table in tables() for row in to_records(table)]
    assert len(leaf) == len(expected)
    assert list(leaf) == expected
    assert leaf[ROWS] == expected[ROWS]
    assert leaf.read_many([-1, 0, 2 * ROWS]) == [expected[-1], expected[0], expected[2 * ROWS]]
    with pytest.raises(IndexError, match="12000"):
        leaf[FILES * ROWS]


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 4, 16])
def test_a_pass_by_blocks_reads_the_chosen_columns_once(web: WebServer, urls: list[str], window: int) -> None:
    leaf = IndexedParquet(urls, ["n", "text"], shuffle="blocks", window=window)
    gets(web)
    items = list(leaf)
    assert sorted(item["n"] for item in items) == list(range(FILES * ROWS))
    spans = gets(web)
    assert leaf.records.size <= size(spans) <= 1.2 * leaf.records.size
    assert len(spans) <= 2 * GROUPS, "a request for each column chunk at most"


def test_four_shards_together_read_each_row_group_once(web: WebServer, urls: list[str]) -> None:
    parts, read = [], 0
    for shard in range(4):
        leaf = IndexedParquet(urls, ["n"], shuffle="blocks", window=4, seed=1)
        leaf.partition(shard, 4)
        gets(web)
        parts.append([item["n"] for item in leaf])
        read += size(gets(web))
    assert sorted(chain(*parts)) == list(range(FILES * ROWS))
    assert read <= 1.2 * leaf.records.size
    alone = [item["n"] for item in IndexedParquet(urls, ["n"], shuffle="blocks", window=4, seed=1)]
    assert [n for places in zip(*parts, strict=True) for n in places] == alone


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_a_state_is_small_and_going_on_reads_no_more_than_what_is_in_use(
    web: WebServer, urls: list[str], shuffle: Any
) -> None:
    window = 4

    def graph() -> Batches:
        return Batches(IndexedParquet(urls, ["n"], shuffle=shuffle, window=window), 1)

    whole = graph()
    batches = iter(whole)
    for taken in (10, 3_000, 5_000):
        for _ in range(taken):
            next(batches)
        state = json.dumps(whole.state_dict())
        assert len(json.dumps(json.loads(state)["state"])) < 150
        expected = list(islice(batches, 1))
        other = graph()
        other.load_state_dict(json.loads(state))
        gets(web)
        assert next(iter(other)) == expected[0]
        found = gets(web)
        assert len(found) <= (window if shuffle == "blocks" else 600)


def test_restored_in_the_middle_each_row_group_is_read_once_more_at_most(web: WebServer, urls: list[str]) -> None:
    whole = IndexedParquet(urls, ["n"], shuffle="blocks", window=8)
    items = iter(whole)
    list(islice(items, 6_000))
    other = IndexedParquet(urls, ["n"], shuffle="blocks", window=8)
    other.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    gets(web)
    found = list(other)
    spans = gets(web)
    assert found == list(items)
    assert len(spans) <= len({item["n"] // GROUP for item in found}), "each row group is asked for once"


def test_what_shards_have_left_is_dealt_anew(urls: list[str]) -> None:
    def leaf() -> IndexedParquet:
        return IndexedParquet(urls, ["n"], shuffle="blocks", window=4)

    given, states = [], []
    for shard, taken in enumerate((900, 0, 2_345)):
        part = leaf()
        part.partition(shard, 3)
        given += [item["n"] for item in islice(part, taken)]
        states.append(part.state_dict())
    merged = json.loads(json.dumps(merge_states(leaf(), states)))
    for shard in range(2):
        part = leaf()
        part.partition(shard, 2)
        part.load_state_dict(merged)
        given += [item["n"] for item in part]
    assert sorted(given) == list(range(FILES * ROWS))


@pytest.mark.s3
def test_random_rows_of_an_object_take_one_request_for_each_column_chunk(faulty_s3: S3Proxy) -> None:
    bucket = faulty_s3.server.bucket()
    url = f"s3://{bucket}/a.parquet"
    publish_bytes(url, parquet_bytes(tables()[0], row_group_size=GROUP), faulty_s3.server.options)
    wanted = random.Random(1).choices(range(ROWS), k=1_000)
    for columns in (["n"], ["n", "text"]):
        leaf = IndexedParquet(url, columns, faulty_s3.options)
        faulty_s3.clear()
        found = leaf.read_many(wanted)
        assert [row["n"] for row in found] == wanted
        assert faulty_s3.count("GET") <= len(columns) * ROWS // GROUP
        assert faulty_s3.count() == faulty_s3.count("GET")


class TestMemory:
    ROWS, GROUP, BYTES = 400, 10, 100_000

    @pytest.fixture
    def rows(self, tmp_path: Path) -> str:
        """40 row groups of 1 MB."""
        texts = [random.Random(n).randbytes(self.BYTES // 2).hex() for n in range(self.ROWS)]
        path = tmp_path / "a.parquet"
        path.write_bytes(parquet_bytes(pa.table({"text": texts}), row_group_size=self.GROUP, compression="none"))
        return str(path)

    @pytest.mark.slow
    @pytest.mark.parametrize("shards", [1, 2, 4])
    def test_no_more_row_groups_are_held_than_the_window_of_the_shard(self, rows: str, shards: int) -> None:
        leaf = IndexedParquet(rows, shuffle="blocks", window=4, cache_bytes=0)
        leaf.partition(0, shards)
        for _ in leaf:
            assert len(leaf.records.held) <= 4 // shards
            assert leaf.records.held.size <= 1.1 * (4 // shards) * self.GROUP * self.BYTES
        assert len(leaf.records.held) == 0, "and none after the pass"

    @pytest.mark.slow
    @pytest.mark.parametrize("shuffle", [True, False, "blocks"])
    def test_arrow_has_no_more_in_memory_than_is_held(self, rows: str, shuffle: Any) -> None:
        held = 4 * self.GROUP * self.BYTES
        leaf = IndexedParquet(rows, shuffle=shuffle, window=4, cache_bytes=held)
        before, most = pa.total_allocated_bytes(), 0
        for _ in leaf:
            most = max(most, pa.total_allocated_bytes() - before)
            assert leaf.records.held.size <= 1.1 * held
        # Besides: a row group that is being decoded, and the rows that are taken out of it.
        assert most <= held + 4 * self.GROUP * self.BYTES

    def test_row_groups_are_fetched_a_few_at_a_time(self, rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ledgerbeam.io.columns.reader._BYTES_AT_ONCE", 3 * self.GROUP * self.BYTES)
        leaf = IndexedParquet(rows, cache_bytes=0)
        tracemalloc.start()
        try:
            leaf.read_many(range(0, self.ROWS, self.GROUP))
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        results = self.ROWS // self.GROUP * self.BYTES
        assert most <= results + 8 * self.GROUP * self.BYTES


def test_a_row_group_that_is_read_in_parts_elsewhere_is_held_by_a_shuffle_by_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader.MOST_ROWS", 40)
    url = write_rows(tmp_path / "a.parquet", 400, group=100)
    expected = to_records(rows_table(400))
    for shuffle in (True, "blocks"):
        leaf = IndexedParquet(url, shuffle=shuffle, window=2)
        assert sorted(leaf, key=lambda row: row["n"]) == expected
        next(iter(leaf))
        assert len(leaf.records.held) == (shuffle == "blocks")


def test_a_pickled_leaf_has_no_rows_and_opens_files_when_it_reads_them(tmp_path: Path) -> None:
    urls = [write_rows(tmp_path / f"{name}.parquet", 500, 500 * at) for at, name in enumerate("abc")]
    leaf = IndexedParquet(urls, shuffle="blocks", window=8)
    expected = list(leaf)
    next(iter(leaf))
    pickled = pickle.dumps(leaf)
    assert len(pickled) < 10_000
    assert b"row 1" not in pickled
    other = pickle.loads(pickled)
    other.set_epoch(0)
    assert list(other) == expected
    assert other.records.held.least == 8


def test_a_state_is_refused_where_files_or_columns_are_others(tmp_path: Path) -> None:
    urls = [write_rows(tmp_path / f"{name}.parquet", 50, 50 * at) for at, name in enumerate("ab")]
    state = json.loads(json.dumps(IndexedParquet(urls, ["n"], shuffle="blocks").state_dict()))
    for other in (
        IndexedParquet(urls, ["text"], shuffle="blocks"),
        IndexedParquet(urls[::-1], ["n"], shuffle="blocks"),
        IndexedParquet(urls, ["n"], shuffle="blocks", window=3),
        IndexedParquet(urls, ["n"], shuffle=True),
    ):
        with pytest.raises(CheckpointMismatchError):
            other.load_state_dict(state)
    write_rows(tmp_path / "b.parquet", 60, 50)
    with pytest.raises(CheckpointMismatchError, match=r"files\[1\]"):
        IndexedParquet(urls, ["n"], shuffle="blocks").load_state_dict(state)


def test_what_is_no_file_of_columns_is_refused_by_name(tmp_path: Path) -> None:
    lines = data.write_lines(tmp_path / "a.jsonl", 5)
    rows = write_rows(tmp_path / "a.parquet", 5)
    with pytest.raises(UsageError, match=r"a\.jsonl: expected a file of columns .*, found jsonl"):
        IndexedParquet([rows, lines])
    with pytest.raises(UsageError, match="at least one file of columns, found none"):
        IndexedParquet([])
    with pytest.raises(UsageError, match="has no column 'm'"):
        IndexedParquet(rows, ["m"])
    damaged = tmp_path / "b.parquet"
    damaged.write_bytes(Path(rows).read_bytes()[:-40])
    with pytest.raises(SourceError, match=r"b\.parquet"):
        IndexedParquet([rows, str(damaged)])


def test_global_orders_and_spans_go_over_rows(tmp_path: Path) -> None:
    urls = [write_rows(tmp_path / f"{name}.parquet", 50, 50 * at) for at, name in enumerate("ab")]
    leaves = [IndexedParquet(url, ["n"]) for url in urls]
    shuffled = [row["n"] for row in GlobalShuffle(*leaves, seed=2)]
    assert sorted(shuffled) == list(range(100)) != shuffled
    assert leaves[0].record_bytes == pytest.approx(leaves[0].records.size / 50)
    blocks = Map(IndexedParquet(urls, ["n"], shuffle="blocks", window=3), data.wrap)
    assert blocks.read_span(0, 30) + blocks.read_span(30, 100) == list(blocks)


def test_files_of_columns_are_read_by_number(tmp_path: Path) -> None:
    urls = [write_rows(tmp_path / f"{name}.parquet", count) for name, count in (("a", 0), ("b", 25), ("c", 0))]
    files = ColumnFiles(urls, ["n"])
    assert (len(files), files.blocks, files[-1]) == (25, [0, 10, 10, 5, 0], {"n": 24})
    assert repr(files) == f"ColumnFiles({urls[0]!r} and 2 more, columns=('n',))"
    assert list(IndexedParquet([urls[0]], shuffle="blocks")) == []
