"""Damaged Parquet and Arrow files. The error names the file, the fault and the remedy."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

from ledgerbeam.errors import SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import ArrowFormat, ParquetReader, recognize
from ledgerbeam.io.columns.parquet_pages import parse_footer
from ledgerbeam.io.columns.reader import GroupedRows
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
        (opened, b"PAR1" + bytes(40) + SOUND[-8:], "its end says|the footer cannot be read"),
        (arrow, b"", "at the end of an Arrow IPC file, found b''"),
        (arrow, ARROW[:-1], "expected b'ARROW1' at the end"),
        (arrow, stream_bytes(), "found an Arrow stream, which has no footer; write it as a file"),
        (arrow, b"FEA1" + bytes(40), "Feather version 1 is not read; write it again as version 2"),
        (arrow, ARROW[:-10] + b"\xff\xff\xff\x7f" + ARROW[-6:], "the footer has 2147483647 bytes"),
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
    with pytest.raises(UsageError, match=r"a\.\w+: has no column 'text'; expected one of 'int64', 'string'"):
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
