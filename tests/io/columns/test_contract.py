"""Parquet and Arrow IPC by the contract of formats of columns, whole and read in parts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ledgerbeam.io import ArrowFormat, ParquetFormat
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.io.formats.testing import ColumnContract
from tests.io.columns.tables import arrow_bytes, columns, parquet_bytes, table

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
