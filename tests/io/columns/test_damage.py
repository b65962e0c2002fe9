"""Rows of Parquet and Arrow files by contract, and errors: they name the file, the row, the fault and the remedy."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

import ledgerbeam as lb
from ledgerbeam.errors import RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import ArrowFormat, ParquetFormat, ParquetReader, recognize
from ledgerbeam.io.columns.arrow_reader import ArrowReader
from ledgerbeam.io.columns.files import ColumnFiles
from ledgerbeam.io.columns.parquet_pages import parse_footer
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.io.formats.testing import ColumnContract
from tests.cases import each
from tests.io.columns.tables import COMPRESSIONS, arrow_bytes, parquet_bytes, table

SOUND = parquet_bytes(table(20, "int64", "string"), row_group_size=7)
ARROW = arrow_bytes(table(20, "int64", "string"), 7)


def opened(data: bytes, **options: Any) -> ParquetReader:
    return ParquetReader("a.parquet", data=data, **options)


def arrow(data: bytes, columns: Sequence[str] = ()) -> GroupedRows:
    return ArrowFormat(tuple(columns)).open_bytes(data, "a.arrow")


def stream_bytes() -> bytes:
    target = io.BytesIO()
    with ipc.new_stream(target, table(3, "int64").schema) as writer:
        writer.write_table(table(3, "int64"))
    return target.getvalue()


@each(
    ("open_file", "data", "message"),
    [
        (opened, b"", "found 0 bytes; it is cut off"),
        (opened, b"PAR1", "found 4 bytes"),
        (opened, SOUND[:-1], r"expected b'PAR1' at the end, found b'.*'; it is cut off or no Parquet file"),
        (opened, SOUND[:-4] + b"PARE", "the file is encrypted, and its footer too; decrypt it"),
        (opened, SOUND[:-8] + b"\xff\xff\xff\x7f" + SOUND[-4:], "the footer has 2,147,483,647 bytes; expected at most"),
        (opened, SOUND[:-8] + b"\x05\x00\x00\x00" + SOUND[-4:], "the footer cannot be read"),
        (opened, b"PAR1" + bytes(40) + SOUND[-8:], "by its last bytes, the footer has|the footer cannot be read"),
        (arrow, b"", "at the end of an Arrow IPC file, found b''"),
        (arrow, ARROW[:-1], "expected b'ARROW1' at the end"),
        (arrow, stream_bytes(), "found an Arrow stream, which has no footer; write it as a file"),
        (arrow, b"FEA1" + bytes(40), "Feather version 1 is not read; write the file as version 2"),
        (arrow, ARROW[:-10] + b"\xff\xff\xff\x7f" + ARROW[-6:], "the footer has 2,147,483,647 bytes"),
        (arrow, ARROW[:-10] + b"\xff\xff\xff\xff" + ARROW[-6:], "the footer has -1 bytes"),
        (arrow, ARROW[:-10] + b"\x08\x00\x00\x00" + ARROW[-6:], "the footer cannot be read"),
    ],
)
def test_what_is_no_whole_file_is_refused(open_file: Callable[[bytes], GroupedRows], data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=rf"a\.(parquet|arrow): .*({message})"):
        open_file(data)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"a\.parquet"):
        ParquetReader(str(tmp_path / "a.parquet"))


def test_a_damaged_page_is_an_error_of_its_row_group_only() -> None:
    data = bytearray(parquet_bytes(table(20, "int64"), row_group_size=7, write_page_checksum=True))
    chunk = parse_footer(bytes(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])).groups[1].chunks[0]
    data[chunk.start + chunk.size - 3] ^= 1
    reader = opened(bytes(data))
    assert [row["int64"] for row in reader.read_span(0, 7)] == list(range(7))
    assert reader[-1] == {"int64": 19}
    problem = r"a\.parquet: row group 1 cannot be read: .*CRC.*write it again, or leave it"
    with pytest.raises(SourceError, match=problem):
        reader.read_span(0, 8)


def test_names_of_columns_that_occur_twice_are_refused() -> None:
    double = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(SourceError, match=r"has more than one column 'x'; expected names that differ"):
        opened(parquet_bytes(double))


@each(("open_file", "data"), [(opened, SOUND), (arrow, ARROW)])
def test_an_unknown_column_is_refused_with_those_that_exist(open_file: Callable[..., GroupedRows], data: bytes) -> None:
    with pytest.raises(UsageError, match=r"a\.\w+: has no column 'text'; its columns: 'int64', 'string'"):
        open_file(data, columns=["int64", "text"])


def test_feather_files_and_dictionaries_of_several_batches_are_read() -> None:
    target = io.BytesIO()
    feather.write_feather(table(20), target, compression="zstd", chunksize=6)
    assert list(arrow(target.getvalue())) == list(arrow(arrow_bytes(table(20), 7)))
    words = arrow(target.getvalue(), ["words"])
    assert words.read_batch(0, 20).schema.field("words").type == pa.dictionary(pa.int32(), pa.string())
    assert [row["words"] for row in words] == table(20, "words").column("words").to_pylist()


def test_encrypted_columns_are_refused_by_name_of_the_file() -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):  # type: ignore[name-defined]
        """A service of keys that wraps nothing."""

        def __init__(self, _: Any) -> None:
            super().__init__()

        def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
            return key_bytes.hex().encode()

        def unwrap_key(self, wrapped_key: bytes, _: str) -> bytes:
            return bytes.fromhex(wrapped_key.decode())

    factory = encryption.CryptoFactory(Kms)
    for plain_footer, columns in ((False, ()), (True, ("string",)), (True, ("int64",))):
        properties = factory.file_encryption_properties(
            encryption.KmsConnectionConfig(),
            encryption.EncryptionConfiguration(
                footer_key="footer", column_keys={"column": ["string"]}, plaintext_footer=plain_footer
            ),
        )
        target = io.BytesIO()
        pq.write_table(table(20, "int64", "string"), target, encryption_properties=properties)
        if columns == ("int64",):
            assert opened(target.getvalue(), columns=columns)[3] == {"int64": 3}, "what is not encrypted is read"
        else:
            with pytest.raises(SourceError, match=r"a\.parquet: .*encrypted.*decrypt"):
                list(opened(target.getvalue(), columns=columns))


def test_every_compression_and_files_without_statistics_are_read() -> None:
    whole = table(30)
    expected = list(opened(parquet_bytes(whole)))
    for name in COMPRESSIONS:
        found = opened(parquet_bytes(whole, compression=name, write_statistics=False, row_group_size=11))
        assert list(found) == expected
    assert recognize("a.pq").format.name == "parquet"


def test_files_without_rows_or_columns_are_read() -> None:
    assert list(opened(parquet_bytes(table(0)))) == []
    assert len(opened(parquet_bytes(table(0))).schema) == len(table(0).schema)
    assert list(opened(parquet_bytes(pa.table({})))) == []


def test_old_timestamps_of_96_bits_are_read_or_refused() -> None:
    stamps = [dt.datetime(2024, 1, 2, 3, 4, 5, 6), None]  # noqa: DTZ001
    data = parquet_bytes(pa.table({"x": pa.array(stamps, pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)
    assert [row["x"] for row in opened(data)] == stamps
    far = pa.table({"x": pa.array([dt.datetime(3000, 1, 1), *stamps], pa.timestamp("us")), "n": [1, 2, 3]})  # noqa: DTZ001
    data = parquet_bytes(far, use_deprecated_int96_timestamps=True)
    with pytest.raises(SourceError, match=r"row group 0 has timestamps of 96 bits outside .*--columns"):
        list(opened(data))
    assert opened(data, columns=["n"])[2] == {"n": 3}


# rows that cannot be decoded

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
def open_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GroupedRows]:
    if request.param == "parquet in parts":
        monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader.MOST_DECODED", 1)
        monkeypatch.setattr("ledgerbeam.io.columns.parquet_reader._PART_ROWS", 3)
    kind = ArrowReader if request.param == "arrow" else ParquetReader
    return lambda *bad: kind("data", data=content(set(bad), request.param))


@pytest.mark.parametrize("reading", READINGS)
def test_the_row_is_named(open_rows: Callable[..., GroupedRows], reading: str) -> None:
    for row in range(ROWS):
        with pytest.raises(RecordError, match=f"/data: record {row}: column 'day': ") as found:
            READINGS[reading](open_rows(row), row)
        assert "--on-error reject" in str(found.value)


def test_errors_of_scattered_rows_have_their_numbers(open_rows: Callable[..., GroupedRows]) -> None:
    reader, numbers = open_rows(3, 13), np.array([0, 3, 9, 13, 20])
    found = reader.decode_each(reader.read_rows(numbers), numbers.tolist())
    errors = {number: str(one) for number, one in zip(numbers, found, strict=True) if isinstance(one, RecordError)}
    assert [f"record {number}: column 'day'" in error for number, error in errors.items()] == [True, True]
    assert list(errors) == [3, 13]


def test_each_row_has_its_own_error(open_rows: Callable[..., GroupedRows]) -> None:
    bad = {0, 3, 7, 8, 13, 20}
    for start, stop in ((0, ROWS), (3, 14), (8, 9), (13, ROWS)):
        found = open_rows(*bad).read_each(start, stop)
        for row, record in enumerate(found, start):
            if row in bad:
                assert f"/data: record {row}: column 'day': " in str(record)
            else:
                assert record["row"] == row
        raw = [json.loads(one.data) for one in open_rows(*bad).read_raw(start, stop)]
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

NAMES = table(0).column_names


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
