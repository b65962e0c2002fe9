"""Rows of Parquet and Arrow IPC by the contract of formats of columns, and errors that name a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ledgerbeam as lb
from ledgerbeam.errors import RecordError
from ledgerbeam.io import ArrowFormat, ParquetFormat
from ledgerbeam.io.columns.arrow_reader import ArrowReader
from ledgerbeam.io.columns.files import ColumnFiles
from ledgerbeam.io.columns.parquet_reader import ParquetReader
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.io.formats.testing import ColumnContract
from tests.io.columns.tables import arrow_bytes, columns, parquet_bytes, table

ROWS, GROUP = 21, 8  # the last row group is a short one
BEYOND = 10**7  # days: a date after the year 9999

Reading = Callable[[GroupedRows, int], Any]

READINGS: dict[str, Reading] = {
    "one": lambda reader, row: reader[row],
    "from the end": lambda reader, row: reader[row - ROWS],
    "all": lambda reader, row: reader.read_span(0, ROWS),
    "from the row on": lambda reader, row: reader.read_span(row, ROWS),
    "up to the row": lambda reader, row: reader.read_span(0, row + 1),
    "in turn": lambda reader, row: list(reader),
    "a slice with steps": lambda reader, row: reader[::-1],
    "many in another order": lambda reader, row: reader.read_many([row, *reversed(range(ROWS))]),
    "twice": lambda reader, row: reader.read_many([row, row]),
}


def content(bad: set[int], kind: str) -> bytes:
    days = pa.array([BEYOND if row in bad else row for row in range(ROWS)], pa.int32()).cast(pa.date32())
    rows = pa.table({"row": pa.array(range(ROWS)), "day": days, "days": pa.array([[day] for day in days])})
    return arrow_bytes(rows, GROUP) if kind == "arrow" else parquet_bytes(rows, row_group_size=GROUP)


@pytest.fixture(params=["parquet", "parquet in parts", "arrow"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GroupedRows]:
    if request.param == "parquet in parts":
        monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader.MOST_DECODED", 1)
        monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader._PART_ROWS", 3)
    kind = ArrowReader if request.param == "arrow" else ParquetReader
    return lambda *bad: kind("data", data=content(set(bad), request.param))


@pytest.mark.parametrize("reading", READINGS)
def test_the_row_is_named(opened: Callable[..., GroupedRows], reading: str) -> None:
    for row in range(ROWS):
        with pytest.raises(RecordError, match=f"/data: record {row}: column 'day': ") as found:
            READINGS[reading](opened(row), row)
        assert "--on-error reject" in str(found.value)


def test_each_row_has_its_own_error(opened: Callable[..., GroupedRows]) -> None:
    bad = {0, 3, 7, 8, 13, 20}
    for start, stop in ((0, ROWS), (3, 14), (8, 9), (13, ROWS)):
        found = opened(*bad).read_each(start, stop)
        for row, record in enumerate(found, start):
            if row in bad:
                assert f"/data: record {row}: column 'day': " in str(record)
            else:
                assert record["row"] == row
        raw = [json.loads(one.data) for one in opened(*bad).read_raw(start, stop)]
        assert [one["row"] for one in raw] == list(range(start, stop))
        assert {one["row"] for one in raw if one["day"] is None} == bad & set(range(start, stop))


def test_the_row_of_several_files_is_named_by_its_file(tmp_path: Path) -> None:
    names = [f"{tmp_path}/{number}.parquet" for number in range(3)]
    for number, name in enumerate(names):
        Path(name).write_bytes(content({13} if number == 1 else set(), "parquet"))
    files = ColumnFiles(names)
    for rows in ([ROWS + 13], list(range(3 * ROWS)), list(reversed(range(3 * ROWS)))):
        with pytest.raises(RecordError, match=r"1\.parquet: record 13: column 'day'"):
            files.read_many(rows)


def same(record: Any) -> Any:
    return record


def test_a_job_names_the_rows(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(content({0, 7, 13, 20}, "parquet"))
    where: dict[str, Any] = {"output": f"{tmp_path}/out", "ledger": f"{tmp_path}/ledger", "to": "jsonl"}
    done = lb.map(same, f"{tmp_path}/a.parquet", **where, task_bytes=200, on_error="reject", workers=1)
    assert done.records.kept == ROWS - 4
    rejects = Path(f"{tmp_path}/out/_rejects").rglob("*.jsonl")
    rows = [json.loads(line) for file in rejects for line in file.read_bytes().splitlines()]
    found = [(row["record"], row["error"].partition(": column")[0]) for row in rows]
    assert sorted(found) == [(row, f"{tmp_path}/a.parquet: record {row}") for row in (0, 7, 13, 20)]


# the contract of formats of columns, whole and read in parts

NAMES = list(columns(0))


def table_of(records: list[dict[str, Any]]) -> pa.Table:
    return table(len(records), *NAMES)


class _Columns(ColumnContract):
    def records(self, count: int) -> list[dict[str, Any]]:
        return to_records(table(count, *NAMES))


class TestParquet(_Columns):
    def format(self) -> ParquetFormat:
        return ParquetFormat()

    def content(self, records: list[dict[str, Any]]) -> bytes:
        return parquet_bytes(table_of(records), row_group_size=13)


class TestParquetInParts(TestParquet):
    @pytest.fixture(autouse=True)
    def _small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader.MOST_DECODED", 1)
        monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader._PART", 3000)


class TestArrow(_Columns):
    def format(self) -> ArrowFormat:
        return ArrowFormat()

    def content(self, records: list[dict[str, Any]]) -> bytes:
        return arrow_bytes(table_of(records), 13)


class TestCompressedArrow(TestArrow):
    def content(self, records: list[dict[str, Any]]) -> bytes:
        return arrow_bytes(table_of(records), 13, "zstd")
