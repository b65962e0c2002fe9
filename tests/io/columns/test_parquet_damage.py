"""Damaged Parquet files. The error names the file, the fault and the remedy."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.errors import RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import ParquetReader, recognize
from ledgerbeam.io.columns.parquet_pages import parse_footer
from tests.cases import each
from tests.io.columns.tables import COMPRESSIONS, parquet_bytes, table

SOUND = parquet_bytes(table(20, "int64", "string"), row_group_size=7)


def opened(data: bytes, **options: Any) -> ParquetReader:
    return ParquetReader("a.parquet", data=data, **options)


@each(
    ("data", "message"),
    [
        (b"", "found 0 bytes; it is cut off"),
        (b"PAR1", "found 4 bytes"),
        (SOUND[:-1], r"expected b'PAR1' at the end, found b'.*'; it is cut off or no Parquet file"),
        (SOUND[:-4] + b"PARE", "the file is encrypted, and its footer too; decrypt it"),
        (SOUND[:-8] + b"\xff\xff\xff\x7f" + SOUND[-4:], "the footer has 2,147,483,647 bytes; expected at most"),
        (SOUND[:-8] + b"\x05\x00\x00\x00" + SOUND[-4:], "the footer cannot be read"),
        (b"PAR1" + bytes(40) + SOUND[-8:], "its end says|the footer cannot be read"),
    ],
)
def test_what_is_no_whole_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=rf"a\.parquet: .*{message}|a\.parquet: {message}"):
        opened(data)


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
    with pytest.raises(
        SourceError, match=r"a\.parquet: row group 1 cannot be read: .*CRC.*write it again, or leave it"
    ):
        reader.read_span(0, 8)


def test_names_of_columns_that_occur_twice_are_refused() -> None:
    double = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(SourceError, match=r"has more than one column 'x'; expected names that differ"):
        opened(parquet_bytes(double))


def test_an_unknown_column_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"a\.parquet: has no column 'text'; expected one of 'int64', 'string'"):
        opened(SOUND, columns=["int64", "text"])


def test_a_record_that_cannot_be_decoded_is_named() -> None:
    texts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    reader = opened(parquet_bytes(pa.table({"n": [1, 2, 3], "text": texts})))
    assert [row["n"] for row in reader.read_each(0, 1)] == [1]
    with pytest.raises(RecordError, match=r"a\.parquet: record 1: column 'text': 'utf-8' codec .*--on-error reject"):
        list(reader)
    found = reader.read_each(0, 3)
    assert [type(record) for record in found] == [dict, RecordError, dict]
    assert reader.read_raw(0, 3)[1].data == b'{"n":2,"text":null}'


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
