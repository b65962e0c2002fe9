"""Requests to a store for chosen columns: few, and of few bytes, as counted by the server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from ledgerbeam.io import ArrowFormat, ColumnReader, ParquetFormat, ParquetReader
from tests.io.columns.tables import arrow_bytes, parquet_bytes
from tests.servers.web import WebServer, web_server

ROWS, GROUP = 40_000, 4_000


@cache
def wide_table() -> pa.Table:
    """Return columns whose bytes do not compress; those between the chosen ones are larger and smaller than a gap."""
    chance = np.random.default_rng(1)
    numbers = {f"n{place}": chance.integers(0, 2**62, ROWS) for place in range(6)}
    texts = {f"t{place}": pa.array([chance.bytes(9).hex() for _ in range(ROWS)]) for place in range(3)}
    return pa.table({**numbers, **texts, "tiny": np.arange(ROWS, dtype=np.int8)})


def bytes_asked(web: WebServer) -> int:
    asked = [span for method, span in web.asked if method == "GET"]
    assert all(asked), "nothing is read as a whole"
    spans = [span.removeprefix("bytes=").split("-") for span in asked if span]
    return sum(int(stop) - int(start) + 1 for start, stop in spans)


Opened = Callable[[WebServer, tuple[str, ...]], ColumnReader]


@cache
def parquet_content() -> bytes:
    return parquet_bytes(wide_table(), row_group_size=GROUP, compression="none")


@cache
def arrow_content() -> bytes:
    return arrow_bytes(wide_table(), GROUP)


def opened_parquet(web: WebServer, columns: tuple[str, ...]) -> ColumnReader:
    web.files = {"a.parquet": parquet_content()}
    return ParquetFormat(columns).open_columns(f"{web.url}/a.parquet")


def opened_arrow(web: WebServer, columns: tuple[str, ...]) -> ColumnReader:
    web.files = {"a.arrow": arrow_content()}
    return ArrowFormat(columns).open_columns(f"{web.url}/a.arrow")


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("opened", [opened_parquet, opened_arrow])
@pytest.mark.parametrize("columns", [("n1",), ("n0", "t2"), ("t0", "t1", "t2"), ("n0", "n2", "n4")])
def test_a_projection_reads_little_more_than_its_columns(
    web: WebServer, opened: Opened, columns: tuple[str, ...]
) -> None:
    reader = opened(web, columns)
    size = sum(group.size for group in reader.groups)
    assert reader.read_batch(0, ROWS).equals(wide_table().select(columns))
    assert size <= bytes_asked(web) <= 1.2 * size
    assert size < 0.8 * len(next(iter(web.files.values())))


@pytest.mark.parametrize("opened", [opened_parquet, opened_arrow])
def test_a_row_takes_one_request_for_each_column_chunk_at_most(web: WebServer, opened: Opened) -> None:
    reader = opened(web, ("n1", "n5", "t1"))
    web.asked.clear()
    row = reader[GROUP + 7]
    assert row == wide_table().select(["n1", "n5", "t1"]).slice(GROUP + 7, 1).to_pylist()[0]
    assert len(web.asked) <= 3
    web.asked.clear()
    assert reader[2 * GROUP - 1] != row
    assert web.asked == [], "its row group is held"


@pytest.mark.parametrize("opened", [opened_parquet, opened_arrow])
def test_all_columns_of_neighbouring_row_groups_come_in_one_request(web: WebServer, opened: Opened) -> None:
    reader = opened(web, ())
    web.asked.clear()
    assert reader.read_batch(GROUP, 4 * GROUP).num_rows == 3 * GROUP
    assert len(web.asked) == 1


def test_a_footer_takes_one_request_or_two(web: WebServer) -> None:
    web.files = {"a.parquet": parquet_bytes(wide_table())}
    assert len(ParquetReader(f"{web.url}/a.parquet")) == ROWS
    assert [method for method, _ in web.asked] == ["HEAD", "GET"]
    web.asked.clear()
    wide = pa.table({f"a long name of a column {place}": [place] for place in range(1500)})
    web.files = {"a.parquet": parquet_bytes(wide)}
    assert len(ParquetReader(f"{web.url}/a.parquet").schema) == 1500
    assert [method for method, _ in web.asked] == ["HEAD", "GET", "GET"]


def test_many_rows_by_number_take_each_row_group_once(web: WebServer) -> None:
    reader = opened_parquet(web, ("t1",))
    web.asked.clear()
    numbers = random.Random(1).choices(range(ROWS), k=500)
    found = reader.read_many(numbers)
    assert [row["t1"] for row in found] == wide_table().column("t1").take(numbers).to_pylist()
    assert len(web.asked) <= ROWS // GROUP


def test_decoded_row_groups_are_held_up_to_a_limit(web: WebServer) -> None:
    web.files = {"a.parquet": parquet_content()}
    one = ParquetReader(f"{web.url}/a.parquet", columns=["n1"], cache_bytes=2 * 9 * GROUP)
    footer = sum(method == "GET" for method, _ in web.asked)
    for group in (0, 1, 0, 1):
        one[group * GROUP]
    assert sum(method == "GET" for method, _ in web.asked) == footer + 2
    for group in (2, 1, 0):  # 2 takes the place of 0
        one[group * GROUP]
    assert sum(method == "GET" for method, _ in web.asked) == footer + 2 + 2


def test_the_first_rows_of_a_large_row_group_are_read_without_the_rest(web: WebServer) -> None:
    rows = 300_000
    chance = np.random.default_rng(2)
    table = pa.table({"a": chance.integers(0, 2**62, rows), "b": chance.integers(0, 2**62, rows)})
    web.files = {"a.parquet": parquet_bytes(table, row_group_size=rows, compression="none", use_dictionary=False)}
    reader = ParquetFormat().open_columns(f"{web.url}/a.parquet")
    web.asked.clear()
    assert reader.first_rows(0, 20).equals(table.slice(0, 20))
    assert bytes_asked(web) < reader.groups[0].size / 2
    assert len(web.asked) <= 2
    assert reader.first_rows(0, 10 * rows).equals(table), "more than one page of each column"


@pytest.mark.parametrize("opened", [opened_parquet, opened_arrow])
def test_the_first_rows_of_any_row_group(web: WebServer, opened: Opened) -> None:
    reader = opened(web, ("n1", "t2"))
    for group in (0, 3, 9):
        expected = wide_table().select(["n1", "t2"]).slice(group * GROUP, 5)
        assert reader.first_rows(group, 5).equals(expected)
        assert (
            reader.decode_each(reader.first_rows(group, 5), range(group * GROUP, group * GROUP + 5))
            == expected.to_pylist()
        )
